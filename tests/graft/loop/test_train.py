"""The training loop against hand-written gradient descent, and its resume against an undisturbed run."""

from __future__ import annotations

import copy
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor, nn

from regraft.errors import ArtifactError, DataError, ModelError, RecipeError, RegraftError, SolverError
from regraft.graft.loop.objective import Objective
from regraft.graft.loop.outputs import logits
from regraft.graft.loop.rows import order
from regraft.graft.loop.train import (
    DivergedError,
    ImageRows,
    Loop,
    Optimiser,
    Schedule,
    TrainConfig,
    Training,
    tensor_digest,
    train,
)
from regraft.graft.stages.augment import Augment, uniforms
from regraft.heads import Response

CONFIG = TrainConfig(epochs=3, batch_size=8, optimiser=Optimiser(lr=0.05), schedule=Schedule(warmup=2), seed=5)


def toy_rows(rows: int = 30, augment: Augment | None = None) -> ImageRows:
    """Three classes: a bright stripe at the top, in the middle, below, in noise."""
    rng = np.random.default_rng(0)
    labels = np.arange(rows) % 3
    pixels = rng.integers(0, 120, (rows, 1, 6, 6), dtype=np.uint8)
    for row, label in enumerate(labels):
        pixels[row, 0, 2 * label] += 120
    return ImageRows(torch.from_numpy(pixels), torch.from_numpy(labels), (0.3,), (0.3,), augment)


def toy_module(seed: int = 1) -> nn.Module:
    """BatchNorm has buffers and dropout draws random numbers: both must survive a resume."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3),
            nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(36, 3),
        )  # fmt: skip


class Stop(Exception):
    """An interruption."""


# ------------------------------------------------------------------------------------------ the mathematics


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, True), (0.9, False), (0.9, True)])
def test_it_is_gradient_descent_on_the_mean_cross_entropy(momentum: float, nesterov: bool) -> None:
    rows = toy_rows()
    config = TrainConfig(
        steps=7, batch_size=8, label_smoothing=0.2, seed=3, schedule=Schedule("step", milestones=(0.5,), factor=0.3),
        optimiser=Optimiser(lr=0.2, momentum=momentum, weight_decay=0.01, nesterov=nesterov),
    )  # fmt: skip
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    weight, bias = (p.detach().double().numpy().copy() for p in module.parameters())
    outcome = train(module, rows, config)

    x = logits(nn.Flatten(), rows).double().numpy()
    y = np.eye(3)[rows.labels.numpy()] * 0.8 + 0.2 / 3
    velocity = [np.zeros_like(weight), np.zeros_like(bias)]
    batches = [batch.numpy() for epoch in (0, 1) for batch in order(30, 3, epoch, 4)][:7]
    losses = []
    for step, batch in enumerate(batches):
        z = x[batch] @ weight.T + bias
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        losses.append(-(y[batch] * np.log(p)).sum(1).mean())
        error = (p - y[batch]) / len(batch)
        rate = 0.2 * (0.3 if step >= 3.5 else 1.0)
        for index, (value, gradient) in enumerate(((weight, error.T @ x[batch]), (bias, error.sum(0)))):
            gradient = gradient + 0.01 * value
            velocity[index] = momentum * velocity[index] + gradient
            value -= rate * (gradient + momentum * velocity[index] if nesterov else velocity[index])
    got = [p.detach().double().numpy() for p in module.parameters()]
    np.testing.assert_allclose(got[0], weight, atol=2e-6)
    np.testing.assert_allclose(got[1], bias, atol=2e-6)
    sizes = [len(batch) for batch in batches]
    assert outcome.history[0].loss == pytest.approx(np.average(losses[:4], weights=sizes[:4]), rel=1e-5)
    assert outcome.history[1].loss == pytest.approx(np.average(losses[4:], weights=sizes[4:]), rel=1e-5)
    assert (outcome.status, outcome.steps, len(outcome.history)) == ("completed", 7, 2)


class Sparse(ImageRows):
    """Two labels a row, many of them missing, and rows with none."""

    def __init__(self) -> None:
        base = toy_rows(24)
        super().__init__(base.pixels, base.labels)
        rng = np.random.default_rng(4)
        values = rng.integers(0, 2, (24, 3)).astype(np.float32)
        values[rng.random((24, 3)) < 0.6] = np.nan
        self.labels = torch.from_numpy(values)


class Masked(ImageRows):
    """A mask a row, most pixels without a label."""

    def __init__(self) -> None:
        base = toy_rows(24)
        super().__init__(base.pixels, base.labels)
        rng = np.random.default_rng(4)
        masks = rng.integers(0, 3, (24, 6, 6))
        masks[rng.random((24, 6, 6)) < 0.3 + 0.6 * (np.arange(24) % 2)[:, None, None]] = -1
        self.labels = torch.from_numpy(masks)


@pytest.mark.parametrize(
    ("rows", "objective", "module"),
    [
        (Sparse(), Objective("multilabel", "map"), nn.Sequential(nn.Flatten(), nn.Linear(36, 3))),
        (Sparse(), Objective("regression", "r2"), nn.Sequential(nn.Flatten(), nn.Linear(36, 3))),
        (Masked(), Objective("segmentation", "miou"), nn.Conv2d(1, 3, 3, padding=1)),
    ],
)
def test_parts_of_a_batch_weigh_what_they_hold(rows: ImageRows, objective: Objective, module: nn.Module) -> None:
    """Where labels are missing the mean over a batch is not that of its parts' means."""
    ends = []
    for count in (1, 3):
        one = copy.deepcopy(module)
        config = TrainConfig(steps=4, batch_size=12, optimiser=Optimiser(lr=0.5), seed=3, loop=Loop(accumulate=count))
        outcome = train(one, rows, config, objective=objective)
        ends.append((outcome.history[-1].loss, *one.parameters()))
    assert ends[1][0] == pytest.approx(ends[0][0], rel=1e-5)
    for whole, parted in zip(ends[0][1:], ends[1][1:]):
        torch.testing.assert_close(parted, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("at_once", [1, 5, 12])
def test_rows_that_pass_at_once_change_no_step(at_once: int) -> None:
    """Nor what is said of rows afterwards: a batch is passed in as few portions as the module asks for."""
    torch.manual_seed(0)
    start, ends, passed = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), [], []
    config = TrainConfig(steps=3, batch_size=12, optimiser=Optimiser(lr=0.5), seed=3)
    for rows in (None, at_once):
        module = copy.deepcopy(start)
        if rows is not None:
            module.at_once = rows
            module.register_forward_hook(lambda _module, args, _out: passed.append(len(args[0])))
        outcome = train(module, toy_rows(24), config, validation=toy_rows(24))
        losses = torch.tensor([epoch.loss for epoch in outcome.history])
        ends.append([losses, logits(module, toy_rows(7)), *module.parameters()])
    for whole, parted in zip(*ends):
        torch.testing.assert_close(parted, whole, rtol=1e-5, atol=1e-6)
    assert max(passed) <= at_once
    first = passed[: math.ceil(12 / at_once)]
    assert sum(first) == 12
    assert max(first) - min(first) <= 1


