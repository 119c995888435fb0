"""What gradient features are said to cost before they run, against what the run counts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.features.toy import toy_manifest, toy_network
from tests.graft.gradient.test_gradient import toy_flops

import regraft
from regraft.graft.cost import gradient
from regraft.graft.cost.estimate import estimate
from regraft.graft.gradient.recipe import gradient_features, with_gradients
from regraft.graft.options import Options
from regraft.graft.preparation import prepare
from regraft.graft.stages.gradient import Gradients
from regraft.record import Ledger


@pytest.mark.parametrize(("most", "passes"), [(0, 0.0), (Gradients.row_space, 40 / 60)], ids=["products", "kernels"])
def test_products_are_predicted_and_counted(most, passes, tmp_path, monkeypatch):
    monkeypatch.setattr(Gradients, "row_space", most)
    manifest = replace(toy_manifest(60), split=("train",) * 40 + ("test",) * 20)
    options = Options(cache=tmp_path, folds=3, batch_size=16)
    recipe = gradient_features(Gradients(("conv2*",)))
    ready = prepare(manifest, toy_network(), method=recipe, options=options, ledger=Ledger())
    told: dict[bool, list[int]] = {}
    for stored in (False, True):  # then a pass of its own keeps what lies below
        said = {cost.stage: cost for cost in estimate(ready, options).costs}
        run = regraft.adapt(manifest, toy_network(), method=recipe, options=options)
        found = {cost.stage: cost for cost in run.record.costs}
        assert said["sweep"].flops == found["sweep"].flops
        assert said["solve"].backbone_passes == pytest.approx(stored + passes)
        assert found["solve"].backbone_passes == pytest.approx(stored + passes, abs=0.06)  # the tape looks at three
        told[stored] = [each["solve"].flops for each in (said, found)]
        passed = stored * 60 + (40 if most else 0)
        products = [flops - passed * sum(toy_flops(1)) for flops in told[stored]]
        # conv2, pooled and read by six numbers: 9 products of a fit are an average over real tasks, no promise
        assert 1 / 4 < products[0] / products[1] < 4
    one_pass = 60 * (sum(toy_flops(1)) + 2 * 6 * 5)
    assert [more - less for less, more in zip(*told.values())] == [one_pass, one_pass]


class Timed:
    """Rows whose kernel takes ``pace[0]`` seconds a row and ``pace[1]`` a pair of rows, by a clock of its own."""

    n_outputs, spent_flops = 3, 0

    def __init__(self, n_rows, pace):
        self.n_rows, self.pace, self.seconds = n_rows, pace, [0.0]

    def through(self, head):
        return self

    def take(self, index):
        part = Timed(len(index), self.pace)
        part.seconds = self.seconds
        return part

    def kernel(self):
        self.seconds[0] += self.pace[0] * self.n_rows + self.pace[1] * self.n_rows**2


@pytest.mark.parametrize(("rows", "pace"), [(64, (1e-3, 1e-4)), (7, (0.0, 2e-3)), (64, (5e-3, 0.0)), (1, (1e-3, 0.0))])
def test_a_kernel_s_seconds_follow_from_two_sizes(rows, pace, monkeypatch):
    timed, many = Timed(rows, pace), Timed(600, pace)
    monkeypatch.setattr(gradient, "ntk", Timed.kernel)
    monkeypatch.setattr(gradient, "time", SimpleNamespace(perf_counter=lambda: timed.seconds[0]))
    many.kernel()
    assert gradient._kernel(timed, 2, 600, True)[0] == pytest.approx(many.seconds[0])


@pytest.mark.parametrize("method", ["gradient", "tangent-gp"])
def test_what_is_left_after_an_interruption_is_predicted_and_counted(method, tmp_path, monkeypatch):
    """The pass goes on where it was stopped; derivatives then need one of their own, of that part's rows alone."""
    monkeypatch.setattr(Gradients, "row_space", 0)
    manifest = replace(toy_manifest(60), split=("train",) * 40 + ("test",) * 20)
    options = Options(cache=tmp_path, folds=3, batch_size=16)
    recipe = with_gradients(method, None, ["conv2*"])

    def stop(stage: str, done: int, _: int) -> None:
        if (stage, done) == ("sweep", 32):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        regraft.adapt(manifest, toy_network(), method=recipe, options=options, progress=stop)
    ready = prepare(manifest, toy_network(), method=recipe, options=options, ledger=Ledger())
    said = {cost.stage: cost for cost in estimate(ready, options).costs}
    run = regraft.adapt(manifest, toy_network(), method=recipe, options=options)
    found = {cost.stage: cost for cost in run.record.costs}
    assert said["sweep"].backbone_passes == found["sweep"].backbone_passes == pytest.approx((8 + 20) / 60)
    assert said["sweep"].flops == found["sweep"].flops
    assert said["solve"].backbone_passes == pytest.approx(40 / 60)
    assert found["solve"].backbone_passes == pytest.approx(40 / 60, abs=0.11)  # three rows of each part are looked at


def test_a_named_solver_costs_more_and_a_schedule_its_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(Gradients, "row_space", 0)
    manifest = replace(toy_manifest(60), split=("train",) * 40 + ("test",) * 20)
    said = {}
    for solver in (None, "newton", "adam"):
        options = Options(cache=tmp_path, folds=3, batch_size=16, solver=solver)
        recipe = gradient_features(Gradients(("conv2*",)))
        ready = prepare(manifest, toy_network(), method=recipe, options=options, ledger=Ledger())
        said[solver] = {cost.stage: cost.flops for cost in estimate(ready, options).costs}["solve"]
    assert said["newton"] == pytest.approx(3 * said[None], rel=1e-6)
    # 80,000 steps of min(64, 40) rows, forward and back, beside 5 products of 40 rows
    assert said["adam"] == pytest.approx(80_000 * 2 / 5 * said[None], rel=1e-6)


def test_the_bytes_of_gradient_features_are_foreseen(tmp_path):
    manifest = replace(toy_manifest(60), split=("train",) * 40 + ("test",) * 20)
    options = Options(cache=tmp_path, folds=3, batch_size=16)
    recipe = gradient_features(Gradients(("conv2*",)))
    said = estimate(prepare(manifest, toy_network(), method=recipe, options=options), options).artifact_bytes
    run = regraft.adapt(manifest, toy_network(), method=recipe, options=options)
    kept = run.record.figures["price"]["rows"][0]["stored_bytes"]
    assert said == pytest.approx(kept, rel=0.1)
