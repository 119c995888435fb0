"""All scores together: what they say of odd tasks, and whether their intervals hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regraft.diagnose import SCORES, Estimate, NotApplicable, scores
from regraft.diagnose.transfer.estimate import Resamples
from regraft.diagnose.transfer.labels import Labels
from regraft.diagnose.transfer.scores import spoken
from regraft.errors import DataError


def _source(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed)).softmax(1)


def test_every_score_has_a_name_for_sentences() -> None:
    names = [spoken(name) for name in SCORES]
    assert len(set(names)) == len(SCORES)
    assert not set(names) & set(SCORES)


def test_every_score_is_there_in_order_with_an_interval_around_it(rows) -> None:
    made = rows()
    found = scores(features=made.x.float(), labels=made.y, source=_source(60))
    assert [each.name for each in found] == list(SCORES)
    for each in found:
        assert isinstance(each, Estimate)
        assert each.low <= each.value <= each.high
        assert each.error > 0
        assert each.seconds >= 0
        assert each.meaning.endswith(".")


@pytest.mark.parametrize(
    "held",
    [lambda x: x.flip(1).numpy()[:, ::-1], lambda x: x.tolist(), lambda x: x.clone().requires_grad_(True)],
)
def test_features_may_be_held_in_any_way(rows, held) -> None:
    made, names = rows(), ("logme", "loo-r2", "neighbour-accuracy")
    plain = scores(features=made.x, labels=made.y, names=names)
    for one, other in zip(plain, scores(features=held(made.x), labels=torch.from_numpy(made.y), names=names)):
        assert other.value == pytest.approx(one.value, rel=1e-12)  # type: ignore[union-attr]


@pytest.mark.parametrize("held", [lambda y: y.bfloat16(), lambda y: y.clone().requires_grad_(True)])
def test_numbers_may_be_held_in_any_tensor(rows, held) -> None:
    made = rows()
    (found,) = scores(features=made.x, labels=held(made.x[:, 0]), names=("loo-r2",))
    assert found.value > 0.99  # type: ignore[union-attr]


def test_the_same_seed_gives_the_same_bytes(rows) -> None:
    made = rows()
    one, two, other = (scores(features=made.x, labels=made.y, source=_source(60), seed=s) for s in (3, 3, 4))
    assert [(e.value, e.low, e.high) for e in one] == [(e.value, e.low, e.high) for e in two]
    assert [e.low for e in one] != [e.low for e in other]
    assert [e.value for e in one] == [e.value for e in other]


def test_better_features_score_higher(rows) -> None:
    near, far = rows(n=200, apart=0.3), rows(n=200, apart=1.5)
    names = [name for name in SCORES if name not in ("leep", "nce")]
    low = scores(features=near.x, labels=near.y, names=names)
    high = scores(features=far.x, labels=far.y, names=names)
    for a, b in zip(low, high):
        assert isinstance(a, Estimate)
        assert isinstance(b, Estimate)
        assert b.value > a.value, a.name


def test_names_choose_and_unknown_ones_are_refused(rows) -> None:
    made = rows()
    assert [e.name for e in scores(features=made.x, labels=made.y, names=("nce", "logme"))] == ["nce", "logme"]
    with pytest.raises(DataError, match="lomge"):
        scores(features=made.x, labels=made.y, names=("lomge",))
    with pytest.raises(DataError, match="resamples"):
        scores(features=made.x, labels=made.y, resamples=1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x, y: (x, np.zeros_like(y)), "one class"),
        (lambda x, y: (x[:3], y[:3]), "at least 5"),
        (lambda x, y: (x, np.full(len(y), np.nan)), "NaN"),
        (lambda x, y: (x, np.ones(len(y))), "numbers that vary"),
        (lambda x, y: (x, y.astype(str)), "labels"),
        (lambda x, y: (x, np.stack([y, y])), "integers"),
    ],
)
def test_labels_that_cannot_be_used_leave_no_score(rows, change, reason: str) -> None:
    made = rows()
    for each in scores(features=change(made.x, made.y)[0], labels=change(made.x, made.y)[1], source=_source(60)):
        assert isinstance(each, NotApplicable)
        assert reason in each.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x: torch.ones_like(x), "the same in every row"),
        (lambda x: x.index_fill(0, torch.tensor([4]), float("nan")), "NaN"),
        (lambda x: x[:-1], "rows of features"),
        (lambda x: x[:, 0], "(N, D) floats"),
    ],
)
def test_features_that_cannot_be_used_leave_those_of_the_source(rows, change, reason: str) -> None:
    made = rows()
    for each in scores(features=change(made.x), labels=made.y, source=_source(60)):
        if each.name in ("leep", "nce"):
            assert isinstance(each, Estimate)
        else:
            assert isinstance(each, NotApplicable)
            assert reason in each.reason


def test_without_a_source_the_rest_stands(rows) -> None:
    made = rows()
    absent = [e for e in scores(features=made.x, labels=made.y) if isinstance(e, NotApplicable)]
    assert [e.name for e in absent] == ["leep", "nce"]
    assert "missing" in absent[0].reason
    found = scores(features=made.x, labels=made.y, source_labels=made.y % 2, names=("leep", "nce"))
    assert isinstance(found[0], NotApplicable)
    assert isinstance(found[1], Estimate)


def test_numbers_have_two_scores(rows) -> None:
    made = rows()
    found = scores(features=made.x, labels=made.x[:, 0].numpy() + 1.0, source=_source(60))
    assert [e.name for e in found if isinstance(e, Estimate)] == ["logme", "loo-r2"]
    assert all("defined for classes" in e.reason for e in found if isinstance(e, NotApplicable))


def test_exchanged_arguments_are_refused(rows) -> None:
    made = rows()
    for each in scores(features=torch.from_numpy(made.y).double(), labels=made.x):
        assert isinstance(each, NotApplicable)
    with pytest.raises(TypeError):
        scores(made.x, made.y)  # type: ignore[misc]


@pytest.mark.parametrize(("n", "d"), [(12, 40), (40, 40), (41, 40)])
def test_few_rows_and_copies_of_rows_work(rows, n: int, d: int) -> None:
    made = rows(n=n, d=d)
    for x, y in ((made.x, made.y), (torch.cat([made.x, made.x]), np.tile(made.y, 2))):
        for each in scores(features=x, labels=y, source=_source(len(y))):
            if each.name == "h-score" and len(y) == n:
                assert isinstance(each, NotApplicable)
                continue
            assert isinstance(each, Estimate), each
            if "accuracy" in each.name:
                assert 0 <= each.low <= each.high <= 1
            assert np.isfinite([each.value, each.low, each.high]).all(), each


def test_groups_widen_intervals(rows) -> None:
    made = rows(n=60)
    x, y, groups = made.x.repeat(4, 1), np.tile(made.y, 4), np.tile(np.arange(60), 4)
    names = ("logme", "h-score", "leep")
    alone = scores(features=x, labels=y, source=_source(60).repeat(4, 1), names=names)
    grouped = scores(features=x, labels=y, source=_source(60).repeat(4, 1), names=names, groups=groups)
    for a, g in zip(alone, grouped):
        assert isinstance(a, Estimate)
        assert isinstance(g, Estimate)
        assert g.value == a.value
        assert g.error == pytest.approx(2 * a.error, rel=0.15)


def _draw(n: int, d: int, seed: int) -> tuple[torch.Tensor, np.ndarray, torch.Tensor]:
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(4), n // 4)
    spread = np.exp(-np.arange(d) / (d / 4))
    centres = 0.3 * np.random.default_rng(99).normal(size=(4, d))
    x = torch.from_numpy((centres[y] + rng.standard_t(6, size=(n, d))) * spread + 0.5)
    return x, y, x[:, :3].softmax(1)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "d"), [(120, 16), (120, 60), (100, 200)])
def test_intervals_hold_the_expectation(n: int, d: int) -> None:
    draws = 120
    found = []
    for seed in range(draws):
        x, y, source = _draw(n, d, seed)
        names = [name for name in SCORES if name != "h-score" or d < n - 1]  # it says nothing there
        every = scores(features=x, labels=y, source=source, names=names, resamples=200)
        found.append([(e.value, e.low, e.high) for e in every])  # type: ignore[union-attr]
    table = np.array(found)
    truth = table[:, :, 0].mean(0)
    covered = ((table[:, :, 1] <= truth) & (truth <= table[:, :, 2])).mean(0)
    for name, share in zip(names, covered):
        assert share >= 0.86, (name, share)  # 95 % less three deviations of a share of 120, and 3 % of bias


@pytest.mark.parametrize("groups", [3, 6])
def test_intervals_of_few_groups_hold_the_truth(groups: int) -> None:
    held, draws = 0, 200
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        member = np.repeat(np.arange(groups), 10)
        each = rng.normal(size=groups)[member] + 0.3 * rng.normal(size=len(member))
        resamples = Resamples.of(Labels.of(rng.integers(0, 2, len(member))), member, count=300, seed=seed)
        value = each.mean()
        spread = resamples.spread(torch.from_numpy((each - value) / len(each)))
        low, high = resamples.interval(value, spread.numpy())
        held += low <= 0 <= high
    # of 200 intervals that hold the truth 95 times in 100, fewer than 181 do so once in a hundred
    assert held >= 181


def test_names_of_groups_may_be_of_several_types(rows) -> None:
    made = rows(n=60)
    codes = np.arange(60) // 6
    names = [None if c == 0 else "None" if c == 1 else 1 if c == 2 else "1" if c == 3 else f"g{c}" for c in codes]
    by_code, by_name = (
        scores(features=made.x, labels=made.y, groups=groups, names=("loo-accuracy",))[0] for groups in (codes, names)
    )
    assert by_name.value == by_code.value
    (refused,) = scores(features=made.x, labels=made.y, groups=[(c, 0) for c in codes], names=("loo-accuracy",))
    assert "one name a row" in refused.reason


def test_no_interval_leaves_what_its_score_can_be() -> None:
    bounds = dict.fromkeys(("h-score", "h-score-shrunk"), (0, 2)) | dict.fromkeys(("leep", "nce"), (-np.inf, 0))
    bounds["loo-r2"] = (-np.inf, 1)
    cut = set()
    for seed in range(40):
        rng = np.random.default_rng(seed)
        y = np.concatenate([np.arange(3), rng.integers(3, size=7)])
        x, source = rng.normal(size=(10, 3)) + 0.1 * y[:, None], rng.dirichlet(np.ones(4) / 4, 10)
        for found in scores(features=x, labels=y, source=source, names=list(bounds), resamples=100):
            if isinstance(found, Estimate):
                low, high = bounds[found.name]
                assert low <= found.low <= found.value <= found.high <= high
                cut |= {found.name} if found.low == low or found.high == high else set()
    assert {"h-score", "nce"} <= cut


def test_groups_of_one_row_each_are_rows(rows) -> None:
    made = rows()
    alone, grouped = (Resamples.of(made.labels, groups) for groups in (None, np.arange(60)))
    assert grouped.stretch == alone.stretch == 1
    assert torch.equal(grouped.deviations, alone.deviations)


def test_resamples_of_a_mean_spread_as_its_standard_error() -> None:
    """Few rows as well: s / √n with s² of n − 1 degrees of freedom."""
    x = np.array([0.3, -1.0, 2.0, 0.7, 5.0])
    found = Resamples.of(Labels.of(x), count=20_000).spread(torch.from_numpy((x - x.mean()) / 5))
    assert float(found.std()) == pytest.approx(x.std(ddof=1) / 5**0.5, rel=0.03)


def test_groups_of_one_class_each_are_drawn_within_it_and_others_among_all() -> None:
    labels, groups = Labels.of(np.repeat([0, 1], 12)), np.arange(24) // 3
    within = Resamples.of(labels, groups, count=20).deviations[:, ::3]  # of one row a group
    assert torch.allclose(within[:, :4].sum(1), torch.zeros(20, dtype=torch.float64), atol=1e-12)
    mixed = Resamples.of(labels, np.roll(groups, 1), count=20).deviations[:, 1::3]
    assert torch.allclose(mixed.sum(1), torch.zeros(20, dtype=torch.float64), atol=1e-12)
    assert float(mixed[:, [0, 1, 2, 3, 7]].sum(1).abs().max()) > 0.5  # those whose first row is of the first class


def test_classes_of_one_group_each_vary(rows) -> None:
    made = rows(c=2, apart=0.3)
    found = scores(features=made.x, labels=made.y, groups=[f"patient {code}" for code in made.y], names=("logme",))
    assert isinstance(found[0], Estimate)
    assert found[0].error > 0
    assert found[0].low < found[0].value < found[0].high