def test_losses_have_their_closed_forms() -> None:
    """In plain numpy, of every kind: smoothed, weighted, over the labels and values that are there."""
    rng = np.random.default_rng(0)
    f, s = rng.normal(size=(7, 3)), 0.2
    outputs, w = torch.from_numpy(f), np.array([0.5, 1.0, 2.0])
    codes = rng.integers(0, 3, 7)
    logs = f - np.log(np.exp(f).sum(1, keepdims=True))
    target = (1 - s) * np.eye(3)[codes] + s / 3
    rows = -(target * logs).sum(1)
    classes = Objective("multiclass")
    assert float(classes.loss(outputs, torch.from_numpy(codes), s)) == pytest.approx(rows.mean())
    weighted = Objective("multiclass", weights=torch.from_numpy(w))
    expected = (w[codes] * -(target * logs).sum(1)).mean()  # of the batch's rows, whatever their weights sum to
    assert float(weighted.loss(outputs, torch.from_numpy(codes), s)) == pytest.approx(expected)

    values = rng.integers(0, 2, (7, 3)).astype(float)
    values[rng.random((7, 3)) < 0.4] = np.nan
    there, ones = ~np.isnan(values), np.nan_to_num(values)
    smoothed = (1 - s) * ones + s / 2  # each label is one of two classes
    each = -(smoothed * -np.log1p(np.exp(-f)) + (1 - smoothed) * -np.log1p(np.exp(f)))
    labels = Objective("multilabel", "map")
    assert float(labels.loss(outputs, torch.from_numpy(values), s)) == pytest.approx(each[there].mean())
    table = rng.uniform(0.5, 2, (2, 3))  # of zeros and of ones
    each = each * np.where(ones > 0.5, table[1], table[0])
    labels = Objective("multilabel", "map", torch.from_numpy(table))
    assert float(labels.loss(outputs, torch.from_numpy(values), s)) == pytest.approx(each[there].mean())
    assert labels.amount(torch.from_numpy(values)) == there.sum()

    spread = np.array([0.1, 1.0, 10.0])
    numbers = Objective("regression", "r2", spread=torch.from_numpy(spread))
    expected = (((f - ones) / spread) ** 2)[there].mean()
    assert float(numbers.loss(outputs, torch.from_numpy(values), s)) == pytest.approx(expected)


