"""What the repository says about itself is so: commands, links, versions, and nothing that belongs to one machine."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
#: Packages and modules of which the interface page speaks.
PACKAGES = (
    *("", ".data", ".diagnose", ".features", ".graft", ".heads", ".linear", ".network"),
    *(".diagnose.clusters", ".heads.convex.rowpath", ".heads.convex.subspacepath", ".linear.testing"),
)
PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][0-9A-Za-z.]*")


@cache
def tracked() -> tuple[str, ...]:
    """The files that git knows."""
    found = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False
    )
    names = tuple(name for name in found.stdout.decode().split("\0") if name and (ROOT / name).is_file())
    if found.returncode or not names:
        pytest.skip("no git checkout: the tracked files are unknown")
    return names


def text_of(name: str) -> str:
    """A tracked file's text, or nothing where it is no text."""
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def targets() -> set[str]:
    """The Makefile's public targets."""
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def make_commands(text: str) -> set[str]:
    """Targets of the ``make`` commands in code spans, fences and scripts; a comment ends a command."""
    found: set[str] = set()
    for command in re.findall(r"(?:^|[`;&] ?|step )make((?: +[a-z][a-z-]*)+)", text, re.MULTILINE):
        found.update(command.split())
    return found


def test_make_commands_are_read_as_meant() -> None:
    text = "```sh\nmake demo   # adapt it\nmake lint types\n```\nType `make test`, make no mistake.\nstep make docs\n"
    assert make_commands(text) == {"demo", "lint", "types", "test", "docs"}


@pytest.mark.parametrize("name", [*PAGES, ".ci/run"])
def test_make_commands_exist(name: str) -> None:
    assert make_commands(text_of(name)) <= targets()


def test_readme_names_the_two_commands_first() -> None:
    first_screen = "\n".join(text_of("README.md").splitlines()[:40])
    assert {"demo", "test"} <= make_commands(first_screen)


def test_continuous_integration_runs_the_readmes_test_command() -> None:
    assert {"lint", "types", "docs", "test"} <= make_commands(text_of(".ci/run"))


