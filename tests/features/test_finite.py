"""Rows that a store holds no numbers of: found whichever pass wrote them, and not looked for where there are none."""

from __future__ import annotations

import pytest
import torch
from tests.features.toy import toy_arrays, toy_network
from torch import nn

from regraft.data import scan
from regraft.features import Taps, find, lost, plan, sweep
from regraft.features import finite as finite_module
from regraft.features.store import Store
from regraft.network import About, ArrayPreprocess, Network

ROWS = 30


class Halves(nn.Module):
    """Rows of zeros are NaN at the first tap, those of ones infinite at the second; the last holds numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.ReLU(), nn.GELU(), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.mean((2, 3))
        kept = self.first(torch.where(x == 0, torch.nan, x)).nan_to_num()
        return self.last(self.second(torch.where(x == 1, torch.inf, kept)).nan_to_num(posinf=0.0))


def halves() -> Network:
    return Network("halves", Halves(), ArrayPreprocess((3, 6, 6)), About("module"))


def arrays():
    x, y = toy_arrays(ROWS)
    x[[3, 17]] = 0
    x[11] = 1
    return scan((x, y))


class Stop(Exception):
    pass


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.mark.parametrize("at_once", [1, 1 << 24])
def test_each_row_comes_with_the_first_block_that_lost_it(cache, at_once, monkeypatch):
    monkeypatch.setattr(finite_module, "_AT_ONCE", at_once)
    network = halves()
    wanted = plan(network, [Taps(("first", "second", "embedding"), (None,))])
    store = sweep(network, arrays(), wanted, cache=cache, batch_size=8)
    first, second, last = (block.name for block in wanted.blocks)
    assert list(lost(store).items()) == [(3, first), (11, second), (17, first)]
    assert lost(store, [second]) == {11: second}
    assert lost(store, [last]) == {}


def test_nothing_is_read_of_a_store_of_numbers(cache, monkeypatch):
    network = toy_network()
    manifest, wanted = scan(toy_arrays(ROWS)), plan(network, [Taps(("embedding",), (None,))])
    stores = [sweep(network, manifest, wanted, cache=cache, batch_size=8), find(network, manifest, wanted, cache=cache)]

    def read(*_):
        raise AssertionError("the features were read")

    monkeypatch.setattr(Store, "matrices", read)
    assert [lost(store) for store in stores] == [{}, {}]


@pytest.mark.parametrize("stop", [8, 24])
def test_rows_are_known_that_a_pass_wrote_before_it_was_stopped(cache, stop):
    network, manifest = halves(), arrays()
    wanted = plan(network, [Taps(("first",), (None,))])

    def stopping(done: int, _: int) -> None:
        if done >= stop:
            raise Stop

    with pytest.raises(Stop):
        sweep(network, manifest, wanted, cache=cache, batch_size=4, progress=stopping)
    resumed = sweep(network, manifest, wanted, cache=cache, batch_size=4)
    assert 0 < resumed.computed_rows < ROWS
    assert list(lost(resumed)) == [3, 17]


def test_finite_numbers_whose_sum_overflows_are_no_fault(cache):
    x, y = toy_arrays(ROWS)
    network = Network("plain", nn.Sequential(nn.Identity(), nn.ReLU()), ArrayPreprocess((3, 6, 6)), About("module"))
    x[:] = 3e38
    store = sweep(network, scan((x, y)), plan(network, [Taps(("input",), (108,))]), cache=cache)
    assert store.finite
    assert lost(store) == {}


def test_rows_that_one_of_two_passes_lost_are_found(cache):
    network, manifest = halves(), arrays()
    first, last = plan(network, [Taps(("first", "embedding"), (None,))]).blocks
    whole = plan(network, [Taps(("first", "embedding"), (None,))])
    assert lost(sweep(network, manifest, whole.only([last.name]), cache=cache, batch_size=8)) == {}
    both = sweep(network, manifest, whole, cache=cache, batch_size=8)  # the first block alone is computed
    assert lost(both) == dict.fromkeys((3, 17), first.name)