def test_balanced_weights_are_scikit_learns() -> None:
    """n / (C n_c) over the classes that occur; of a label, its ones against its zeros over the rows that have it."""
    codes = np.array([0, 0, 0, 0, 2, 2, 3])
    response = Response.of("multiclass", tuple("abcd"), codes)
    found = Objective.of(SimpleNamespace(kind="multiclass", metric="f1", class_weight="balanced", response=response))
    expected = compute_class_weight("balanced", classes=np.unique(codes), y=codes)
    assert found.weights[[0, 2, 3]].tolist() == pytest.approx(expected.tolist())
    values = np.array([[1, 0], [0, 0], [0, np.nan], [0, 1], [np.nan, 0]], dtype=float)
    response = Response.of("multilabel", ("a", "b"), values)
    found = Objective.of(SimpleNamespace(kind="multilabel", metric="map", class_weight="balanced", response=response))
    for column in range(2):
        known = values[~np.isnan(values[:, column]), column]
        expected = compute_class_weight("balanced", classes=np.array([0.0, 1.0]), y=known)
        assert found.weights[:, column].tolist() == pytest.approx(expected.tolist())
    named = SimpleNamespace(kind="multilabel", metric="map", class_weight={"b": 3.0}, response=response)
    assert Objective.of(named).weights.tolist() == [[1.0, 1.0], [1.0, 3.0]]  # of its ones
    for wrong in ({"nope": 1.0}, {"b": -3.0}, "even"):
        with pytest.raises(SolverError, match="class weight"):
            Objective.of(SimpleNamespace(kind="multilabel", metric="map", class_weight=wrong, response=response))


def test_a_part_of_one_row_is_refused_where_its_statistics_would_normalise_it() -> None:
    config = TrainConfig(steps=2, batch_size=4, loop=Loop(accumulate=3))
    with pytest.raises(RecipeError, match="too small for BatchNorm"):
        train(toy_module(), toy_rows(), config)
    frozen = toy_module()
    frozen[1].train = lambda mode=True: nn.Module.train(frozen[1], False)  # as a frozen one stays
    assert train(frozen, toy_rows(), config).status == "completed"


def test_a_batch_of_one_row_is_refused_where_it_is_one_value_of_a_channel() -> None:
    def module(norm: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 6), norm, nn.Linear(6, 3))

    ones = TrainConfig(steps=2, batch_size=1)
    before = module(nn.BatchNorm1d(6))
    weights = tensor_digest(before.state_dict())
    with pytest.raises(RecipeError, match=r"a batch is too small for BatchNorm.*at least 2 rows a batch; got 1"):
        train(before, toy_rows(), ones)
    assert tensor_digest(before.state_dict()) == weights
    for fine in (toy_module(), module(nn.LayerNorm(6))):  # a map has many values, other statistics are of one row
        assert train(fine, toy_rows(), ones).status == "completed"
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(1, 3))
    with pytest.raises(RecipeError, match="too small for BatchNorm"):
        train(pooled, toy_rows(), ones)
    pairs = TrainConfig(epochs=2, batch_size=2, optimiser=Optimiser(lr=0.01))
    outcome = train(module(nn.BatchNorm1d(6)), toy_rows(9), pairs)  # two, two, two and three
    assert (outcome.status, outcome.steps) == ("completed", 8)


def test_no_batch_of_one_row_is_left_over() -> None:
    for size in range(1, 9):
        for rows in range(2, 60):
            config = TrainConfig(epochs=1, batch_size=size)
            found = [len(batch) for batch in order(rows, 0, 0, config.batches(rows))]
            assert sum(found) == rows
            assert max(found) - min(found) <= 1
            assert max(found) <= max(size, 3 if size == 2 and rows % 2 else 0)
            assert min(found) >= min(size, 2)


