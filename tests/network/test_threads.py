"""Several threads on one network: each gets what it would get alone."""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.network.zoo import capture
from torch import Tensor, nn

from regraft.network import Network
from regraft.network.policy import slow_attention
from regraft.network.trace import Trace, trace

CALLS = 20


@pytest.fixture(autouse=True)
def _switching_often() -> Iterator[None]:
    """Threads change places a thousand times more often than they would."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def at_once(tasks: list[Callable[[], None]]) -> None:
    """Run every task in a thread of its own, CALLS times, from one start; the first error is raised."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(tasks))

    def run(task: Callable[[], None]) -> None:
        try:
            for _ in range(CALLS):
                barrier.wait(60)
                task()
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def same(found: tuple[dict[str, Any], Any], expected: tuple[dict[str, Any], Any]) -> bool:
    return found[0].keys() == expected[0].keys() and all(
        torch.equal(one, other)
        for one, other in zip([*found[0].values(), found[1]], [*expected[0].values(), expected[1]])
    )


@pytest.mark.parametrize("name", ["residual", "functional", "recurrent", "encoder"])
def test_threads_observe_their_own_passes(name: str, own: Callable[[str], Network]) -> None:
    network = own(name)
    sites = [site.name for site in network.sites]
    batches = [network.example(2), -2 * network.example(5)]
    alone = [capture(network, sites, batch) for batch in batches]

    def observe(index: int) -> Callable[[], None]:
        def task() -> None:
            assert same(capture(network, sites, batches[index]), alone[index])

        return task

    def only_run() -> None:
        with torch.no_grad():
            assert torch.equal(network.forward(batches[0]), alone[0][1])

    at_once([observe(0), observe(1), only_run])
    assert all(not part._forward_hooks and not part._forward_pre_hooks for part in network.module.modules())


def test_threads_may_find_the_sites_at_once() -> None:
    """Two traces of one module, and a plain pass in the middle of one of them: each sees its own pass alone."""

    class Rests(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.05)  # the other thread gets to run
            return torch.relu(x)

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), Rests(), nn.Linear(5, 6), Rests(), nn.Linear(6, 2))
    x = torch.randn(3, 4)

    def found() -> Trace:
        return trace(module, lambda: module(x), 3, 0, True, False)

    alone = found()
    assert len(alone.taps) == 4

    def task() -> None:
        assert found().taps == alone.taps

    def plain() -> None:
        for _ in range(3):
            module(x)

    at_once([task, task, plain])


def test_a_copy_made_while_observed_is_not_observed(own: Callable[[str], Network]) -> None:
    network = own("residual")
    seen: list[str] = []
    with network.observe(["embedding"], lambda name, _: seen.append(name)):
        module = copy.deepcopy(network.module)
    module(network.example(2))
    assert not seen


def test_threads_predict_as_they_do_alone() -> None:
    """One adapted network, two threads with other rows."""
    from tests.features.toy import toy_arrays, toy_manifest, toy_network

    import regraft

    adapted = regraft.adapt(toy_manifest(60), toy_network(), method="probe", folds=2).adapted
    inputs = [toy_arrays(40, seed=seed)[0] for seed in (5, 6)]
    options: dict[str, Any] = {"workers": 0, "batch_size": 2}
    alone = [adapted.predict_proba(x, **options).probabilities for x in inputs]

    def predict(index: int) -> Callable[[], None]:
        def task() -> None:
            together = adapted.predict_proba(inputs[index], **options).probabilities
            np.testing.assert_allclose(together, alone[index], rtol=1e-4, atol=1e-6)  # other rows differ by far more

        return task

    at_once([predict(0), predict(1)])


def test_the_fast_path_stays_off_until_the_last_thread_is_out() -> None:
    enabled = torch.backends.mha.get_fastpath_enabled
    before = enabled()
    first, second = slow_attention(), slow_attention()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # not in the order in which they came
    assert not enabled()
    second.__exit__(None, None, None)
    assert enabled() == before

    def task() -> None:
        with slow_attention():
            assert not enabled()

    at_once([task, task, task])
    assert enabled() == before
