"""Training behind layers that stay: the same training, without computing again what never changes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.features.test_tangent import Keeping
from tests.features.toy import toy_arrays, toy_manifest
from tests.graft.training.test_finetune import Normed, many_taps, normed, own_head
from tests.graft.training.test_live import live

from regraft.data import scan
from regraft.features.tangent.replay import Kept
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.objective import Objective
from regraft.graft.loop.train import Loop, Optimiser, TrainConfig
from regraft.graft.problem import Task
from regraft.graft.stages.augment import Augment
from regraft.graft.stages.config import Tuning
from regraft.graft.training import behind as module_of_behind
from regraft.graft.training.behind import KeptRows, behind
from regraft.graft.training.finetune import finetune, grafted, training
from regraft.graft.training.grafted import Grafted
from regraft.graft.training.instruments import Instruments
from regraft.graft.training.price import price, step_flops
from regraft.graft.training.trial import Work
from regraft.network import About, ArrayPreprocess, Network

BELOW = ("stem.*", "blocks.0.*")
CONFIG = TrainConfig(steps=12, batch_size=10, optimiser=Optimiser(lr=0.05), seed=3)


class Keeps(Normed):
    """What a layer that stays keeps on itself is read there by what follows."""

    def __init__(self):
        super().__init__()
        self.blocks[0] = Keeping()

    def forward(self, x):
        return self.fc((self.blocks[1](self.blocks[0](self.stem(x))) + self.blocks[0].kept).mean((2, 3)))


def rows_of(adapted, manifest=None, augment=None):
    return ManifestRows.of(adapted.network, manifest or toy_manifest(33), augment)


def task_of(manifest):
    return Task(manifest.target, None, "accuracy", seed=2)


@pytest.fixture
def whole(monkeypatch):
    """Training through the whole network all the same."""
    return lambda: monkeypatch.setattr(module_of_behind, "MEMORY", 0)


@pytest.mark.parametrize("layout", [False, True])
@pytest.mark.parametrize(
    "tuning",
    [
        Tuning(freeze=BELOW),
        Tuning(norms="trained", freeze=BELOW),
        Tuning(norms="trained", dropout=True, freeze=BELOW),
        Tuning(freeze=("stem.*", "blocks.*")),
        Tuning(norms="trained", freeze=("stem.*", "blocks.0.conv.*")),  # whose statistics follow the batches
    ],
)
def test_it_is_the_training_through_the_whole_network(tuning, layout, whole, monkeypatch):
    monkeypatch.setattr("regraft.network.Network.channels_last", layout)
    manifest, adapted = toy_manifest(33), own_head(normed())
    assert isinstance(behind(Grafted(adapted, tuning), rows_of(adapted)), KeptRows)
    kept = finetune(adapted, manifest, CONFIG, tuning=tuning)
    whole()
    expected = finetune(adapted, manifest, CONFIG, tuning=tuning)
    assert expected.passes == 99
    assert kept.passes <= 99 or tuning.dropout  # with it the blocks, whose forward pass is their own, run in every step
    assert kept.flops < expected.flops
    for mine, theirs in ((kept.adapted.network.params, expected.adapted.network.params),
                         (kept.adapted.network.buffers, expected.adapted.network.buffers)):  # fmt: skip
        for name, value in theirs.items():
            torch.testing.assert_close(mine[name], value, atol=1e-6, rtol=1e-5)
    for pattern in tuning.freeze:
        for name in adapted.network.select(pattern):
            assert torch.equal(kept.adapted.network.params[name], adapted.network.params[name])
    assert [e.loss for e in kept.outcome.history] == pytest.approx([e.loss for e in expected.outcome.history], rel=1e-5)


class Between(torch.nn.Module):
    """Two layers that stay, and what is left out between them by the module's own flag."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(12, 12), torch.nn.Linear(12, 12)

    def forward(self, x):
        return self.second(torch.nn.functional.dropout(self.first(x), 0.5, self.training))