def test_schedules_have_their_closed_forms() -> None:
    cosine = Schedule("cosine", warmup=4)
    assert [cosine.scale(t, 24) for t in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert cosine.scale(4, 24) == 1.0
    assert cosine.scale(14, 24) == pytest.approx(0.5)
    assert cosine.scale(23, 24) == pytest.approx((1 + math.cos(math.pi * 19 / 20)) / 2)
    assert [cosine.scale(t, 4) for t in range(4)] == pytest.approx([1 / 3, 2 / 3, 1.0, 0.5])  # half of the run at most
    step = Schedule("step", milestones=(0.5, 0.75), factor=0.1)
    assert [step.scale(t, 8) for t in range(8)] == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])
    assert {Schedule("constant").scale(t, 9) for t in range(9)} == {1.0}


def test_it_learns() -> None:
    module, rows = toy_module(), toy_rows(90)
    accuracy = lambda: float((logits(module, rows).argmax(1) == rows.labels).double().mean())  # noqa: E731
    before = accuracy()
    outcome = train(module, rows, TrainConfig(epochs=12, batch_size=16, optimiser=Optimiser(lr=0.05)), validation=rows)
    assert before < 0.7
    assert accuracy() > 0.95
    assert outcome.history[-1].validation_score == pytest.approx(accuracy(), abs=1e-12)
    assert not module.training


def test_a_module_that_writes_over_what_its_gradient_needs_is_told_so() -> None:
    class WritingOver(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).exp_().add_(1).mul_(2)

    with pytest.raises(ModelError, match="the network writes over values that its derivatives need"):
        train(WritingOver(nn.Flatten(), nn.Linear(36, 3)), toy_rows(), CONFIG)


# ------------------------------------------------------------------------------ order, draws, augmentation


def test_an_epoch_visits_every_row_once_in_an_order_of_seed_and_epoch() -> None:
    batches = order(103, seed=1, epoch=2, batches=10)
    assert sorted(torch.cat(batches).tolist()) == list(range(103))
    assert {len(batch) for batch in batches} == {10, 11}
    assert torch.equal(torch.cat(batches), torch.cat(order(103, 1, 2, 10)))
    assert not torch.equal(torch.cat(batches), torch.cat(order(103, 1, 3, 10)))
    assert not torch.equal(torch.cat(batches), torch.cat(order(103, 2, 2, 10)))


def test_draws_are_uniform_and_a_function_of_row_epoch_and_seed() -> None:
    rows = np.arange(5000)
    draws = uniforms(rows, epoch=4, seed=9, count=3)
    assert draws.shape == (5000, 3)
    for column in draws.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-4
    correlations = np.corrcoef(np.concatenate([draws.T, uniforms(rows, 5, 9, 3).T, uniforms(rows, 4, 10, 3).T]))
    assert np.abs(correlations - np.eye(9)).max() < 0.07
    some = np.array([4711, 3, 77])
    np.testing.assert_array_equal(uniforms(some, 4, 9, 3), draws[some])
    np.testing.assert_array_equal(uniforms(some, 4, 9, 1), draws[some, :1])


def test_augmentation_is_a_shift_and_a_flip_decided_by_row_epoch_and_seed() -> None:
    augment = Augment(shift=2, flip=True)
    pixels = torch.from_numpy(np.random.default_rng(0).integers(1, 255, (40, 3, 7, 9), dtype=np.uint8))
    rows = torch.arange(100, 140)
    out = augment(pixels, rows, epoch=3, seed=8)
    draws = uniforms(rows.numpy(), 3, 8, 3)
    for row in range(40):
        down, across = (int(u * 5) - 2 for u in draws[row, :2])
        expected = torch.zeros_like(pixels[row])
        for i in range(7):
            for j in range(9):
                if 0 <= i + down < 7 and 0 <= j + across < 9:
                    expected[:, i, j] = pixels[row, :, i + down, j + across]
        assert torch.equal(out[row], expected.flip(-1) if draws[row, 2] < 0.5 else expected), row
    assert torch.equal(augment(pixels[[7, 3]], rows[[7, 3]], 3, 8), out[[7, 3]])  # whatever the batch
    assert not torch.equal(augment(pixels, rows, 4, 8), out)
    assert not torch.equal(augment(pixels, rows, 3, 9), out)
    assert torch.equal(Augment()(pixels, rows, 3, 8), pixels)


