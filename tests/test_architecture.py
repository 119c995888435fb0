"""The arrows between packages and the rules of the library's source, held by reading it as syntax trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"

GROUND = frozenset({"errors", "files", "memory", "processor", "wording"})
_BASE = frozenset({"record", "linear", "data"})
_LOWER = _BASE | {"network", "features", "heads", "diagnose"}
ALLOWED: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "files": frozenset({"errors"}),
    "memory": frozenset(),
    "processor": frozenset(),
    "wording": frozenset(),
    "record": GROUND,
    "linear": GROUND,
    "data": GROUND,
    "network": GROUND | {"record"},
    "features": GROUND | _BASE | {"network"},
    "heads": GROUND | {"linear", "record"},
    "diagnose": GROUND | {"heads", "features", "network", "linear", "record"},
    "graft": GROUND | _LOWER,
    "reproduce": GROUND | _LOWER | {"graft"},
    "app": GROUND | {"record", "graft", "reproduce", "data", "network", "features", ""},  # to scan, list, look: no more
    "": GROUND | _LOWER | {"graft", "reproduce"},  # regraft/__init__.py: the public names
    "__main__": frozenset({"app"}),
}
#: The arrows inside a package, from folder to folder. ``*`` are the files on top that stand in no line of their own,
#: the nouns; the package's own ``__init__`` may import all of it, and nothing in it may import the ``__init__``.
INSIDE: dict[str, dict[str, frozenset[str]]] = {
    "heads": {
        "*": frozenset(),
        "intervals": frozenset({"*"}),
        "l2": frozenset({"*"}),
        "solve": frozenset({"*", "l2"}),
        "convex": frozenset({"*", "l2"}),
        "sparse": frozenset({"*", "l2", "solve"}),
        "selection": frozenset({"*", "l2", "solve", "sparse"}),
        "gp": frozenset({"*"}),
    },
    "graft": {
        "*": frozenset(),
        "adapted": frozenset({"*"}),
        "later": frozenset({"*", "adapted"}),
        "problem": frozenset({"*", "adapted"}),
        "protocol": frozenset({"*", "problem"}),
        "stages": frozenset({"*", "adapted"}),
        "recipe": frozenset({"*", "stages"}),
        "loop": frozenset({"*", "problem", "stages"}),
        "frozen": frozenset({"*", "adapted", "problem", "stages"}),
        "dense": frozenset({"*", "adapted", "problem", "stages", "frozen"}),
        "gradient": frozenset({"*", "adapted", "problem", "stages", "recipe", "frozen"}),
        "posterior": frozenset({"*", "adapted", "problem", "stages", "gradient"}),
        "training": frozenset({"*", "adapted", "problem", "protocol", "stages", "loop", "frozen", "dense"}),
        "pretraining": frozenset({"*", "stages", "loop"}),
        "evidence": frozenset({"*", "adapted", "later", "problem", "protocol"}),
        "trainable": frozenset({"*", "stages", "recipe"}),
        "preparation": frozenset({"*", "adapted", "problem", "protocol", "stages", "recipe", "trainable"}),
        "recording": frozenset({"*", "protocol", "preparation"}),
        "cost": frozenset({"*", "adapted", "problem", "loop", "dense", "preparation", "recording", "training"}),
        "build": frozenset(
            {"*", "problem", "loop", "frozen", "dense", "gradient", "posterior", "training", "preparation"}
        ),
        "run": frozenset(
            {"*", "adapted", "later", "protocol", "recipe", "gradient", "preparation", "recording", "build", "cost"}
            | {"evidence"}
        ),
        "diagnosis": frozenset({"*", "adapted", "protocol", "stages", "recipe", "preparation", "recording", "run"}),
        "estimator": frozenset({"*", "adapted", "problem", "recipe", "frozen"}),
    },
}
LATE_IMPORTS_ALLOWED = frozenset({"app", ""})  # for the start-up time
LAZY = frozenset({"regraft.graft"})  # its __init__ loads the scikit-learn face on first use, for the same reason
OPTIONAL = frozenset({"transformers", "timm", "torchvision", "datasets", "rdkit", "gpytorch"})
UNSAFE = frozenset({"pickle", "cPickle", "joblib", "dill", "cloudpickle", "shelve", "marshal"})
APP_NAME = re.compile(r"regraft\.app(\.\w+)*")


@dataclass(frozen=True)
class Import:
    """One import statement: the module it names, where it stands."""

    module: str
    line: int
    late: bool
    typing_only: bool


def package_of(module: str) -> str:
    """``regraft.data.scan`` → ``data``; ``regraft`` itself → the empty name."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def folder_of(module: str) -> str:
    """``regraft.heads.l2.ridge`` → ``l2``; ``regraft.heads.losses`` → ``*``; ``regraft.heads`` → the empty name."""
    parts = module.split(".")[2:]
    if not parts:
        return ""
    return parts[0] if len(parts) > 1 or parts[0] in INSIDE[package_of(module)] else "*"


