"""Random sums of derivatives against a matrix S that is written out."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from regraft.features import Tangent, ntk
from regraft.features.tangent.ntk import ntk_project
from regraft.features.tangent.sums import Sums, signs
from regraft.network import ArrayPreprocess, from_module


def matrix(parameters: int, count: int) -> torch.Tensor:
    """S entry by entry."""
    found = torch.zeros(count, parameters, dtype=torch.float64)
    for number, sign in enumerate(signs(0, parameters).tolist()):
        found[number % count, number] = sign
    return found


def unexplained(rows: torch.Tensor, noise: float) -> torch.Tensor:
    """Of the last row's norm, what ridge regression on the others leaves."""
    gram = rows @ rows.T
    some = gram[:-1, :-1] + noise * torch.eye(len(gram) - 1, dtype=torch.float64)
    return gram[-1, -1] - gram[-1, :-1] @ torch.linalg.solve(some, gram[:-1, -1])


def splitmix(number: int) -> int:
    """The output of SplitMix64 from seed 0 with this number, from 1 on, by integers without a bound."""
    state = (number * 0x9E3779B97F4A7C15) % 2**64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
    return state ^ (state >> 31)


def test_signs_are_the_same_for_ever() -> None:
    """An artifact holds directions of sums, not the signs."""
    assert [splitmix(1), splitmix(2)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]  # as published
    assert signs(0, 200).tolist() == [1 - 2 * (splitmix(number) >> 63) for number in range(1, 201)]
    assert torch.equal(signs(7, 9), signs(0, 16)[7:])
    drawn = signs(0, 100_000)
    assert abs(float(drawn.mean())) < 4 / sqrt(100_000)
    assert abs(float((drawn[1:] * drawn[:-1]).mean())) < 4 / sqrt(100_000)


@settings(deadline=None)  # the first batch of a process takes its time
@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(1, 40))
def test_sums_of_parts_are_those_of_the_whole(sizes: list[int], count: int) -> None:
    sums = Sums.of({f"p{number}": (size,) for number, size in enumerate(sizes)}, count)
    whole = torch.randn(2, sum(sizes), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    total = torch.zeros(2, count, dtype=torch.float64)
    for number, block in reversed(list(enumerate(whole.split(sizes, dim=1)))):  # in any order
        sums.add(total, f"p{number}", block)
    torch.testing.assert_close(total, whole @ matrix(sum(sizes), count).T)


@pytest.mark.parametrize("batch_size", [3, 64])
def test_products_of_sums_are_those_of_derivatives_nearly(batch_size: int) -> None:
    """Of ten networks the relative error of the kernel is √(2/m) and less; distances from the rows' span are kept."""
    generator = torch.Generator().manual_seed(0)
    errors, kept = [], []
    for seed in range(10):
        torch.manual_seed(seed)
        body = nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 1))
        x = torch.randn(25, 5, generator=generator)
        tangent = Tangent(from_module(body, ArrayPreprocess((5,))), "*", x, dtype=torch.float64, batch_size=batch_size)
        prior = {name: 0.5 + 0.1 * place for place, name in enumerate(tangent.shapes)}
        seen = ntk_project(tangent, None, prior=prior, sums=1021)
        sums, exact = seen.sums[:, 0], ntk(tangent, prior=prior)
        blocks = tangent.rows(torch.arange(25))
        wide = torch.cat([blocks[name][:, 0].flatten(1) * prior[name] for name in sorted(blocks)], dim=1)
        torch.testing.assert_close(sums, wide @ matrix(wide.shape[1], 1021).T)
        torch.testing.assert_close(seen.within[:, 0, 0], exact.diagonal())
        size = exact.diagonal().sqrt()
        errors.append(((sums @ sums.T - exact) / size / size[:, None]).square().mean())

        noise = 1e-3 * float(exact.diagonal().mean())
        kept.append(unexplained(sums, noise) / unexplained(wide, noise))
    assert torch.stack(errors).mean().sqrt() < sqrt(2 / 1021)
    assert max(abs(float(each) - 1) for each in kept) < 3 * sqrt(25 / 1021)