def test_masks_change_as_their_images_do() -> None:
    masks = torch.randint(0, 5, (40, 9, 11), dtype=torch.int16).repeat_interleave(4, 1).repeat_interleave(4, 2)
    images, rows = (masks + 1)[:, None].to(torch.uint8), torch.arange(40)
    moved = Augment(shift=5, flip=True)
    assert torch.equal(moved.masks(masks, rows, 3, 8) + 1, moved(images, rows, 3, 8)[:, 0].to(torch.int16))
    assert bool((moved.masks(masks, rows, 3, 8) == -1).any())  # what comes in has no label
    cropped = Augment(crop=0.5)
    same = cropped.masks(masks, rows, 3, 8) + 1 == cropped(images, rows, 3, 8)[:, 0]
    assert same.float().mean() > 0.7  # but between two areas, where images are blended
    assert set(cropped.masks(masks, rows, 3, 8).unique().tolist()) == set(range(5))


def test_rows_are_normalised_and_only_training_is_augmented() -> None:
    rows = toy_rows(augment=Augment(shift=1))
    index = torch.tensor([4, 9])
    plain = (rows.pixels[index].float() / 255 - 0.3) / 0.3
    torch.testing.assert_close(rows.inputs(index), plain)
    shifted = (rows.augment(rows.pixels[index], index, 2, 5).float() / 255 - 0.3) / 0.3
    torch.testing.assert_close(rows.inputs(index, epoch=2, seed=5), shifted)
    assert len({rows.key, toy_rows().key, toy_rows(33).key}) == 3


# ---------------------------------------------------------------------------------- the same bytes again


def _trained(**more: object) -> tuple[nn.Module, object]:
    module = toy_module()
    return module, train(module, toy_rows(augment=Augment(1, True)), CONFIG, validation=toy_rows(24), **more)  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_bytes_and_leaves_the_callers_randomness_alone() -> None:
    torch.manual_seed(77)
    before = torch.get_rng_state()
    first, outcome = _trained()
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(5)
    second, again = _trained()
    assert tensor_digest(first.state_dict()) == tensor_digest(second.state_dict())
    assert outcome == again
    other = toy_module()
    train(other, toy_rows(augment=Augment(1, True)), TrainConfig(epochs=3, batch_size=8, seed=6))
    assert tensor_digest(other.state_dict()) != tensor_digest(first.state_dict())


@pytest.mark.parametrize("stop", [1, 2, 4, 6, 11])  # 4 steps an epoch: inside one, at its end, near the run's
@pytest.mark.parametrize("every_seconds", [0.0, 1e9])  # a checkpoint after each step, or at the ends of epochs
def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path: Path, stop: int, every_seconds: float) -> None:
    reference, expected = _trained()

    def interrupt(step: int, total: int, loss: float) -> None:
        if step == stop:
            raise Stop

    with pytest.raises(Stop):
        _trained(checkpoint=tmp_path, every_seconds=every_seconds, progress=interrupt)
    steps: list[int] = []
    module, outcome = _trained(checkpoint=tmp_path, progress=lambda step, total, loss: steps.append(step))
    assert tensor_digest(module.state_dict()) == tensor_digest(reference.state_dict())
    assert outcome.history == expected.history
    assert outcome.best == expected.best
    assert outcome.resumed == (stop if every_seconds == 0 else stop - stop % 4)
    assert steps == list(range(outcome.resumed + 1, 13))


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first, expected = _trained(checkpoint=tmp_path)
    steps: list[int] = []
    module, outcome = _trained(checkpoint=tmp_path, progress=lambda *step: steps.append(step[0]))
    assert steps == []
    assert outcome.history == expected.history
    assert tensor_digest(module.state_dict()) == tensor_digest(first.state_dict())
    again: list[int] = []
    _trained(checkpoint=tmp_path, resume=False, progress=lambda *step: again.append(step[0]))
    assert again == list(range(1, 13))


CHILD = """
import sys
from pathlib import Path
import torch
sys.path.insert(0, sys.argv[1])
torch.set_num_threads(int(sys.argv[3]))
from test_train import CONFIG, toy_module, toy_rows
from regraft.graft.loop.train import train
from regraft.graft.stages.augment import Augment
def say(step, total, loss):
    print(step, flush=True)
train(toy_module(), toy_rows(augment=Augment(1, True)), CONFIG, validation=toy_rows(24),
      checkpoint=Path(sys.argv[2]), every_seconds=0.0, progress=say)
"""


