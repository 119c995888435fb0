"""The fingerprint sees every function that a forward pass may call, and no version of any library."""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.features.toy import toy_manifest
from tests.network.processes import in_own_process
from torch import Tensor, fx, nn
from torch.nn import functional

from regraft.errors import ModelError
from regraft.features.sweep import base_key
from regraft.network import ArrayPreprocess, ImagePreprocess, from_module, load
from regraft.network.fingerprint import architecture, reading
from regraft.network.loaders.text import TextPreprocess
from regraft.network.molecule import MoleculePreprocess


class Holds(nn.Module):
    """A linear layer and an attribute."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


@dataclasses.dataclass
class Settings:
    scale: float


@dataclasses.dataclass(slots=True)
class Slots:
    scale: float


class Power:
    def __init__(self, exponent: float) -> None:
        self.exponent = exponent

    def __call__(self, x: Tensor) -> Tensor:
        return x**self.exponent


def scaled(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda x: factor * x


def by_default(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda x, by=factor: by * x


def by_keyword(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda x, *, by=factor: by * x


def recursive() -> Callable[[Tensor], Tensor]:
    def again(x: Tensor) -> Tensor:
        return x if x.numel() < 2 else again(x[1:])

    return again


def fingerprint(value: Any) -> str:
    torch.manual_seed(0)
    return from_module(Holds(value), ArrayPreprocess((4,))).fingerprint


VALUES: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "relu": lambda: torch.relu,
    "tanh": lambda: torch.tanh,
    "functional relu": lambda: functional.relu,
    "a class": lambda: nn.ReLU,
    "another class": lambda: nn.GELU,
    "exact gelu": lambda: functools.partial(functional.gelu, approximate="none"),
    "tanh gelu": lambda: functools.partial(functional.gelu, approximate="tanh"),
    "a list": lambda: [torch.relu, torch.tanh],
    "another list": lambda: [torch.tanh, torch.relu],
    "a tuple of partials": lambda: (functools.partial(torch.clamp, min=0.0),),
    "a mapping": lambda: {"first": torch.relu},
    "another mapping": lambda: {"second": torch.relu},
    "a lambda": lambda: lambda x: x + 1,
    "another lambda": lambda: lambda x: x + 2,
    "a closure": lambda: scaled(2.0),
    "another closure": lambda: scaled(3.0),
    "a default": lambda: by_default(2.0),
    "another default": lambda: by_default(3.0),
    "a default by keyword": lambda: by_keyword(2.0),
    "another default by keyword": lambda: by_keyword(3.0),
    "an object": lambda: Power(2.0),
    "another object": lambda: Power(3.0),
    "a method": lambda: Power(2.0).__call__,
    "another method": lambda: Power(3.0).__call__,
    "a function that calls itself": lambda: recursive(),
    "numbers by name": lambda: {"scale": 1.0},
    "other numbers by name": lambda: {"scale": 2.0},
    "a function and a number": lambda: {"act": torch.relu, "scale": 1.0},
    "a function and another number": lambda: {"act": torch.relu, "scale": 2.0},
    "a set": lambda: {"a", "b", "c"},
    "another set": lambda: {"a", "b", "d"},
    "a settings object": lambda: Settings(1.0),
    "another settings object": lambda: Settings(2.0),
    "settings in slots": lambda: Slots(1.0),
    "other settings in slots": lambda: Slots(2.0),
    "a namespace": lambda: types.SimpleNamespace(scale=1.0),
    "another namespace": lambda: types.SimpleNamespace(scale=2.0),
    "a tensor": lambda: torch.ones(3),
    "another tensor": lambda: torch.zeros(3),
    "an empty tensor": lambda: torch.zeros(0),
    "an array": lambda: np.ones(3),
    "another array": lambda: np.zeros(3),
    "a queue": lambda: collections.deque([1.0]),
    "another queue": lambda: collections.deque([2.0]),
    "a complex number": lambda: 1j,
    "another complex number": lambda: 2j,
    "bytes": lambda: b"a",
    "other bytes": lambda: b"b",
    "a dtype": lambda: torch.float16,
    "another dtype": lambda: torch.bfloat16,
}


def test_callables_count_and_give_the_same_digest_each_time() -> None:
    prints = {name: fingerprint(make()) for name, make in VALUES.items()}
    assert len(set(prints.values())) == len(VALUES)
    assert prints == {name: fingerprint(make()) for name, make in VALUES.items()}


@pytest.mark.parametrize("attribute", ["act", "_act"])
def test_two_networks_that_differ_in_their_activation_alone(attribute: str) -> None:
    made = []
    for act in (torch.relu, torch.tanh):
        module = Holds(None)
        module.load_state_dict(Holds(None).state_dict())
        with torch.no_grad():
            for p in module.parameters():
                p.fill_(1.0)
        setattr(module, attribute, act)
        made.append(from_module(module, ArrayPreprocess((4,))).fingerprint)
    assert made[0] != made[1]


@pytest.mark.parametrize("values", [(1.0, 2.0), ("mean", "max"), (2, 4), (False, True), ([1, 2], [2, 1])])
def test_private_settings_of_own_modules_count_and_what_they_keep_does_not(values: tuple[Any, Any]) -> None:
    def made(value: Any, kept: Any = None) -> str:
        torch.manual_seed(0)
        module = Holds(None)
        module._setting, module._kept = value, kept
        return from_module(module, ArrayPreprocess((4,))).fingerprint

    assert made(values[0]) == made(values[0]) != made(values[1])
    assert made(values[0], torch.ones(100)) == made(values[0], torch.zeros(100))


CODE = """
from torch import nn
from regraft.network import ArrayPreprocess
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Linear(4, 3), (lambda x: x.{function}())
    def forward(self, x):
        return self.fc(x){forward}