def anchors(text: str) -> set[str]:
    """The anchors that headings get: lower case, punctuation dropped, spaces to hyphens."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE):
        found.add(re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()))
    return found


def broken_links(name: str, text: str) -> list[str]:
    """Relative links of a page that lead nowhere."""
    broken = []
    for link in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8"))
        ):
            broken.append(link)
    return broken


@pytest.mark.parametrize("name", PAGES)
def test_links_resolve(name: str) -> None:
    assert broken_links(name, text_of(name)) == []


def test_broken_links_are_found() -> None:
    text = "[a](docs/index.md) [b](docs/absent.md) [c](https://example.org) [d](#nowhere) [e](CHANGELOG.md#changelog)"
    assert broken_links("README.md", text) == ["docs/absent.md", "#nowhere"]


# Written in pieces, so that this file does not find itself.
FORBIDDEN = {
    "the path of a machine": re.compile(r"(?<![\w.])/(?:" + "|".join(("wo" + "rk", "ro" + "ot", r"home/\w+")) + ")/"),
    "the host of a registry": re.compile(
        "|".join(("py" + r"pi\.org", "python" + r"hosted\.org", "npm" + r"js\.(?:org|com)", "deb" + r"\.debian\.org"))
        + r"|https?://\S+/(?:simple|packages)/"
    ),
    "a mark of something unfinished": re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b"),
}


def test_forbidden_words_are_found() -> None:
    samples = ("see /wo" + "rk/x", "from https://files.python" + "hosted.org/x", "# TO" + "DO: later")
    for pattern, sample in zip(FORBIDDEN.values(), samples, strict=True):
        assert pattern.search(sample)
        assert not pattern.search("frame" + "wo" + "rk/x says what is to be done")


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_tracked_file_holds(what: str) -> None:
    found = []
    for name in tracked():
        text = text_of(name)
        found += [f"{name}:{text[: m.start()].count(chr(10)) + 1}" for m in FORBIDDEN[what].finditer(text)]
    assert found == []


def test_version_is_the_changelogs_newest() -> None:
    newest = re.search(r"^## \[(\d[^\]]*)\]", text_of("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    assert newest.group(1) == project()["version"]


def test_licence_is_apache() -> None:
    text = text_of("LICENSE")
    assert project()["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in text
    assert "9. Accepting Warranty or Additional Liability." in text


def constraints() -> dict[str, str]:
    lines = [line for line in text_of("constraints.txt").splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not PINNED.fullmatch(line)] == []
    return {re.sub(r"[-_.]+", "-", line.split("==")[0]).lower(): line.split("==")[1] for line in lines}


def test_every_direct_dependency_of_the_environment_has_an_exact_version() -> None:
    extras = project()["optional-dependencies"]
    wanted = [
        *project()["dependencies"],
        *(item for extra in ("hub", "data", "graph", "docs", "dev") for item in extras[extra]),
    ]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;]", item)[0]).lower() for item in wanted} - {"regraft"}
    assert names <= set(constraints())


def test_quickstart_names_every_extra_and_whether_make_installs_it() -> None:
    extras = project()["optional-dependencies"]
    made = re.findall(r"[a-z]+", re.search(r"regraft\[(.*)\]", extras["dev"][0]).group(1))  # type: ignore[union-attr]
    told = dict(re.findall(r"^\| `regraft\[(\w+)\]` \|.*\| (yes|no) \|$", text_of("docs/quickstart.md"), re.MULTILINE))
    assert told == {extra: "yes" if extra in made else "no" for extra in extras if extra not in ("dev", "docs")}


def test_every_public_module_says_what_it_is() -> None:
    silent = []
    for path in sorted((ROOT / "src" / "regraft").rglob("*.py")):
        private = path.name.startswith("_") and path.name not in ("__init__.py", "__main__.py")
        if not private and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))):
            silent.append(path.relative_to(ROOT).as_posix())
    assert silent == []


def test_references_in_docstrings_resolve() -> None:
    broken = []
    for name in tracked():
        if not (name.startswith("src/") and name.endswith(".py")):
            continue
        for reference in re.findall(r":(?:attr|class|data|func|meth|mod):`~?(regraft\.[\w.]+)`", text_of(name)):
            module, rest = reference, list[str]()
            while not any((ROOT / "src" / Path(*module.split("."))).with_suffix(end).exists() for end in (".py", "")):
                module, _, last = module.rpartition(".")
                rest.insert(0, last)
            there: Any = importlib.import_module(module)
            for word in rest:
                there = getattr(there, word, None) or getattr(there, "__annotations__", {}).get(word)
            if there is None:
                broken.append(f"{name}: {reference}")
    assert broken == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = set(re.findall(r"[\w/-]+\.md", text_of("mkdocs.yml")))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages == navigation


@cache
def verbs() -> dict[str, set[str]]:
    """The command line's verbs (``cache ls`` among them) with their options."""
    import typer

    from regraft.app.cli import app

    found: dict[str, set[str]] = {}

    def walk(command: Any, name: str) -> None:
        if hasattr(command, "commands"):
            for word, inner in command.commands.items():
                walk(inner, f"{name} {word}".strip())
        else:
            found[name] = {
                option for p in command.params for option in (*p.opts, *p.secondary_opts) if option[0] == "-"
            }

    walk(typer.main.get_command(app), "")
    return found


def options_in(text: str) -> set[str]:
    """Options named in the first column of a page's tables."""
    cells = re.findall(r"^\| (`-.*?) \|", text, re.MULTILINE)
    return set(re.findall(r"`(--?[a-z][a-z0-9-]*)`", " ".join(cells)))


def test_command_line_page_has_every_option_and_no_other() -> None:
    sections = re.split(r"^## regraft ", text_of("docs/cli.md"), flags=re.MULTILINE)[1:]
    told = {section.split("\n")[0].strip(): options_in(section) for section in sections}
    there: dict[str, set[str]] = {}
    for verb, options in verbs().items():
        there.setdefault(verb.split()[0], set()).update(options - {"--help"})
    assert told == there


def test_command_line_page_has_every_environment_variable() -> None:
    source = "".join(text_of(name) for name in tracked() if name.startswith("src/") and name.endswith(".py"))
    assert set(re.findall(r"REGRAFT_\w+", source)) == set(re.findall(r"`(REGRAFT_\w+)`", text_of("docs/cli.md")))


