"""The loss as a function of parameters: values and gradients against plain modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from regraft.diagnose import Objective
from regraft.errors import DataError, ModelError
from regraft.network import ArrayPreprocess, from_module

WIDTH = 5


def _module(norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    middle = nn.BatchNorm1d(7) if norm else nn.Identity()
    module = nn.Sequential(nn.Linear(WIDTH, 7), middle, nn.Tanh(), nn.Linear(7, 3)).double()
    if norm:
        module[1].running_mean.normal_()  # type: ignore[union-attr,operator]
        module[1].running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr,operator]
    return module


def _network(module: nn.Module):
    return from_module(module.float(), preprocess=ArrayPreprocess((WIDTH,)))


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(23, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def codes() -> torch.Tensor:
    return torch.randint(0, 3, (23,), generator=torch.Generator().manual_seed(2))


def test_values_are_the_plain_losses(x: torch.Tensor, codes: torch.Tensor) -> None:
    module = _module()
    network = _network(module)
    outputs = module.double()(x.double())
    shares = functional.one_hot(codes, 3).double()
    wanted = {
        "softmax": functional.cross_entropy(outputs, codes),
        "sigmoid": functional.binary_cross_entropy_with_logits(outputs, shares, reduction="none").sum(1).mean(),
        "squared": 0.5 * (outputs - shares).square().sum(1).mean(),
    }
    for loss, value in wanted.items():
        found = Objective(network, x, shares, loss=loss, dtype=torch.float64, batch_size=8)
        assert found.value() == pytest.approx(value.item(), rel=1e-12)
    by_code = Objective(network, x, codes, dtype=torch.float64)
    assert by_code.value() == pytest.approx(float(wanted["softmax"]), rel=1e-12)


def test_gradients_are_those_of_the_module(x: torch.Tensor, codes: torch.Tensor) -> None:
    module = _module()
    objective = Objective(_network(module), x, codes, dtype=torch.float64, batch_size=5, select="3.*")
    value, gradient = objective.gradient()
    module = module.double().requires_grad_(True)
    loss = functional.cross_entropy(module(x.double()), codes)
    loss.backward()
    assert value == pytest.approx(float(loss), rel=1e-12)
    assert list(gradient) == ["3.weight", "3.bias"]
    assert objective.size == 24
    for name, part in gradient.items():
        torch.testing.assert_close(part, dict(module.named_parameters())[name].grad, rtol=1e-10, atol=1e-14)


def test_a_moved_point_and_weights(x: torch.Tensor, codes: torch.Tensor) -> None:
    network, weights = _network(_module()), torch.linspace(0, 2, 23)
    objective = Objective(network, x, codes, dtype=torch.float64, weights=weights, batch_size=6)
    moved = objective.point * 1.5
    plain = _module().double()
    plain.load_state_dict({**plain.state_dict(), **moved})
    rows = functional.cross_entropy(plain(x.double()), codes, reduction="none")
    assert objective.value(moved) == pytest.approx(float(weights.double() @ rows), rel=1e-6)
    for form in (weights.numpy(), weights.tolist()):
        same = Objective(network, x, codes.numpy(), dtype=torch.float64, weights=form, batch_size=6)
        assert same.value(moved) == objective.value(moved)
    assert objective.gradient(moved)[0] == pytest.approx(objective.value(moved), rel=1e-12)
    before = {name: value.clone() for name, value in network.params.items()}
    assert all(torch.equal(before[name], value) for name, value in network.params.items())


def test_another_selection_of_the_same_loss(x: torch.Tensor, codes: torch.Tensor) -> None:
    whole = Objective(_network(_module()), x, codes, dtype=torch.float64, batch_size=5)
    top = whole.moving("3.*")
    assert list(top.point) == ["3.weight", "3.bias"]
    assert (len(whole.point), top.size) == (4, 24)
    assert top.start is whole.start
    for name, part in top.gradient()[1].items():
        torch.testing.assert_close(part, whole.gradient()[1][name], rtol=1e-12, atol=1e-15)
    with pytest.raises(ModelError):
        whole.moving("absent.*")


def test_batch_statistics_are_those_of_each_batch(x: torch.Tensor, codes: torch.Tensor) -> None:
    module = _module(norm=True)
    network = _network(module)
    running = Objective(network, x, codes, dtype=torch.float64)
    batch = Objective(network, x, codes, dtype=torch.float64, batchnorm="batch", batch_size=23)
    again = batch.value()
    plain = module.double().train()
    assert again == pytest.approx(float(functional.cross_entropy(plain(x.double()), codes)), rel=1e-6)
    assert again != pytest.approx(running.value(), rel=1e-3)
    assert batch.value() == again
    assert not network.module.training
    assert running.value() == Objective(network, x, codes, dtype=torch.float64).value()


def test_mistakes_are_named(x: torch.Tensor, codes: torch.Tensor) -> None:
    network = _network(_module())
    with pytest.raises(DataError, match=r"whole codes.*float32"):
        Objective(network, x, codes + 0.5)
    assert Objective(network, x, codes.double()).value() == Objective(network, x, codes).value()
    with pytest.raises(DataError, match="codes from 0 to 2"):
        Objective(network, x, codes + 1)
    with pytest.raises(DataError, match="targets"):
        Objective(network, x, torch.zeros(23, 2), loss="squared")
    with pytest.raises(DataError, match="missing label"):
        Objective(network, x, torch.full((23, 3), torch.nan), loss="sigmoid")
    with pytest.raises(DataError, match="loss"):
        Objective(network, x, codes, loss="hinge")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="weights"):
        Objective(network, x, codes, weights=-torch.ones(23))
    with pytest.raises(ModelError, match=r"matches nothing|no parameter"):
        Objective(network, x, codes, select="absent.*")
    with pytest.raises(ModelError, match="BatchNorm"):
        Objective(network, x, codes, batchnorm="batch")
    with pytest.raises(DataError, match="no rows"):
        Objective(network, x[:0], codes[:0])


def test_batches_by_themselves_make_up_the_loss(x: torch.Tensor, codes: torch.Tensor) -> None:
    network, weights = _network(_module()), torch.linspace(0, 2, 23)
    for given in (None, weights):
        objective = Objective(network, x, codes, dtype=torch.float64, weights=given, batch_size=6)
        moved, parts = objective.point * 1.2, objective.split()
        assert [part.rows for _, part in parts] == [6, 6, 6, 5]
        assert sum(share for share, _ in parts) == pytest.approx(1.0)
        value, gradient = objective.gradient(moved)
        found = [part.gradient(moved) for _, part in parts]
        assert sum(share * one[0] for (share, _), one in zip(parts, found)) == pytest.approx(value, rel=1e-12)
        for name in gradient:
            total = sum(share * one[1][name] for (share, _), one in zip(parts, found))
            torch.testing.assert_close(total, gradient[name], rtol=1e-10, atol=1e-14)
    part = Objective(network, x, codes, dtype=torch.float64, batch_size=6).split()[1][1]
    plain = functional.cross_entropy(network(part.point, {}, x[6:12].double()), codes[6:12])
    assert part.value() == pytest.approx(float(plain), rel=1e-12)  # a mean over its own rows
    torch.testing.assert_close(part.outputs(), objective.start[6:12])


def test_batches_without_weight_are_left_out(x: torch.Tensor, codes: torch.Tensor) -> None:
    network, weights = _network(_module()), torch.ones(23)
    weights[:5] = 0
    parts = Objective(network, x, codes, weights=weights, batch_size=5).split()
    assert [part.rows for _, part in parts] == [5, 5, 5, 3]
    with pytest.raises(DataError, match="weight above 0"):
        Objective(network, x, codes, weights=torch.zeros(23)).split()


def test_statistics_of_batches_are_not_written(x: torch.Tensor, codes: torch.Tensor) -> None:
    network = _network(_module(norm=True))
    before = {name: value.clone() for name, value in network.buffers.items()}
    Objective(network, x, codes, batchnorm="batch", batch_size=23).value()
    assert all(torch.equal(value, before[name]) for name, value in network.buffers.items())
    assert "1.num_batches_tracked" in before


def test_losses_of_several_points_at_once(x: torch.Tensor, codes: torch.Tensor) -> None:
    objective = Objective(_network(_module()), x, codes, dtype=torch.float64)
    outputs = torch.stack([objective.start, 2 * objective.start])[:, 3:9]
    found = objective.losses(outputs, 3)
    assert found.shape == (2, 6)
    assert torch.equal(found, torch.stack([objective.losses(part, 3) for part in outputs]))


def test_targets_of_a_softmax_are_shares_or_codes_of_any_library() -> None:
    network = from_module(nn.Linear(4, 3), ArrayPreprocess((4,)))
    x, codes = torch.randn(6, 4), torch.arange(6) % 3
    for wrong in (torch.ones(6, 3), torch.tensor([[2.0, -1.0, 0.0]]).expand(6, 3)):
        with pytest.raises(DataError, match="expected shares of classes, 1 in all for each row"):
            Objective(network, x, wrong)
    assert Objective(network, x, codes.numpy()).value() == Objective(network, x, codes).value()


def test_targets_of_a_sigmoid_lie_between_zero_and_one() -> None:
    network, x = from_module(nn.Linear(4, 3), ArrayPreprocess((4,))), torch.randn(6, 4)
    for wrong in (-1.0, 7.0):
        with pytest.raises(DataError, match="expected numbers from 0 to 1; got"):
            Objective(network, x, torch.full((6, 3), wrong), loss="sigmoid")


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_gradients_of_tables_are_not_those_that_training_scales_by_frequency(kind: type[nn.Module]) -> None:
    tokens, codes = torch.tensor([[1, 2], [1, 1], [3, 1]]), torch.tensor([0, 1, 1])
    found = []
    for scaled in (False, True):
        torch.manual_seed(0)
        table = kind(4, 3, scale_grad_by_freq=scaled)
        module = nn.Sequential(Whole(), table, nn.Flatten(), nn.Linear(3 if kind is nn.EmbeddingBag else 6, 2))
        network = from_module(module.eval(), preprocess=ArrayPreprocess((2,), categories=(4, 4)))
        found.append(Objective(network, tokens.float(), codes, select="1.weight").gradient()[1].flatten())
    torch.testing.assert_close(found[1], found[0])


class Whole(nn.Module):
    """Numbers of tokens in an array of floats."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.long()