def build():
    return Net(), ArrayPreprocess((4,))
"""


def test_source_of_own_classes_and_functions_counts(tmp_path: Path) -> None:
    """One module, edited between processes; what is not edited keeps its fingerprint."""

    def loaded(folder: str, **text: str) -> str:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mynet.py").write_text(CODE.format(**text))
        script = "from regraft.network import load; print(load('mynet:build').fingerprint)"
        return in_own_process(script, tmp_path / folder)

    first = loaded("a", function="relu", forward="")
    assert loaded("b", function="relu", forward="") == first
    assert len({first, loaded("c", function="tanh", forward=""), loaded("d", function="relu", forward=" * 2")}) == 3


def test_code_without_source_is_told_apart() -> None:
    def made(expression: str) -> str:
        space: dict[str, Any] = {"nn": nn, "__name__": "typed"}
        exec(f"class Net(nn.Linear):\n    def forward(self, x):\n        return {expression}\n", space)
        torch.manual_seed(0)
        return from_module(space["Net"](4, 4), ArrayPreprocess((4,))).fingerprint

    assert made("x + 1") == made("x + 1")
    assert len({made("x + 1"), made("x + 2"), made("x.relu()"), made("x.tanh()")}) == 4


def test_library_code_counts_by_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an upgrade of a library leaves the fingerprint as it is; the stored features it does not."""
    import importlib.metadata

    network, manifest = load("regraft/fashion-resnet"), toy_manifest(30)
    before, key = network.fingerprint, base_key(network, manifest, "float32")
    assert base_key(load("regraft/fashion-resnet"), manifest, "float32") == key
    monkeypatch.setattr("inspect.getsource", lambda _: "a newer version")
    again = load("regraft/fashion-resnet")
    assert again.fingerprint == before
    monkeypatch.setattr(torch, "__version__", "99.0")
    other = base_key(again, manifest, "float32")
    assert other != key
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "99.0")
    assert base_key(again, manifest, "float32") not in (key, other)


def test_stored_features_are_of_one_version_of_all_that_reads_and_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    class Foreign(nn.ReLU):  # a network that transformers loaded may be of layers of timm
        __module__ = "timm.layers.some"

    newer = ""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99.0" if name == newer else "1.0")
    manifest, module = toy_manifest(30), nn.Sequential(nn.Linear(4, 4), Foreign())
    needed = {
        ImagePreprocess(None, None): {"timm", "pillow"},
        MoleculePreprocess(): {"timm", "rdkit"},
        TextPreprocess("folder", "digest", 8, None): {"timm", "tokenizers", "transformers"},
        ArrayPreprocess((4,)): {"timm"},
    }
    for preprocess, names in needed.items():
        network = types.SimpleNamespace(
            module=module, preprocess=preprocess, fingerprint="same", about=types.SimpleNamespace(source="module")
        )
        keys = {}
        for newer in ("", "timm", "pillow", "rdkit", "tokenizers", "transformers"):
            keys[newer] = base_key(network, manifest, "float32")
        assert {name for name, key in keys.items() if key != keys[""]} == names


