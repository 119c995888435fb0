"""Steps of AdamW against the formula and against torch, clipping, the moving average, and products in half the bits."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regraft.graft.loop.descent import Average, Descent
from regraft.graft.loop.train import DivergedError, ImageRows, train
from regraft.graft.stages.config import Loop, Optimiser, Schedule, TrainConfig

LR, DECAY, BETAS, STEPS = 0.03, 0.2, (0.8, 0.999), 12
FACTORS = [Schedule(warmup=3).scale(step, STEPS) for step in range(STEPS)]


def two_layers() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def gradients() -> list[list[Tensor]]:
    """Of every step and parameter; some steps far above the norm to which they are clipped, some far below."""
    draw = torch.Generator().manual_seed(3)
    sizes = [10.0 if step % 3 else 0.01 for step in range(STEPS)]
    shapes = [p.shape for p in two_layers().parameters()]
    return [[size * torch.randn(s, generator=draw, dtype=torch.float64) for s in shapes] for size in sizes]


@pytest.mark.parametrize("clip", [None, 0.7])
@pytest.mark.parametrize("restored", [False, True])
def test_adamw_takes_the_steps_of_its_formula_and_of_torch(clip: float | None, restored: bool) -> None:
    """Loshchilov, Hutter (ICLR 2019), Algorithm 2 in float64: at every step, the rates of layers scaled, and with the
    memory written and read again in the middle."""
    module, theirs = two_layers(), two_layers()
    scales = {name: 0.5 for name, _ in module.named_parameters() if name.startswith("0.")}
    config = Optimiser(LR, BETAS[0], DECAY, kind="adamw", clip=clip)
    descent = Descent(module, config, scales)
    reference = torch.optim.AdamW(theirs.parameters(), LR, BETAS, weight_decay=DECAY)
    reference.param_groups = [{**reference.param_groups[0], "params": [p]} for p in theirs.parameters()]
    weights = [p.detach().numpy().copy() for p in two_layers().parameters()]
    first, second = ([np.zeros_like(w) for w in weights] for _ in range(2))
    for step, given in enumerate(gradients()):
        if restored and step == 5:
            kept, descent = descent.tensors(), Descent(module, config, scales)
            descent.restore(kept)
        for own, their, gradient in zip(module.parameters(), theirs.parameters(), given):
            own.grad, their.grad = gradient.clone(), gradient.clone()
        descent.step(FACTORS[step])

        if clip is not None:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        rates = [LR * FACTORS[step] * scales.get(name, 1.0) for name, _ in module.named_parameters()]
        for group, rate in zip(reference.param_groups, rates):
            group["lr"] = rate
        reference.step()

        norm = float(np.sqrt(sum((g.numpy() ** 2).sum() for g in given)))
        share = 1.0 if clip is None or norm <= clip else clip / (norm + 1e-6)
        for i, rate in enumerate(rates):
            g = share * given[i].numpy()
            first[i] = BETAS[0] * first[i] + (1 - BETAS[0]) * g
            second[i] = BETAS[1] * second[i] + (1 - BETAS[1]) * g**2
            unbiased = np.sqrt(second[i] / (1 - BETAS[1] ** (step + 1))) + 1e-8
            weights[i] = weights[i] * (1 - rate * DECAY) - rate * first[i] / (1 - BETAS[0] ** (step + 1)) / unbiased
        for own, their, by_hand in zip(module.parameters(), theirs.parameters(), weights):
            torch.testing.assert_close(own, their, rtol=0, atol=1e-13)
            np.testing.assert_allclose(own.detach().numpy(), by_hand, rtol=0, atol=1e-9)


# ------------------------------------------------------------------------------------------ through the loop


def stripes(rows: int = 48) -> ImageRows:
    """Three classes: a stripe at the top, in the middle, below, in noise."""
    random, labels = np.random.default_rng(0), np.arange(rows) % 3
    pixels = random.integers(0, 120, (rows, 1, 6, 6), dtype=np.uint8)
    for row, label in enumerate(labels):
        pixels[row, 0, 2 * label] += 100
    return ImageRows(torch.from_numpy(pixels), torch.from_numpy(labels), (0.3,), (0.3,))


def convolution() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(),
            nn.Linear(36, 3),
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_no_momentum_is_zero_of_either_type(kind: str) -> None:
    ends = []
    for none in (0, 0.0):
        module = two_layers()
        descent = Descent(module, Optimiser(LR, none, DECAY, kind=kind))
        for given in gradients():
            for own, gradient in zip(module.parameters(), given):
                own.grad = gradient.clone()
            descent.step(1.0)
        ends.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert torch.equal(*ends)


def test_the_moving_average_is_that_of_the_weights_after_every_step() -> None:
    """a = b a + (1 − b) w from a = w₀ on with b = min(β, (1 + t) / (10 + t)), running statistics averaged too and
    counts taken as they are: what is scored after an epoch, and what is left at the end."""
    module, rows, beta = convolution(), stripes(), 0.8
    average = {name: value.double() for name, value in module.state_dict().items()}
    last: dict[str, Tensor] = {}

    def follow(done: int, *_: object) -> None:
        now = min(beta, done / (done + 9))
        for name, value in module.state_dict().items():
            last[name] = value.clone()
            moves = value.is_floating_point()
            average[name] = now * average[name] + (1 - now) * value.double() if moves else value.double()

    config = TrainConfig(epochs=15, batch_size=16, optimiser=Optimiser(lr=0.1), loop=Loop(average=beta))
    outcome = train(module, rows, config, validation=rows, progress=follow)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value.double(), average[name], rtol=1e-5, atol=1e-6)
    weights = module.state_dict()["0.weight"]
    assert float((weights - last["0.weight"]).norm()) > 1e-3  # the last weights are others
    with torch.no_grad():
        right = module(rows.inputs(torch.arange(len(rows)))).argmax(1) == rows.labels
    assert outcome.history[-1].validation_score == pytest.approx(float(right.double().mean()), abs=1e-12)


def test_a_short_training_is_averaged_over_its_own_weights() -> None:
    """What is left of the weights before the first of n steps is Π (1 + t) / (10 + t) = n! 9! / (n + 9)!: a billionth
    after 30, where β alone leaves .999³⁰ = .97."""
    module = nn.ParameterDict({"w": torch.ones(1, dtype=torch.float64)})
    average = Average.of(module, 0.999)
    with torch.no_grad():
        module["w"].zero_()
    for step in range(30):
        average.update(module, step)
    left = math.factorial(30) * math.factorial(9) / math.factorial(39)
    assert average.tensors["w"].item() == pytest.approx(left, rel=1e-9)


def test_products_in_bfloat16_leave_weights_of_float32_near_those_of_float32() -> None:
    rows, start = stripes(), convolution()
    ends = {}
    for precision in ("float32", "bfloat16"):
        module, seen = copy.deepcopy(start), []
        hook = module[-1].register_forward_hook(lambda _, __, out, seen=seen: seen.append(out.dtype))
        config = TrainConfig(
            epochs=8, batch_size=16, optimiser=Optimiser(lr=0.05), loop=Loop(precision=precision)  # type: ignore[arg-type]
        )  # fmt: skip
        outcome = train(module, rows, config)
        hook.remove()
        assert set(seen) == {getattr(torch, precision)}
        assert outcome.history[-1].loss < 0.5 * outcome.history[0].loss
        assert {v.dtype for v in module.state_dict().values() if v.is_floating_point()} == {torch.float32}
        ends[precision] = torch.cat([p.detach().flatten() for p in module.parameters()])
    moved = float((ends["float32"] - torch.cat([p.detach().flatten() for p in start.parameters()])).norm())
    apart = float((ends["bfloat16"] - ends["float32"]).norm())
    assert 0 < apart < 0.1 * moved


def test_complex_weights_are_averaged_too() -> None:
    module = nn.ParameterDict({"w": torch.tensor([1 + 2j])})
    average = Average.of(module, 0.75)
    with torch.no_grad():
        module["w"].copy_(torch.tensor([5 - 2j]))
    average.update(module, 100)
    assert average.tensors["w"].item() == 2 + 1j


def test_infinities_that_stay_are_averaged_to_themselves() -> None:
    module = nn.Module()
    module.weight = nn.Parameter(torch.tensor([1.0, -torch.inf, torch.inf]))
    average = Average.of(module, 0.75)
    with torch.no_grad():
        module.weight[0] = 3.0
    average.update(module, 100)
    assert average.tensors["weight"].tolist() == [1.5, -torch.inf, torch.inf]


def test_a_buffer_that_becomes_infinite_ends_the_training() -> None:
    class Growing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.scale.mul_(1e30)
            return super().forward(x.flatten(1))

    module = Growing(36, 3)
    module.register_buffer("scale", torch.ones(()))
    module.register_buffer("mask", torch.full((2,), -torch.inf))
    rows = ImageRows(torch.zeros(8, 1, 6, 6, dtype=torch.uint8), torch.arange(8) % 3)
    with pytest.raises(DivergedError, match="a weight is no longer finite"):
        train(module, rows, TrainConfig(epochs=2, batch_size=2))