def imports_of(tree: ast.Module, module: str, is_package: bool, known: frozenset[str]) -> Iterator[Import]:
    """Every import of a file, also inside functions, and ``import_module("constant")``."""

    def visit(node: ast.AST, late: bool, typing_only: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, late, typing_only)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")[: None if is_package else -1]
                parts = parts[: len(parts) - (node.level - 1)]
                base = ".".join(parts + ([node.module] if node.module else []))
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield Import(inner if inner in known else base, node.lineno, late, typing_only)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
            "import_module",
            "__import__",
        ):
            name = node.args[0] if node.args else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield Import(name.value, node.lineno, True, typing_only)
        inside = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for_types = typing_only or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside, for_types)

    yield from visit(tree, False, False)


def import_violations(module: str, found: list[Import]) -> Iterator[str]:
    """Arrows that point the wrong way, late imports of the library, optional packages at import time."""
    package = package_of(module)
    if package not in ALLOWED:
        yield f"{module}: the package {package!r} stands in no line of the table"
        return
    for item in found:
        where = f"{module}:{item.line}"
        top = item.module.split(".")[0]
        if top in UNSAFE:
            yield f"{where}: {top} runs code on load"
        if top in OPTIONAL and not item.late and not item.typing_only:
            yield f"{where}: the optional package {top} is imported at module level"
        if top != "regraft":
            continue
        target = package_of(item.module)
        if target != package and target not in ALLOWED[package]:
            yield f"{where}: {package or 'regraft'} may not import {target or 'regraft'}"
        if target == package and package in INSIDE:
            yield from folder_violations(module, item, where)
        if item.late and package not in LATE_IMPORTS_ALLOWED and module not in LAZY:
            yield f"{where}: late import of {item.module}"


def folder_violations(module: str, item: Import, where: str) -> Iterator[str]:
    """An import inside one package that goes against the order of its folders."""
    package, here, there = package_of(module), folder_of(module), folder_of(item.module)
    if here not in ("", *INSIDE[package]):
        yield f"{module}: the folder {here!r} stands in no line of the table of {package}"
    elif here != "" and there != here and there not in INSIDE[package][here]:
        yield f"{where}: {package}/{here} may not import {package}/{there}"


def listed(tree: ast.Module) -> frozenset[str] | None:
    """The names in a file's ``__all__``; ``None`` where it has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    return None


def name_violations(module: str, trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Names that are imported from a file whose ``__all__`` lacks them."""
    for node in ast.walk(trees[module]):
        if isinstance(node, ast.ImportFrom) and node.module in trees and not node.level:
            names = listed(trees[node.module])
            for alias in node.names:
                if names is not None and alias.name not in names and f"{node.module}.{alias.name}" not in trees:
                    yield f"{module}:{node.lineno}: {alias.name} is missing from __all__ of {node.module}"


def body_violations(module: str, tree: ast.Module) -> Iterator[str]:
    """print, assert, unsafe loading, and names of ``app`` as strings."""
    for node in ast.walk(tree):
        where = f"{module}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Assert):
            yield f"{where}: assert"
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name == "print":
                yield f"{where}: print"
            if any(k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in node.keywords):
                yield f"{where}: allow_pickle"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load":
            yield f"{where}: torch.load"
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            if any(alias.name == "load" for alias in node.names):
                yield f"{where}: torch.load"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = APP_NAME.fullmatch(node.value) and package_of(module) not in ("app", "__main__", "")
            yield from [f"{where}: names {node.value}"] if named else []