class Layers(nn.Module):
    def __init__(self, order: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        parts = {name: nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for name in "AB"}
        self.layers = nn.Sequential(*(parts[name] for name in order))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def test_where_a_module_or_a_tensor_stands_once_more_counts() -> None:
    def made(module: nn.Module) -> str:
        return from_module(module, ArrayPreprocess((4,))).fingerprint

    assert made(Layers("AB")) == made(Layers("AB"))
    orders = ("AB", "ABA", "ABB", "ABAB", "ABBB")
    assert len({made(Layers(order)) for order in orders}) == len(orders)

    def tied(source: int) -> str:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        module[4].weight = module[source].weight
        return made(module)

    assert tied(0) == tied(0) != tied(2)

    def counting(source: str) -> str:
        module = Layers("A")
        for name in ("first", "second"):
            module.register_buffer(name, torch.zeros(1))
        module.register_buffer("third", getattr(module, source))
        return made(module)

    assert counting("first") == counting("first") != counting("second")


def test_hooks_that_change_a_forward_pass_count() -> None:
    def made(*hooks: Callable[..., Any], before: bool = False) -> str:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        for hook in hooks:
            (module[0].register_forward_pre_hook if before else module[0].register_forward_hook)(hook)
        return from_module(module, ArrayPreprocess((4,))).fingerprint

    def double(module: nn.Module, given: Any, output: Tensor) -> Tensor:
        return 2 * output

    def triple(module: nn.Module, given: Any, output: Tensor) -> Tensor:
        return 3 * output

    def halved(module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        return (given[0] / 2,)

    assert made(double) == made(double)
    assert len({made(), made(double), made(triple), made(double, triple), made(halved, before=True)}) == 5


USES = """
import functools, torch
from torch import nn
from regraft.network import ArrayPreprocess
SCALE = {scale}
TABLE = {{"a": {table}, "of": lambda: helper}}
def once(x):
    return x * {inner}
def helper(x, deep=4):
    return helper(x, deep - 1) if deep else once(x)
def timed(function):
    @functools.wraps(function)
    def call(*given):
        return function(*given)
    return call
class Net(nn.Linear):
    @timed
    def forward(self, x):
        return helper(super().forward(x)) * self.factor * sum(TABLE["a"] for _ in range(2))
    @property
    def factor(self):
        return SCALE
def build():
    torch.manual_seed(0)
    return Net(4, 4), ArrayPreprocess((4,))
"""


def test_functions_and_values_of_the_file_that_a_forward_pass_uses_count(tmp_path: Path) -> None:
    def made(**text: float) -> str:
        space: dict[str, Any] = {"__name__": "users_file"}
        exec(USES.format(**{"scale": 1.0, "table": 1.0, "inner": 2.0, **text}), space)
        return from_module(*space["build"]()).fingerprint

    assert made() == made()
    assert len({made(), made(scale=2.0), made(table=2.0), made(inner=3.0)}) == 4


@pytest.mark.parametrize(
    "values", [({"s": 1.0}, {"s": 2.0}), (torch.tensor(1.0), torch.tensor(2.0)), (Settings(1.0), Settings(2.0))]
)
def test_small_private_settings_of_own_modules_count(values: tuple[Any, Any]) -> None:
    def made(value: Any) -> str:
        torch.manual_seed(0)
        module = Holds(None)
        module._setting = value
        return from_module(module, ArrayPreprocess((4,))).fingerprint

    assert made(values[0]) == made(values[0]) != made(values[1])


def test_functions_of_other_own_files_count(tmp_path: Path) -> None:
    """``import helpers`` and ``helpers.scale(x)``, between processes."""

    def made(folder: str, factor: int) -> str:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "helpers.py").write_text(f"def scale(x):\n    return x * {factor}\n")
        code = CODE.replace("from torch import nn", "import helpers\nfrom torch import nn")
        code = code.format(function="relu", forward=".mul(1) + helpers.scale(0)")
        (tmp_path / folder / "mynet.py").write_text(code)
        script = "from regraft.network import load; print(load('mynet:build').fingerprint)"
        return in_own_process(script, tmp_path / folder)

    assert made("a", 2) == made("b", 2) != made("c", 3)


LAYERS = """
from torch import nn
from regraft.network import ArrayPreprocess
{imports}
class Net(nn.Linear):
    def forward(self, x):
        {inside}
        return super().forward(x) * {used}
def build():
    return Net(4, 4), ArrayPreprocess((4,))
"""


@pytest.mark.parametrize(
    ("imports", "inside", "used"),
    [
        ("import package.helpers", "", "package.helpers.scale()"),
        ("", "from package.helpers import scale", "scale()"),
        ("", "import package.helpers as held", "held.scale()"),
        ("", "from package import helpers", "helpers.scale()"),
        ("from package import helpers", "", "getattr(helpers, 'scale')()"),
        ("from package.helpers import held", "", "held.factor"),
        ("", "if x is None: import package.ending\n        from package.helpers import scale", "scale()"),
        ("", "from hlp import scale", "scale()"),
    ],
)
def test_what_is_reached_by_the_less_usual_ways_counts(tmp_path: Path, imports: str, inside: str, used: str) -> None:
    def made(folder: str, factor: int) -> str:
        (tmp_path / folder / "package").mkdir(parents=True)
        helpers = f"def scale():\n    return {factor}\nclass Held:\n    factor = {factor}\nheld = Held()\n"
        (tmp_path / folder / "package/helpers.py").write_text(helpers)
        (tmp_path / folder / "package/__init__.py").write_text("")
        (tmp_path / folder / "package/ending.py").write_text("raise SystemExit(1)\n")
        (tmp_path / folder / "hlp.py").write_text(helpers)
        (tmp_path / folder / "mynet.py").write_text(LAYERS.format(imports=imports, inside=inside or "pass", used=used))
        script = "import torch; torch.manual_seed(0); from regraft.network import load\n"
        script += "net = load('mynet:build'); print(net.fingerprint); net.forward(torch.ones(1, 4))\n"
        script += "print(load('mynet:build').with_params(net.params).fingerprint)"
        first, again = in_own_process(script, tmp_path / folder).split()
        assert first == again
        return first

    assert made("a", 2) == made("b", 2) != made("c", 3)


class Inverted(ArrayPreprocess):
    def __call__(self, raw: Any) -> Tensor:
        return 1 - super().__call__(raw)


class Raised(ArrayPreprocess):
    def __init__(self, shape: tuple[int, ...], power: float) -> None:
        super().__init__(shape)
        object.__setattr__(self, "power", power)

    def __call__(self, raw: Any) -> Tensor:
        return super().__call__(raw) ** self.power


class Kept(ArrayPreprocess):
    """What a call leaves behind is no setting; what cannot be read is no reason to fail."""

    @functools.cached_property
    def table(self) -> np.ndarray:
        return np.arange(3)

    def __call__(self, raw: Any) -> Tensor:
        held = self.__dict__
        held.update(_seen=[raw], itself=self, far=torch.empty(2, device="meta"))
        return super().__call__(raw) + float(self.table[0])


def test_what_a_preprocessing_keeps_for_the_next_row_does_not_count() -> None:
    def made(preprocess: ArrayPreprocess) -> str:
        torch.manual_seed(0)
        return from_module(nn.Linear(4, 3), preprocess).fingerprint

    used = Kept((4,))
    object.__setattr__(used, "itself", used)
    object.__setattr__(used, "far", torch.empty(2, device="meta"))
    before = made(used)
    used(np.zeros(4))
    assert made(used) == before


class Held(ArrayPreprocess):
    def __init__(self, held: Any) -> None:
        super().__init__((4,))
        object.__setattr__(self, "held", held)


@pytest.mark.parametrize(
    "values",
    [
        (slice(0, 3), slice(1, 3)),
        (range(2), range(3)),
        (re.compile("a"), re.compile("b")),
        (Path("a"), Path("b")),
        (torch.zeros(30), torch.ones(30)),
        ([1, 2], [2, 1]),
        (Settings(1.0), Settings(2.0)),
        (torch.relu, torch.tanh),
    ],
)
def test_attributes_of_many_kinds_count(values: tuple[Any, Any]) -> None:
    first, second = (reading(Held(value)) for value in values)
    assert first == reading(Held(values[0])) != second


def test_weights_of_a_preprocessing_count() -> None:
    torch.manual_seed(0)
    one, other = Held(nn.Linear(2, 2)), Held(nn.Linear(2, 2))
    assert reading(one) != reading(other)


def test_code_and_attributes_of_an_own_preprocessing_count() -> None:
    """Its description, which an artifact keeps, may well be that of the class it comes from."""

    def made(preprocess: ArrayPreprocess) -> str:
        torch.manual_seed(0)
        return from_module(nn.Linear(4, 3), preprocess).fingerprint

    assert Inverted((4,)).to_json() == ArrayPreprocess((4,)).to_json()
    kinds = [
        ArrayPreprocess((4,)),
        Inverted((4,)),
        Raised((4,), 2.0),
        Raised((4,), 3.0),
        Inverted((4,), (1.0,), (2.0,)),
    ]
    assert [made(kind) for kind in kinds] == [made(kind) for kind in kinds]
    assert len({made(kind) for kind in kinds}) == len(kinds)


def bent(x: Tensor) -> Tensor:
    return x.sin()


def straight(x: Tensor) -> Tensor:
    return 2 * x


fx.wrap("bent")
fx.wrap("straight")


def test_the_code_of_a_traced_module_counts() -> None:
    """Two modules of one tree with the same weights: their passes differ in a function alone."""

    def made(act: Callable[[Tensor], Tensor]) -> str:
        class Net(nn.Sequential):
            def forward(self, x: Tensor) -> Tensor:
                return self[1](torch.relu(act(self[0](x))))

        torch.manual_seed(0)
        return from_module(fx.symbolic_trace(Net(nn.Linear(4, 4), nn.Linear(4, 4))), ArrayPreprocess((4,))).fingerprint

    acts = (torch.sin, torch.cos, bent, straight)
    assert [made(act) for act in acts] == [made(act) for act in acts]
    assert len({made(act) for act in acts}) == len(acts)


def test_own_functions_in_a_traced_module_count_with_their_source(tmp_path: Path) -> None:
    code = """
from torch import fx, nn
from regraft.network import ArrayPreprocess
def act(x):
    return x * {factor}
fx.wrap("act")
class Net(nn.Linear):
    def forward(self, x):
        return act(super().forward(x))
def build():
    return fx.symbolic_trace(Net(4, 4)), ArrayPreprocess((4,))
"""

    def made(folder: str, factor: int) -> str:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mynet.py").write_text(code.format(factor=factor))
        script = "import torch; torch.manual_seed(0); from regraft.network import load\n"
        return in_own_process(script + "print(load('mynet:build').fingerprint)", tmp_path / folder)

    assert made("a", 2) == made("b", 2) != made("c", 3)


class Getter(nn.ModuleDict):
    """In the form of torchvision's of the same purpose: a mapping says what its outputs are called."""

    __module__ = "torchvision.models._utils"

    def __init__(self, layers: dict[str, nn.Module], table: Any) -> None:
        super().__init__(layers)
        self.return_layers = table

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = {}
        for name, layer in self.items():
            x = layer(x)
            if name in self.return_layers:
                found[self.return_layers[name]] = x
        return found


def test_mappings_and_sets_of_library_modules_count() -> None:
    def made(table: Any) -> str:
        torch.manual_seed(0)
        return from_module(
            Getter({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}, table), ArrayPreprocess((4,))
        ).fingerprint

    tables: list[Any] = [{}, {"a": "out"}, {"b": "out"}, {"a": "out", "b": "aux"}, {"a": "aux", "b": "out"}]
    tables += [{"a"}, {"b"}, {"a": 1.0}, {"a": (1, 2)}]
    assert [made(table) for table in tables] == [made(table) for table in tables]
    assert len({made(table) for table in tables}) == len(tables)


def test_lambdas_of_one_line_are_told_apart() -> None:
    def twice() -> list[Any]:
        flat = [lambda x: x.relu(), lambda x: x.tanh(), lambda x: (lambda y: y + 1)(x), lambda: 1, lambda: None]
        inner = (lambda: lambda x: x + 1, lambda: lambda x: x + 2)
        return [*flat, *inner, *(make() for make in inner)]

    prints = [fingerprint(value) for value in twice()]
    assert len(set(prints)) == len(prints)
    assert prints == [fingerprint(value) for value in twice()]


class Stateful(nn.Linear):
    """What it multiplies by is no tensor of its own, but part of its state."""

    def __init__(self, factor: Any) -> None:
        super().__init__(4, 4)
        self._held = [factor]

    def get_extra_state(self) -> Any:
        return {"factor": self._held[0]}


Stateful.__module__ = "torch.some"


def test_what_a_state_holds_besides_tensors_counts() -> None:
    def made(factor: Any) -> str:
        torch.manual_seed(0)
        return from_module(Stateful(factor), ArrayPreprocess((4,))).fingerprint

    factors = (1.0, 2.0, torch.ones(2), torch.zeros(2), (torch.ones(2), 1))
    assert [made(factor) for factor in factors] == [made(factor) for factor in factors]
    assert len({made(factor) for factor in factors}) == len(factors)


def test_packed_weights_of_quantised_layers_count() -> None:
    from torch.ao.nn.quantized.dynamic import Linear

    def made(turned: bool) -> str:
        torch.manual_seed(0)
        weight = torch.randn(4, 4)
        layer = Linear(4, 4)
        packed = torch.quantize_per_tensor(weight.flip(0) if turned else weight, 0.05, 0, torch.qint8)
        layer.set_weight_bias(packed, torch.zeros(4))
        return from_module(nn.Sequential(nn.Linear(4, 4), layer), ArrayPreprocess((4,))).fingerprint

    assert made(False) == made(False) != made(True)


class Counting(nn.Module):
    """A counter of calls, replaced or written into, and a table that is made when it is needed."""

    def __init__(self, in_place: bool = False) -> None:
        super().__init__()
        self.layer, self.in_place = nn.Linear(4, 4), in_place
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("table", torch.empty(0), persistent=False)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            self.calls += 1
        else:
            self.calls = self.calls + 1
        if not len(self.table):
            self.table = torch.arange(4.0)
        return self.layer(x * self.scale + self.table)


@pytest.mark.parametrize("in_place", [False, True])
def test_what_passes_leave_in_buffers_does_not_count(in_place: bool) -> None:
    def made(scale: float = 1.0) -> Any:
        torch.manual_seed(0)
        module = Counting(in_place)
        module.scale.fill_(scale)
        return from_module(module, ArrayPreprocess((4,)))

    first, used = made(), made()
    with torch.no_grad():
        used.forward(used.example(5))
    assert first.passing == {"calls", "table"}
    alike = [made(), used, used.with_params({}), used.with_params({"scale": torch.ones(4)}), used.to("cpu")]
    assert {network.fingerprint for network in alike} == {first.fingerprint}
    assert made(2.0).fingerprint != first.fingerprint
    weight = torch.ones(2, 4)
    assert made().with_head(weight).fingerprint == used.with_head(weight).fingerprint


@pytest.mark.parametrize("read", [0, 20, 50])
def test_a_pass_that_changes_weights_is_told_so_whichever_of_them_the_examples_read(read: int) -> None:
    """The first ``read`` rows of the table are short enough to stay; example inputs read the first few."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = nn.Embedding(50, 8, max_norm=1.0), nn.Linear(8, 3)
            with torch.no_grad():
                self.table.weight[:read] = functional.normalize(self.table.weight[:read])

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.table(x.abs().long()).mean(1))

    network = from_module(Table(), ArrayPreprocess((5,)))
    if read == 50:
        assert network.sites
    else:
        with pytest.raises(ModelError, match=r"writes into its parameters; .*another table\.weight.* max_norm"):
            _ = network.sites


# as written under torch 2.4, 2.11, 2.13 and 2.15, some of which print more of normalisations
WRITTEN = {
    "BatchNorm2d(3, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)": nn.BatchNorm2d(3),
    "InstanceNorm1d(3, eps=1e-05, momentum=0.1, affine=False, track_running_stats=False)": nn.InstanceNorm1d(3),
    "LayerNorm((4,), eps=1e-05, elementwise_affine=True)": nn.LayerNorm(4),
    "LayerNorm((5,), eps=1e-05, elementwise_affine=True)": nn.LayerNorm(5, bias=False),  # no tensor tells of a bias
    "GroupNorm(2, 4, eps=1e-05, affine=True)": nn.GroupNorm(2, 4),
    "Linear(in_features=4, out_features=3, bias=False)": nn.Linear(4, 3, bias=False),
    "Conv2d(4, 4, kernel_size=(3, 3), stride=(1, 1), groups=2)": nn.Conv2d(4, 4, 3, groups=2),
    "Embedding(5, 4, padding_idx=0)": nn.Embedding(5, 4, padding_idx=0),
    "GELU(approximate='tanh')": nn.GELU("tanh"),
    "Dropout(p=0.5, inplace=False)": nn.Dropout(),
    "LSTM(3, 4, num_layers=2, batch_first=True)": nn.LSTM(3, 4, 2, batch_first=True),
    "MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)": nn.MaxPool2d(2),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_a_module_is_written_alike_by_every_version(text: str) -> None:
    assert architecture(WRITTEN[text], {}) == f":{text}\n{{}}"


def test_a_bias_of_an_own_class_is_a_setting() -> None:
    class Own(nn.LayerNorm):
        def extra_repr(self) -> str:
            return "own, bias=True"

    assert "Own(own, bias=True)" in architecture(Own(3), {})