def test_a_killed_process_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    reference, expected = _trained()
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", CHILD, here, str(tmp_path), str(torch.get_num_threads())]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        for line in child.stdout:
            if int(line) >= 6:
                break
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL
    module, outcome = _trained(checkpoint=tmp_path)
    assert outcome.resumed >= 6
    assert tensor_digest(module.state_dict()) == tensor_digest(reference.state_dict())
    assert outcome.history == expected.history


def test_epochs_are_handed_out_from_the_initial_weights_on() -> None:
    seen: list[tuple[int, str]] = []
    module = toy_module()
    start = tensor_digest(module.state_dict())
    train(module, toy_rows(), CONFIG, on_epoch=lambda epoch, m: seen.append((epoch, tensor_digest(m.state_dict()))))
    assert [epoch for epoch, _ in seen] == [0, 1, 2, 3]
    assert seen[0][1] == start
    assert seen[3][1] == tensor_digest(module.state_dict())
    assert len({key for _, key in seen}) == 4


# ----------------------------------------------------------------------------------------- what goes wrong


class Poisoned(ImageRows):
    """Rows that are NaN from the third epoch on."""

    def inputs(self, index: Tensor, epoch: int | None = None, seed: int = 0) -> Tensor:
        values = super().inputs(index, epoch, seed)
        return values * math.nan if epoch is not None and epoch >= 2 else values


def test_a_loss_that_is_no_number_stops_with_a_sentence_and_the_best_weights(tmp_path: Path) -> None:
    rows = toy_rows()
    poisoned = Poisoned(rows.pixels, rows.labels, (0.3,), (0.3,))
    kept: dict[int, str] = {}
    module = toy_module()
    with pytest.raises(DivergedError) as caught:
        train(module, poisoned, CONFIG, validation=toy_rows(24), checkpoint=tmp_path,
              on_epoch=lambda epoch, m: kept.update({epoch: tensor_digest(m.state_dict())}))  # fmt: skip
    error = caught.value
    assert isinstance(error, RegraftError)
    assert "\n" not in str(error)
    for words in ("the loss became nan at step 9 of 12 (epoch 3", "lower learning rate", "best.safetensors"):
        assert words in str(error)
    assert error.outcome.status == "diverged"
    scores = [epoch.validation_score for epoch in error.outcome.history]
    assert len(scores) == 2
    assert error.outcome.best == 1 + int(np.argmax(scores))
    assert tensor_digest(module.state_dict()) == kept[error.outcome.best]


def test_the_best_weights_are_its_own_where_the_same_run_goes_on_beside_it(tmp_path: Path) -> None:
    rows = toy_rows()
    poisoned = Poisoned(rows.pixels, rows.labels, (0.3,), (0.3,))
    module, best, files, kept = toy_module(), tmp_path / "best.safetensors", [b""], [""]

    def note(epoch: int, m: nn.Module) -> None:
        if epoch > 0:
            files.append(best.read_bytes())
            kept.append(tensor_digest(m.state_dict()))
            best.write_bytes(files[1])  # the other process is in its first epoch still

    with pytest.raises(DivergedError) as caught:
        train(module, poisoned, CONFIG, checkpoint=tmp_path, on_epoch=note)
    assert caught.value.outcome.best == 2
    assert tensor_digest(module.state_dict()) == kept[2] != kept[1]
    with pytest.raises(ArtifactError, match="is not of the best epoch; expected epoch 2; got epoch 1"):
        train(toy_module(), poisoned, CONFIG, checkpoint=tmp_path)
    best.write_bytes(files[2])
    with pytest.raises(DivergedError):
        train(again := toy_module(), poisoned, CONFIG, checkpoint=tmp_path)
    assert tensor_digest(again.state_dict()) == kept[2]


def test_a_learning_rate_that_diverges_never_leaves_a_model_that_is_no_number(tmp_path: Path) -> None:
    config = TrainConfig(epochs=4, batch_size=8, optimiser=Optimiser(lr=1e30), schedule=Schedule("constant"))
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(DivergedError, match=r"training diverged: .* learning rate 1e\+30\); no epoch had ended"):
        train(module, toy_rows(), config, checkpoint=tmp_path)
    assert not (tmp_path / "best.safetensors").exists()


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    rows = toy_rows()
    train(toy_module(), rows, CONFIG, checkpoint=tmp_path)
    others = [
        (toy_module(), rows, TrainConfig(epochs=4, batch_size=8)),
        (toy_module(seed=2), rows, CONFIG),
        (toy_module(), toy_rows(33), CONFIG),
    ]
    for module, other_rows, config in others:
        with pytest.raises(RecipeError, match="belongs to another run"):
            train(module, other_rows, config, checkpoint=tmp_path)