@pytest.mark.parametrize("name", PAGES)
def test_commands_in_the_pages_are_commands(name: str) -> None:
    known = verbs()
    for fence in FENCE.finditer(text_of(name)):
        for line in re.findall(r"^ *regraft (.*?)(?: +#.*)?$", fence.group(), re.MULTILINE):
            verb = max((v for v in known if f"{line} ".startswith(f"{v} ")), key=len, default=None)
            assert verb, f"{name}: regraft {line}"
            assert set(re.findall(r"(?<=\s)--[a-z-]+", line)) <= known[verb], f"{name}: regraft {line}"


@pytest.mark.parametrize("name", PAGES)
def test_names_in_python_examples_exist(name: str) -> None:
    for fence in FENCE.finditer(text_of(name)):
        if not fence.group().lstrip().startswith("```python"):
            continue
        lines = fence.group().strip().splitlines()[1:-1]
        tree = ast.parse("\n".join(lines))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regraft"):
                module = importlib.import_module(node.module or "")
                assert [a.name for a in node.names if not hasattr(module, a.name)] == []
            elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("regraft."):
                assert callable(getattr(importlib.import_module("regraft"), ast.unparse(node.func).split(".")[1]))


def resolves(name: str) -> bool:
    """Whether a dotted name is that of a module, or of something in one: of a class also a field, or what its methods
    set."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            if hasattr(found, part):
                found = getattr(found, part)
                continue
            declared = [inspect.get_annotations(base) for base in getattr(found, "__mro__", ())]
            return any(part in names for names in declared) or f"self.{part}" in inspect.getsource(found)
        return True
    return False


def test_cross_references_in_docstrings_lead_somewhere() -> None:
    for name in tracked():
        if not name.startswith("src/regraft/") or not name.endswith(".py"):
            continue
        text = text_of(name)
        module = name.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
        for match in re.finditer(r":(?:func|class|mod|data|meth|attr|exc):`~?([^`]+)`", text):
            line = text[: match.start()].count("\n") + 1
            around = [f"{module}.{node.name}" for node in classes if node.lineno <= line <= (node.end_lineno or 0)]
            known = [match[1], *(f"{place}.{match[1]}" for place in (module, *around))]
            assert any(map(resolves, known)), f"{name}:{line}: {match[0]}"


def examples() -> list[Any]:
    """Python examples of the pages that check themselves by an assertion, and so need nothing but themselves."""
    return [
        pytest.param(
            textwrap.dedent(fence.group()).strip().split("\n", 1)[1].removesuffix("```"), id=f"{name}-{number}"
        )
        for name in PAGES
        for number, fence in enumerate(FENCE.finditer(text_of(name)))
        if fence.group().lstrip().startswith("```python") and re.search(r"^ *assert ", fence.group(), re.MULTILINE)
    ]


@pytest.mark.parametrize("example", examples())
def test_python_examples_with_assertions_hold(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "example", "exec"), {"__name__": "example"})


@cache
def public() -> dict[str, Any]:
    """The public names of the library's packages by ``module.name``, with the methods of their classes."""
    found: dict[str, Any] = {}
    for package in PACKAGES:
        module = importlib.import_module(f"regraft{package}")
        for name in module.__all__:
            found[f"{module.__name__}.{name}"] = getattr(module, name)
    for name, thing in list(found.items()):
        if inspect.isclass(thing):
            found |= {f"{name}.{word}": getattr(thing, word) for word in dir(thing) if not word.startswith("_")}
    return found


def unlike(told: ast.arguments, there: inspect.Signature) -> list[str]:
    """Arguments that a page gives another name, place, default or way of being passed than the code."""
    known = {name: each for name, each in there.parameters.items() if name != "self"}
    plain = [name for name, each in known.items() if each.kind is not each.KEYWORD_ONLY]
    names = {name.rpartition(".")[2]: thing for name, thing in public().items()}
    wrong = [a.arg for a, expected in zip(told.args, [*plain, *[""] * len(told.args)]) if a.arg != expected]
    wrong += [a.arg for a in told.kwonlyargs if a.arg not in known or a.arg in plain]
    optional = told.args[len(told.args) - len(told.defaults) :] if told.defaults else []
    for argument, default in zip([*optional, *told.kwonlyargs], [*told.defaults, *told.kw_defaults]):
        if default is not None and argument.arg not in wrong:
            value = eval(compile(ast.Expression(default), "default", "eval"), dict(names))
            wrong += [argument.arg] if value != known[argument.arg].default else []
    return wrong


