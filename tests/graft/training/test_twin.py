"""Which whole training a choice stands on, when short ones promised too much."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from regraft.errors import RecipeError
from regraft.graft.training.twin import collapsed, whole_trainings

ROWS = 30  # held out


@dataclass
class Run:
    """A training that ends as it is told."""

    key: tuple[float, int]
    value: tuple[float, float]
    said: str = ""
    outcome: Any = None
    outputs: Any = None
    metric: str = "accuracy"
    held: range = field(default_factory=lambda: range(ROWS))

    @property
    def task(self) -> Any:
        return SimpleNamespace(metric=self.metric)

    def train(self, work: Any) -> Any:
        work.append(self.key[0])
        if self.said:
            return None
        self.outcome, self.outputs = "done", torch.zeros(ROWS, 2)
        return f"model at {self.key[0]}"


def trained(short: dict[float, float], whole: dict[float, float | None], metric: str = "accuracy"):
    """(whole trainings, model, which were run) of scores by rate."""
    ranking = [
        Run((lr, 0), (value, 0.0), outcome="done", metric=metric)
        for lr, value in sorted(short.items(), key=lambda pair: -pair[1])
    ]
    work: list[float] = []

    def run(lr: float, tau: int) -> Run:
        value = whole[lr]
        return Run(
            (lr, tau),
            (-1.0 if value is None else value, 0.0),
            "" if value is not None else "training diverged: nan",
            metric=metric,
        )

    fulls, model, _ = whole_trainings(run, ranking, work)
    return [one.key[0] for one in fulls], model, work


def test_the_best_is_trained_whole_and_no_other():
    assert trained({0.1: 0.8, 0.03: 0.79}, {0.1: 0.75}) == ([0.1], "model at 0.1", [0.1])


def test_one_that_does_clearly_worse_than_the_next_promised_is_not_relied_on():
    order, model, work = trained({0.1: 0.83, 0.03: 0.77, 0.01: 0.63}, {0.1: 0.33, 0.03: 0.8})
    assert (order, model, work) == ([0.03, 0.1], "model at 0.03", [0.1, 0.03])


def test_the_better_of_two_whole_ones_is_kept():
    order, model, work = trained({0.1: 0.83, 0.03: 0.77}, {0.1: 0.33, 0.03: 0.3})
    assert (order, model, work) == ([0.1, 0.03], "model at 0.1", [0.1, 0.03])


def test_chance_is_no_reason():
    """Two standard errors of .77 among 30 rows are .154."""
    assert trained({0.1: 0.83, 0.03: 0.77}, {0.1: 0.63})[2] == [0.1]
    assert trained({0.1: 0.83, 0.03: 0.77}, {0.1: 0.61, 0.03: 0.7})[2] == [0.1, 0.03]


def test_a_perfect_score_of_few_rows_is_known_as_well_as_one_row_from_it():
    """Two standard errors of 29/30 among 30 rows are .066; of 1 they would be none."""
    assert trained({0.1: 1.0, 0.03: 1.0}, {0.1: 0.94})[2] == [0.1]
    assert trained({0.1: 1.0, 0.03: 1.0}, {0.1: 0.93, 0.03: 0.9})[2] == [0.1, 0.03]


def test_scores_without_a_scale_are_taken_as_they_are():
    assert trained({0.1: 0.83, 0.03: 0.77}, {0.1: -3.0}, metric="r2")[2] == [0.1]


def test_what_diverges_is_passed_over():
    order, model, work = trained({0.1: 0.83, 0.03: 0.77}, {0.1: None, 0.03: 0.7})
    assert (order, model, work) == ([0.03], "model at 0.03", [0.1, 0.03])
    with pytest.raises(RecipeError, match="every candidate of the training diverged"):
        trained({0.1: 0.83, 0.03: 0.77}, {0.1: None, 0.03: None})
    with pytest.raises(RecipeError, match=r"^the training diverged: nan\. To mend it: try a .* such as --lr 0\.01, "):
        trained({0.1: 0.83}, {0.1: None})
    with pytest.raises(RecipeError, match=r"such as --lr 0\.1, "):  # a tenth of what is hopeless is hopeless
        trained({1e9: 0.83}, {1e9: None})


def test_one_class_for_every_row_is_a_collapse_unless_the_other_said_so_too():
    one, two = torch.tensor([[0.6, 0.4], [0.61, 0.39]]), torch.tensor([[0.6, 0.4], [0.1, 0.9]])
    assert collapsed(one, two)
    assert collapsed(one, None)
    assert not collapsed(one, one)
    assert not collapsed(two, one)
    assert not collapsed(two, two)


def test_a_rare_class_that_is_never_named_is_no_collapse_where_rows_are_told_apart():
    rare, judged = torch.tensor([[0.99, 0.01], [0.6, 0.4]]), torch.tensor([[0.99, 0.01], [0.4, 0.6]])
    assert not collapsed(rare, judged)
    assert not collapsed(rare, None)
