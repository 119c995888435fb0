"""Networks of every family, made once and loaded through the public door."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.network.zoo import OWN, build, save
from torch import nn

from regraft.network import ArrayPreprocess, Network, from_module, load


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Networks this small are slower on many threads than on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The saved folder of a family, made once."""
    pytest.importorskip("transformers")
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = save(tmp_path_factory.mktemp(family), *build(family))
        return made[family]

    return folder


@pytest.fixture(scope="session")
def zoo(folders: Callable[[str], Path]) -> Callable[[str], Network]:
    """The loaded network of a family, made once."""
    made: dict[str, Network] = {}

    def network(family: str) -> Network:
        if family not in made:
            made[family] = load(str(folders(family)))
        return made[family]

    return network


@pytest.fixture
def own() -> Callable[[str], Network]:
    """A network made of one of the modules above, with statistics that are not those of a fresh one."""

    def network(name: str) -> Network:
        make, shape = OWN[name]
        torch.manual_seed(1)
        module = make()
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.normal_()
                part.running_var.uniform_(0.5, 2)
        return from_module(module, ArrayPreprocess(shape), name=name)

    return network