class NormPlaced(torch.nn.Module):
    """A table that is handed on as it is, written into, and added to every row."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.below = torch.nn.ModuleList([torch.nn.Embedding(1, 108), torch.nn.Dropout(0.0)])
        self.flat, self.above, self.fc = torch.nn.Flatten(), torch.nn.Linear(108, 12), torch.nn.Linear(12, 3)

    def forward(self, x):
        place = self.below[1](self.below[0](torch.zeros(1, dtype=torch.long)))
        return self.fc(self.above(self.flat(x) + place.mul_(2)).tanh())


def sequence(middle):
    """Layers in a row, ``middle`` among the lower ones, with the statistics of batches of its own data."""
    torch.manual_seed(0)
    below = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(108, 12), middle, torch.nn.ReLU())
    above = torch.nn.Sequential(torch.nn.Linear(12, 12), torch.nn.BatchNorm1d(12), torch.nn.ReLU())
    module = torch.nn.Sequential(OrderedDict(below=below, above=above, fc=torch.nn.Linear(12, 3)))
    for _ in range(30):
        module.train()(torch.randn(50, 3, 6, 6))
    return Network("sequence", module.eval(), ArrayPreprocess((3, 6, 6)), About("module"))


@pytest.mark.parametrize(
    ("middle", "tuning", "followed"),
    [
        (torch.nn.BatchNorm1d(12, affine=False), Tuning(norms="trained", freeze=("below.1.*",)), True),
        (torch.nn.BatchNorm1d(12, affine=False), Tuning(norms="trained", freeze=("below.*",)), False),
        (torch.nn.Dropout(0.5), Tuning(norms="trained", dropout=True, freeze=("below.*",)), None),
        (torch.nn.Dropout(0.0, inplace=True), Tuning(dropout=True, freeze=("below.*",)), None),
        (Between(), Tuning(dropout=True, freeze=("below.*",)), None),
    ],
)
def test_what_does_not_stay_among_layers_that_do_is_run_in_every_step(middle, tuning, followed, whole):
    adapted = own_head(sequence(middle))
    found = compared(adapted, tuning, whole)
    for name in ("below.2.running_mean", "below.2.running_var") if followed is not None else ():
        assert torch.equal(found.buffers[name], adapted.network.buffers[name]) != followed


def test_what_is_handed_on_as_it_is_may_be_written_into(whole):
    placed = own_head(Network("placed", NormPlaced(), ArrayPreprocess((3, 6, 6)), About("module")))
    compared(placed, Tuning(dropout=True, freeze=("below.*",)), whole)


def compared(adapted, tuning, whole):
    """Trained behind what stays and through the whole network, which is the same network; that one."""
    assert isinstance(behind(Grafted(adapted, tuning), rows_of(adapted)), KeptRows)
    found = []
    for before in (lambda: None, whole):
        before()
        found.append(finetune(adapted, toy_manifest(33), CONFIG, tuning=tuning))
    mine, theirs = (tuned.adapted.network for tuned in found)
    for name, value in {**theirs.params, **theirs.buffers}.items():
        torch.testing.assert_close({**mine.params, **mine.buffers}[name], value, atol=1e-6, rtol=1e-5, msg=name)
    losses = [[epoch.loss for epoch in tuned.outcome.history] for tuned in found]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    return theirs


def test_each_row_passes_the_layers_that_stay_once(monkeypatch):
    adapted, manifest, rows, seen = own_head(normed()), toy_manifest(33), [], torch.nn.Conv2d.forward

    def count(self, x):
        if self.in_channels == 3:
            rows.append(len(x))
        return seen(self, x)

    monkeypatch.setattr(torch.nn.Conv2d, "forward", count)
    module = grafted(adapted, task_of(manifest), Tuning(freeze=BELOW))
    run = training(module, rows_of(adapted, manifest), CONFIG, Objective.of(task_of(manifest)), None, None)
    assert sum(rows) < 33  # a few looks at three rows
    rows.clear()
    run.advance()
    assert sum(rows) == 33
    assert run.rows.recorded == 33


def test_trainings_of_some_of_the_rows_share_the_pass():
    manifest, adapted, tuning = toy_manifest(33), own_head(normed()), Tuning(freeze=BELOW)
    rows, some = rows_of(adapted, manifest), np.arange(4, 24)
    part = manifest.take(some)

    def trained(begin, given):
        module = grafted(begin, task_of(part), tuning)
        run = training(module, given, CONFIG, Objective.of(task_of(part)), None, None)
        run.advance()
        return run.rows.recorded, {name: value.clone() for name, value in module.state_dict().items()}

    first, again = (trained(adapted, rows.take(some)) for _ in range(2))
    apart = trained(adapted, rows_of(adapted, part))
    other = trained(own_head(normed(seed=1)), rows.take(some))
    assert [found[0] for found in (first, again, apart, other)] == [33, 0, 20, 33]
    assert len(rows.kept) == 1  # the other network's
    for name, value in first[1].items():
        assert torch.equal(again[1][name], value), name
        torch.testing.assert_close(apart[1][name], value, atol=1e-6, rtol=1e-5)


def test_a_run_that_was_cut_goes_on_bit_for_bit(tmp_path):
    manifest, adapted, tuning = toy_manifest(33), own_head(normed()), Tuning(norms="trained", freeze=BELOW)

    def begun(folder):
        module = grafted(adapted, task_of(manifest), tuning)
        run = training(module, rows_of(adapted, manifest), CONFIG, Objective.of(task_of(manifest)), None, folder)
        run.open()
        return module, run

    straight, run = begun(None)
    run.advance()
    begun(tmp_path)[1].advance(5)
    again, run = begun(tmp_path)
    assert run.step == 5
    run.advance()
    for name, value in straight.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_what_looks_on_sees_the_same(whole):
    manifest, adapted, seen = toy_manifest(33), own_head(normed()), []
    for before in (lambda: None, whole):
        before()
        watch = Instruments("all", 0)
        finetune(adapted, manifest, CONFIG, tuning=Tuning(freeze=BELOW), watch=watch)
        seen.append({name: watch.state()[1][name] for name in ("kernel", "drift")})
    kept, expected = seen
    assert [note["epoch"] for note in expected["kernel"]] == [0, 1, 3]
    for name, notes in expected.items():
        for mine, theirs in zip(kept[name], notes, strict=True):
            known = {key: value for key, value in theirs.items() if value is not None}
            assert {key: mine[key] for key in known} == pytest.approx(known, rel=1e-4)


def test_parts_of_a_batch_are_the_batch():
    manifest, adapted = toy_manifest(33), own_head(normed())
    found = [
        finetune(adapted, manifest, replace(CONFIG, loop=Loop(accumulate=count)), tuning=Tuning(freeze=BELOW)).adapted
        for count in (1, 3)
    ]
    for name, value in found[0].network.params.items():
        torch.testing.assert_close(found[1].network.params[name], value, atol=1e-6, rtol=1e-5)


def test_what_cannot_be_kept_is_computed_each_time(whole):
    adapted, manifest = own_head(normed()), toy_manifest(33)
    rows, below = rows_of(adapted), Tuning(freeze=BELOW)
    for tuning in (Tuning(), Tuning(freeze=("blocks.1.*",)), Tuning(norms="trained", freeze=("blocks.1.conv.*",))):
        assert behind(Grafted(adapted, tuning), rows) is rows, tuning
    images = own_head(normed(images=True))
    pictures = replace(rows_of(images, _pictures()), augment=Augment(flip=True))
    assert behind(Grafted(images, below), pictures) is pictures
    assert isinstance(behind(Grafted(images, below), replace(pictures, augment=Augment())), KeptRows)
    inside = many_taps(normed(), "none", columns=False)  # a head that reads what lies inside of the layers that stay
    assert behind(Grafted(inside, below), rows) is rows
    both = [finetune(inside, replace(manifest, target=replace(manifest.target, classes=("a", "b", "c"))), CONFIG,
                     tuning=below).adapted for _ in range(2)]  # fmt: skip
    assert torch.equal(both[0].network.params["blocks.1.conv.weight"], both[1].network.params["blocks.1.conv.weight"])
    keeping = own_head(Network("keeping", Keeps(), ArrayPreprocess((3, 6, 6)), About("module")))
    assert behind(Grafted(keeping, Tuning(freeze=("stem.*",))), rows) is rows
    whole()
    assert behind(Grafted(adapted, below), rows) is rows


class Clipping(torch.nn.Module):
    """Hands on what it is given, but for batches with numbers beyond a limit."""

    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def forward(self, x):
        return x.clamp(-self.limit, self.limit) if (x.abs() > self.limit).any() else x


def test_rows_that_take_several_paths_are_passed_whole_each_time(whole):
    manifest, module = toy_manifest(33), normed().module
    first = torch.from_numpy(toy_arrays(33)[0][[0, 16, 32]])  # those that are looked at beforehand are not clipped
    module.blocks[0] = Clipping(float(module.stem(first).abs().max()) * 1.001)
    adapted = own_head(Network("clipped", module, ArrayPreprocess((3, 6, 6)), About("module")))
    rows, tuning = rows_of(adapted), Tuning(freeze=("stem.*",))
    given = behind(Grafted(adapted, tuning), rows)
    assert isinstance(given, KeptRows)
    assert torch.equal(given.inputs(torch.tensor([4, 2])), rows.inputs(torch.tensor([4, 2])))
    assert (given.recorded, given.at_once) == (33, given.module.at_once)
    again = behind(Grafted(adapted, tuning), rows)
    assert torch.equal(again.inputs(torch.tensor([1])), rows.inputs(torch.tensor([1])))
    assert again.recorded == 0
    found = finetune(adapted, manifest, CONFIG, tuning=tuning)
    whole()
    expected = finetune(adapted, manifest, CONFIG, tuning=tuning)
    assert [e.loss for e in found.outcome.history] == [e.loss for e in expected.outcome.history]
    assert found.passes == expected.passes + 33


def test_no_more_is_kept_than_there_is_room_for(monkeypatch):
    adapted = own_head(normed())
    rows, module = rows_of(adapted), Grafted(adapted, Tuning(freeze=BELOW))
    monkeypatch.setattr(module_of_behind, "MEMORY", 33 * 6 * 6 * 6 * 4)
    kept = behind(module, rows)
    assert isinstance(kept, KeptRows)
    batch = kept.inputs(torch.tensor([4, 2]))
    assert isinstance(batch, Kept)
    assert [tuple(value.shape) for value in batch.values] == [(2, 6, 6, 6)]
    torch.testing.assert_close(module(batch), module(rows.inputs(torch.tensor([4, 2]))))
    assert behind(Grafted(adapted, Tuning(freeze=BELOW)), rows, 34) is rows


def test_the_price_is_that_of_the_rest_and_of_one_pass():
    adapted = own_head(normed())
    rows, module = rows_of(adapted), Grafted(adapted, Tuning(freeze=BELOW))
    kept = behind(module, rows)
    kept.inputs(torch.tensor([0]))
    found = price(module, rows, kept)
    assert (found.rows, found.whole) == (33, step_flops(module, rows))
    positions, weights = 36, 6 * 6 * 9
    # the last convolution forward and by its weights, for nothing below it asks for a gradient; the head three times,
    # and the one that came with the network forward
    assert found.step == 2 * 2 * positions * weights + (3 + 1) * 2 * 6 * 3
    assert found.of(330) == (33 + round(330 * found.step / found.whole), 330 * found.step + 33 * found.whole // 3)
    assert found.of(0) == (0, 0)
    assert price(module, rows, rows).of(10) == (10, 10 * found.whole)


def test_blocks_that_are_probed_with_the_head_pass_alone(tmp_path, whole):
    works = [Work(tmp_path / "kept"), Work(tmp_path / "whole")]
    kept = live(tmp_path / "kept", anew=("blocks.1",), work=works[0]).by_tau[3]
    whole()
    expected = live(tmp_path / "whole", anew=("blocks.1",), work=works[1]).by_tau[3]
    for name, value in expected.network.params.items():
        torch.testing.assert_close(kept.network.params[name], value, atol=1e-6, rtol=1e-5)
    assert works[1].rows == 180
    assert 60 < works[0].rows < 180
    assert works[0].flops < works[1].flops


def _pictures():
    pixels = np.random.default_rng(0).integers(0, 255, (33, 8, 8, 3), dtype=np.uint8)
    return scan((pixels, [f"class {i % 3}" for i in range(33)]))