def signatures(text: str) -> dict[str, list[str]]:
    """A page's signatures, each with what no public callable of this name bears out; calls with values are none."""
    found = {}
    for name, given in re.findall(r"`([A-Za-z_][\w.]*)\(([^`]*?)\)(?: -> [^`]*)?`", FENCE.sub("", text)):
        try:
            told = ast.parse(f"def f({re.sub(', …', '', given)}): ...").body[0].args  # type: ignore[attr-defined]
        except SyntaxError:
            continue
        exact = name if name.startswith("regraft.") else f".{name.rpartition('.')[2]}"
        meant = [thing for known, thing in public().items() if known.endswith(exact) and callable(thing)]
        if meant:
            found[f"{name}({given})"] = min((unlike(told, inspect.signature(thing)) for thing in meant), key=len)
    return found


def test_signatures_on_the_interface_page_are_those_of_the_code() -> None:
    found = signatures(text_of("docs/api.md"))
    assert len(found) > 100
    assert {told: wrong for told, wrong in found.items() if wrong} == {}


def test_wrong_signatures_are_found() -> None:
    text = "`energy(response, outputs)` `drift(before, then)` `axes(features, count=3)` `axes(features, *, count=2)`"
    assert list(signatures(text).values()) == [["response", "outputs"], ["then"], ["count"], ["count"]]
    assert signatures("`axes(features, …) -> Axes`") == {"axes(features, …)": []}