def test_whatever_decides_a_run_is_asked_of_its_checkpoint(tmp_path: Path) -> None:
    """The rates of layers, the rows that score, the loss, what is frozen, how rows are augmented."""
    train(toy_module(), toy_rows(), CONFIG, checkpoint=tmp_path, validation=toy_rows(24))
    half_frozen = toy_module()
    half_frozen[0].weight.requires_grad_(False)
    weighted = Objective(weights=torch.tensor([1.0, 2.0, 1.0]))
    same = {"module": toy_module(), "rows": toy_rows(), "validation": toy_rows(24)}
    for other in (
        {"scales": {"0.weight": 0.5}},
        {"validation": toy_rows(27)},
        {"validation": None},
        {"objective": weighted},
        {"module": half_frozen},
        {"rows": toy_rows(augment=Augment(flip=True))},
    ):
        with pytest.raises(RecipeError, match="belongs to another run"):
            train(**{**same, **other}, config=CONFIG, checkpoint=tmp_path)  # type: ignore[arg-type]
    steps: list[int] = []
    train(**same, config=CONFIG, checkpoint=tmp_path, progress=lambda *step: steps.append(step[0]))  # type: ignore[arg-type]
    assert steps == []


def test_a_digest_tells_names_dtypes_and_shapes_apart() -> None:
    value = torch.arange(6, dtype=torch.int32)
    alike = [{"a": value}, {"b": value}, {"a": value.view(2, 3)}, {"a": value.view(torch.float32)}, {"a": value[:5]}]
    assert len({tensor_digest(tensors) for tensors in alike}) == len(alike)
    assert tensor_digest({"a": value, "b": value}) == tensor_digest({"b": value, "a": value.clone()})