def cycle_in(graph: Mapping[str, set[str]]) -> list[str]:
    """One cycle as a list of names that starts and ends alike, or an empty list."""
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for following in sorted(graph.get(node, ())):
            if cycle := walk(following, [*path, node]):
                return cycle
        done.add(node)
        return []

    for start in sorted(graph):
        if cycle := walk(start, []):
            return cycle
    return []


def violations(sources: Mapping[str, str]) -> list[str]:
    """Every broken rule in ``sources``: dotted module name (``pkg.__init__`` for a package) → text."""
    names = {key: key.removesuffix(".__init__") for key in sources}
    known = frozenset(names.values())
    found: list[str] = []
    graph: dict[str, set[str]] = {}
    importers: dict[str, set[str]] = {}
    trees = {names[key]: ast.parse(text) for key, text in sources.items()}
    for key in sources:
        module = names[key]
        tree = trees[module]
        imports = list(imports_of(tree, module, key.endswith("__init__"), known))
        found += import_violations(module, imports)
        found += name_violations(module, trees)
        found += body_violations(module, tree)
        graph[module] = {item.module for item in imports if item.module in known and not item.late} - {module}
        for item in imports:
            top = item.module.split(".")[0]
            if top in OPTIONAL and not item.typing_only:
                importers.setdefault(top, set()).add(module)
    for top, modules in sorted(importers.items()):
        if len(modules) > 1:
            found.append(f"{top} is imported in {len(modules)} files: {', '.join(sorted(modules))}")
    if cycle := cycle_in(graph):
        found.append("import cycle: " + " → ".join(cycle))
    return found


def library() -> dict[str, str]:
    """The library's own files."""
    files = sorted((SOURCE / "regraft").rglob("*.py"))
    return {".".join(f.relative_to(SOURCE).with_suffix("").parts): f.read_text("utf-8") for f in files}


def test_the_library_keeps_its_rules() -> None:
    sources = library()
    assert len(sources) > 10, "the source tree was not found"
    assert violations(sources) == []


def test_table_has_no_cycle() -> None:
    lower = {package: set(targets) for package, targets in ALLOWED.items() if package != ""}
    assert cycle_in(lower) == []


def test_tables_of_folders_have_no_cycle() -> None:
    for folders in INSIDE.values():
        assert cycle_in({folder: set(targets) for folder, targets in folders.items()}) == []


def test_tables_name_what_is_there() -> None:
    for package, folders in INSIDE.items():
        top = SOURCE / "regraft" / package
        gone = [
            name for name in folders if name != "*" and not ((top / name).is_dir() or (top / f"{name}.py").is_file())
        ]
        assert gone == []
        assert {path.parent.name for path in top.glob("*/__init__.py")} <= set(folders)


def test_nobody_but_main_may_import_app() -> None:
    assert [package for package, targets in ALLOWED.items() if "app" in targets] == ["__main__"]


CLEAN = {
    "regraft.__init__": "import importlib\ndef f(): return importlib.import_module('regraft.graft')",
    "regraft.errors": "class RegraftError(Exception): pass",
    "regraft.files": "from regraft.errors import RegraftError",
    "regraft.record.__init__": "from regraft.record.a import A",
    "regraft.record.a": "from regraft.files import RegraftError\n__all__ = ['A']\nclass A: pass\nclass B: pass",
    "regraft.network.__init__": "",
    "regraft.network.hub": "from regraft.record import A\ndef f():\n    import transformers",
    "regraft.graft.__init__": "from ..network import hub\nfrom . import stages",
    "regraft.graft.stages": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import datasets",
    "regraft.app.cli": "def main():\n    from regraft.graft import stages\n    return stages",
    "regraft.__main__": "from regraft.app.cli import main",
}


#: Where ``torch.autograd.grad`` may stand: in a context of the same policy, or on what is no network of a user.
DIFFERENTIATES = ("network/policy.py", "features/tangent/replay.py", "reproduce/")


def test_derivatives_are_taken_in_full_precision() -> None:
    """A pass that is differentiated outside of its context would run in TF32 on a CUDA device."""
    for path in (SOURCE / "regraft").rglob("*.py"):
        own = path.relative_to(SOURCE / "regraft").as_posix()
        assert "torch.autograd.grad(" not in path.read_text() or own.startswith(DIFFERENTIATES), own