def finding_codes() -> set[str]:
    """The codes that are written out where findings are made."""
    found = set()
    for name in tracked():
        if name.startswith("src/") and name.endswith(".py"):
            for node in ast.walk(ast.parse(text_of(name))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                    found |= {first.value for first in node.args[:1] if isinstance(first, ast.Constant)}
    return found


def test_every_finding_is_explained_and_every_explained_one_made() -> None:
    page, made = text_of("docs/reading-the-report.md"), finding_codes()
    tables = re.findall(r"^\| finding.*\n\|---\|---\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    cells = [row.split("|")[1].split("(")[0] for table in tables for row in table.splitlines()]
    told = set(re.findall(r"`([a-z-]+)`", " ".join(cells)))
    assert len(made) > 40
    assert made - told == set()
    source = "".join(text_of(name) for name in tracked() if name.startswith("src/") and name.endswith(".py"))
    assert [code for code in sorted(told - made) if f'"{code}"' not in source] == []


@pytest.mark.parametrize("page", ["README.md", "docs/which-method.md"])
def test_figures_of_the_first_pages_stand_among_the_measurements(page: str) -> None:
    number = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.])")
    told = [line for line in text_of(page).splitlines() if not line.startswith(("![", "- **Platform.**"))]
    figures = set(number.findall("\n".join(told)))
    assert len(figures) > 5
    assert figures - set(number.findall(text_of("docs/measurements.md"))) == set()


def test_every_section_of_the_report_is_explained() -> None:
    bold = {name for part in re.findall(r"^\*\*([^*]+)\*\*", text_of("docs/reading-the-report.md"), re.MULTILINE)
            for name in part.rstrip(".").split(", ")}  # fmt: skip
    titles = re.findall(r'^ {8}\("[a-z]+", "([^"]+)", ', text_of("src/regraft/app/report/page.py"), re.MULTILINE)
    assert len(titles) > 20
    assert [title for title in titles if title not in bold] == []


def test_the_page_of_reproduction_tells_every_row_and_what_came_out() -> None:
    from regraft.reproduce import ROWS

    page = text_of("docs/reproduction.md")
    files = [name for name in tracked() if re.fullmatch(r"papers/\d+/[^/]+\.mini\.json", name)]
    results = {Path(name).name.removesuffix(".mini.json"): json.loads(text_of(name))["status"] for name in files}
    count = Counter(results.values())
    told = f"{'All' if len(results) == len(ROWS) else 'So far'} {len(results)} are measured at scale mini: "
    told += f"{count['pass']} pass, {count['fail']} fail, {count['fragile-fail']} fragile-fail."
    assert told in page
    assert dict(re.findall(r"^\| `([\w-]+)` \| ([a-z-]+) \|", page, re.MULTILINE)) == results
    assert [row.id for row in ROWS if f"`{row.id}`" not in page] == []
    assert f"All {len(ROWS)} rows can be run" in page
    papers = Counter(row.paper for row in ROWS)
    assert dict(re.findall(r"(\d+) of [^,()]*\((00\d)\)", page)) == {str(n): paper for paper, n in papers.items()}


@pytest.mark.parametrize("first", ["regraft.GraftClassifier", "regraft.adapt"])
def test_public_names_do_not_depend_on_what_was_loaded_first(first: str) -> None:
    """``regraft.adapt`` is a function and a package of the same name; the function must win in any order."""
    script = f"import regraft\n{first}\n" + (
        "print([name for name in regraft.__all__ if not callable(getattr(regraft, name))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_scan_names_the_columns_that_it_looks_for() -> None:
    from regraft.data import scan
    from regraft.data.table import INPUTS, LABELS, MASKS

    assert {*INPUTS, *LABELS, *MASKS} <= set(re.findall(r"\w+", scan.__doc__ or ""))


def test_interface_page_names_every_setting_of_adapt() -> None:
    from regraft.graft import Changes, Options

    page = text_of("docs/api.md")
    told = re.search(r"^\| `options` \| .*", page, re.MULTILINE)
    assert told is not None
    assert set(re.findall(r"`([a-z_]+)`", told.group())) == {"options", *(field.name for field in fields(Options))}
    changes = re.search(r"the fields of `Changes`: (.*?)\. Everything else", page, re.DOTALL)
    assert changes is not None
    assert re.findall(r"`([a-z_]+)`", changes.group(1)) == [field.name for field in fields(Changes)]


def test_settings_of_a_training_have_the_defaults_that_are_told() -> None:
    from regraft.graft import METHODS

    stage = METHODS["finetune"].train
    assert stage is not None
    config = stage.config
    parts = {type(part).__name__: part for part in (config, config.optimiser, config.schedule, config.loop)}
    parts |= {type(part).__name__: part for part in (stage.tuning, stage.augment)}
    told = []
    for cell, defaults in re.findall(r"^\| (`[A-Z]\w+\.\w+`.*?) \|(.*?)\|", text_of("docs/api.md"), re.MULTILINE):
        names = re.findall(r"`(\w+\.\w+)`", cell)
        there = [getattr(parts[owner], field) for owner, field in (name.split(".") for name in names)]
        assert [ast.literal_eval(default) for default in re.findall(r"`(.*?)`", defaults)] in ([], there), cell
        told += names
    assert {*told} == {f"{owner}.{field.name}" for owner, part in parts.items() for field in fields(part)}


def test_pages_tell_the_version_of_the_artifact() -> None:
    from regraft.graft.adapted.reading import VERSION

    assert f"An artifact says its version ({VERSION}; earlier ones are read" in text_of("docs/architecture.md")
    assert f"Artifacts have version {VERSION}; earlier ones are read" in text_of("docs/api.md")


def test_every_public_name_is_on_the_interface_page() -> None:
    import regraft

    page = text_of("docs/api.md")
    assert [name for name in regraft.__all__ if not re.search(rf"\b{name}\b", page)] == []


def test_the_interval_of_few_groups_is_the_one_that_is_told() -> None:
    from regraft.heads import Response, measure

    told = re.search(
        r"of four with accuracies of (.*) and (.*) it is (.*) to (.*)\.\n", text_of("docs/reading-the-report.md")
    )
    assert told is not None
    right = [round(50 * float(share)) for share in (*told.group(1).split(", "), told.group(2))]
    said = [[1.0, 0.0] if row < count else [0.0, 1.0] for count in right for row in range(50)]
    groups = [group for group in range(len(right)) for _ in range(50)]
    found = measure("accuracy", Response.of("binary", ["a", "b"], [0] * len(groups)), said, groups)
    assert told.groups()[2:] == (f"{found.low:.2f}", f"{found.high:.2f}")