class Told:
    """A loss whose scores are told in advance, one an epoch."""

    key, counts = "told", False

    def __init__(self, scores: list[float]) -> None:
        self.scores = iter(scores)

    def loss(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        return nn.functional.cross_entropy(outputs, labels)

    def amount(self, labels: Tensor) -> int:
        return len(labels)

    def right(self, outputs: Tensor, labels: Tensor) -> float | None:
        return None

    def score(self, outputs: Tensor, labels: Tensor) -> float:
        return next(self.scores)


def test_validation_rows_that_get_no_numbers_stop_the_run_with_the_best_weights() -> None:
    """The outputs of the second epoch's weights, which are numbers themselves, are none."""

    class Fragile(nn.Sequential):
        epochs = 0

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (math.inf if self.epochs == 1 and not self.training else 1.0)

    module = Fragile(nn.Flatten(), nn.Linear(36, 3))
    kept: dict[int, str] = {}

    def count(epoch: int, _: nn.Module) -> None:
        module.epochs = epoch
        kept[epoch] = tensor_digest(module.state_dict())

    with pytest.raises(DivergedError, match=r"an output is no longer finite at step 8 of 12.*\(epoch 1\)") as caught:
        train(module, toy_rows(), CONFIG, validation=toy_rows(24), on_epoch=count)
    outcome = caught.value.outcome
    assert (outcome.status, outcome.best, len(outcome.history)) == ("diverged", 1, 1)
    assert tensor_digest(module.state_dict()) == kept[1]


@pytest.mark.parametrize(
    ("patience", "scores", "best", "ended"),
    [
        (1, [0.3, 0.5, 0.4, 0.9], 2, 3),
        (2, [0.3, 0.5, 0.4, 0.4, 0.9], 2, 4),
        (2, [0.3, 0.5, 0.4, 0.6, 0.5, 0.5], 4, 6),
        (2, [0.5, 0.5, 0.5, 0.9], 1, 3),  # as good is no better
    ],
)
def test_patience_is_counted_from_the_best_epoch(patience: int, scores: list[float], best: int, ended: int) -> None:
    """It stops after so many epochs without a better score, with the weights of the first that was best."""
    kept: dict[int, str] = {}
    module = toy_module()
    config = TrainConfig(epochs=10, batch_size=16, optimiser=Optimiser(lr=0.05), loop=Loop(patience=patience))
    outcome = train(module, toy_rows(), config, objective=Told(scores), validation=toy_rows(6),
                    on_epoch=lambda epoch, m: kept.update({epoch: tensor_digest(m.state_dict())}))  # fmt: skip
    assert (outcome.status, outcome.best, len(outcome.history)) == ("stopped", best, ended)
    assert tensor_digest(module.state_dict()) == kept[best]


@pytest.mark.parametrize("beta", [None, 0.8])
def test_what_stopped_early_is_judged_by_the_weights_that_it_went_back_to(beta: float | None) -> None:
    """A moving average goes back as the weights do."""
    module, rows = toy_module(), toy_rows()
    config = TrainConfig(epochs=10, batch_size=16, optimiser=Optimiser(lr=0.05), loop=Loop(average=beta, patience=2))
    run = Training(module, rows, config, Told([0.5, 0.3, 0.2]), toy_rows(6))
    assert run.advance().best == 1
    with torch.no_grad():
        torch.testing.assert_close(run.outputs(rows), module(rows.inputs(torch.arange(len(rows)))))


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    train(toy_module(), toy_rows(), CONFIG, checkpoint=tmp_path)
    file = tmp_path / "checkpoint.safetensors"
    content = file.read_bytes()
    for bad in (content[:-1], content[:-5] + bytes([content[-5] ^ 1]) + content[-4:], b""):
        file.write_bytes(bad)
        with pytest.raises(ArtifactError, match="is damaged"):
            train(toy_module(), toy_rows(), CONFIG, checkpoint=tmp_path)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "either epochs or steps"),
        ({"epochs": 1, "steps": 1}, "either epochs or steps"),
        ({"epochs": 0}, "at least 1"),
        ({"epochs": 1, "batch_size": 0}, "batch_size is out of range"),
        ({"epochs": 1, "optimiser": Optimiser(lr=-1.0)}, "lr is out of range"),
        ({"epochs": 1, "optimiser": Optimiser(lr=math.nan)}, "lr is out of range"),
        ({"epochs": 1, "label_smoothing": 1.0}, "label_smoothing is out of range"),
        ({"epochs": 1, "schedule": Schedule("linear")}, "cosine, step or constant"),
        ({"steps": 2.5}, "either epochs or steps, a whole number"),
        ({"epochs": "3"}, "got epochs='3'"),
        ({"epochs": 1, "batch_size": "64"}, "batch_size is out of range; expected a whole number"),
        ({"epochs": 1, "optimiser": Optimiser(lr=10**400)}, "lr is out of range"),  # larger than any float
        ({"epochs": 1, "optimiser": Optimiser(clip=math.inf)}, "clip is out of range"),
        ({"epochs": 1, "optimiser": Optimiser(clip="1")}, "clip is out of range; .* got '1'"),
        ({"epochs": 1, "optimiser": Optimiser(weight_decay=math.inf)}, "weight_decay is out of range"),
        ({"epochs": 1, "schedule": Schedule(warmup=math.inf)}, "warmup is out of range; expected a whole number"),
        ({"epochs": 1, "schedule": Schedule(warmup=0.1)}, "warmup is out of range; expected a whole number"),
        ({"epochs": 1, "schedule": Schedule(warmup="3")}, "warmup is out of range"),
        ({"epochs": 1, "schedule": Schedule("step", factor=-1.0)}, "factor is out of range"),
        ({"epochs": 1, "schedule": Schedule(factor=math.nan)}, "factor is out of range"),
        ({"epochs": 1, "schedule": Schedule(milestones=0.5)}, "a milestone is out of range; expected fractions"),
        ({"epochs": 1, "schedule": Schedule(milestones="ab")}, "a milestone is out of range"),
        ({"epochs": 1, "schedule": Schedule(milestones=(-0.2, 0.5))}, "a milestone is out of range"),
        ({"epochs": 1, "schedule": Schedule(milestones=(0.5, 1.5))}, "a milestone is out of range"),
        ({"epochs": 1, "loop": Loop(accumulate=2.5)}, "accumulate is out of range; expected a whole number"),
        ({"epochs": 1, "loop": Loop(patience=1.5)}, "patience is out of range; expected a whole number"),
        ({"epochs": 1, "loop": Loop(average="0.9")}, "average is out of range"),
    ],
)
def test_settings_out_of_range_are_said(settings: dict, sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        TrainConfig(**settings)


def test_rows_that_cannot_be_trained_on_are_said() -> None:
    rows = toy_rows()
    with pytest.raises(DataError, match="at least 2 rows"):
        train(toy_module(), ImageRows(rows.pixels[:1], rows.labels[:1]), CONFIG)
    with pytest.raises(DataError, match="uint8"):
        ImageRows(rows.pixels.float(), rows.labels)