def test_clean_sources_pass() -> None:
    assert violations(CLEAN) == []


@pytest.mark.parametrize(
    ("module", "text", "message"),
    [
        ("regraft.record.b", "from regraft.network import hub", "record may not import network"),
        ("regraft.record.b", "from ..network.hub import f", "record may not import network"),
        ("regraft.record.b", "from .. import network", "record may not import network"),
        ("regraft.record.b", "import regraft.linear", "record may not import linear"),
        ("regraft.record.b", "if True:\n    from regraft.data import x", "record may not import data"),
        ("regraft.network.b", "from regraft.graft import stages", "network may not import graft"),
        ("regraft.graft.b", "from regraft.app.cli import main", "graft may not import app"),
        ("regraft.graft.b", "NAME = 'regraft.app.cli'", "names regraft.app.cli"),
        ("regraft.graft.b", "import regraft", "graft may not import regraft"),
        ("regraft.app.b", "from regraft.heads import solve", "app may not import heads"),
        ("regraft.app.b", "def f():\n    import regraft.linear", "app may not import linear"),
        ("regraft.errors", "from regraft.files import x", "errors may not import files"),
        ("regraft.graft.b", "def f():\n    from regraft.record import A", "late import of regraft.record"),
        ("regraft.graft.b", "class C:\n    async def f(self):\n        import regraft.files", "late import"),
        ("regraft.graft.b", "import importlib\nimportlib.import_module('regraft.data')", "late import"),
        ("regraft.heads.losses", "from regraft.heads.l2 import ridge", "heads/* may not import heads/l2"),
        ("regraft.heads.l2.ridge", "from regraft.heads.solve import solve", "heads/l2 may not import heads/solve"),
        ("regraft.heads.sparse.path", "import regraft.heads.selection.panel", "heads/sparse may not import heads/sel"),
        ("regraft.heads.convex.newton", "from ..selection import panel", "heads/convex may not import heads/selection"),
        ("regraft.heads.solve", "from regraft.heads import Readout", "heads/solve may not import heads/"),
        (
            "regraft.graft.stages.config",
            "import regraft.graft.loop.train",
            "graft/stages may not import graft/loop",
        ),
        ("regraft.graft.loop.train", "import regraft.graft.cost.counts", "graft/loop may not import graft/cost"),
        ("regraft.graft.scored", "from .stages import config", "graft/* may not import graft/stages"),
        ("regraft.graft.adapted.view", "from ..problem import Head", "graft/adapted may not import graft/problem"),
        ("regraft.heads.zoo.a", "from regraft.heads import losses", "the folder 'zoo' stands in no line"),
        ("regraft.zoo.b", "x = 1", "the package 'zoo' stands in no line"),
        ("regraft.data.b", "import datasets", "optional package datasets is imported at module level"),
        ("regraft.data.b", "def f():\n    import transformers.models", "transformers is imported in 2 files"),
        ("regraft.data.b", "def f():\n    print('x')", "print"),
        ("regraft.data.b", "def f(x):\n    assert x", "assert"),
        ("regraft.data.b", "def f():\n    import pickle", "pickle runs code on load"),
        ("regraft.data.b", "from joblib import load", "joblib runs code on load"),
        ("regraft.data.b", "import torch\nload = torch.load", "torch.load"),
        ("regraft.data.b", "from torch import load", "torch.load"),
        ("regraft.data.b", "import numpy as np\nnp.load('x', allow_pickle=True)", "allow_pickle"),
        (
            "regraft.record.b",
            "def f():\n    from regraft.record.a import B",
            "B is missing from __all__ of regraft.record.a",
        ),
        ("regraft.record.a", "from regraft.record import A", "import cycle: "),
    ],
)
def test_checker_catches(module: str, text: str, message: str) -> None:
    found = violations({**CLEAN, module: text})
    assert any(message in line for line in found), found


def test_longer_cycle_is_named_whole() -> None:
    ring = {f"regraft.data.{a}": f"from regraft.data.{b} import x" for a, b in ("ab", "bc", "ca")}
    assert violations({**CLEAN, **ring}) == [
        "import cycle: regraft.data.a → regraft.data.b → regraft.data.c → regraft.data.a"
    ]
