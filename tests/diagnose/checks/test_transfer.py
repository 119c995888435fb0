"""Scores of the features of a case."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regraft.diagnose import Estimate
from regraft.diagnose.checks.check import Case, Labelled
from regraft.diagnose.checks.transfer import TRANSFER, scored
from regraft.heads import Response


def test_columns_of_numbers_count_alike_whatever_their_units() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 5))
    columns = np.stack([features[:, 0] + 0.1 * rng.normal(size=200), rng.normal(size=200)], 1)
    found = []
    for units in ([1.0, 1.0], [1.0, 1000.0]):
        response = Response.of("regression", ("fits", "noise"), columns * units)
        (score,) = scored(Labelled(torch.from_numpy(features), response), names=("loo-r2",))
        assert isinstance(score, Estimate)
        found.append(score.value)
    assert found[1] == pytest.approx(found[0])
    assert found[0] == pytest.approx(0.5, abs=0.05)  # the mean of a column that is explained and one that is not


def test_features_that_say_nothing_are_no_worse_than_guessing() -> None:
    """A row that is left out does not make its class the rarer: of 5 classes of 8 rows noise is right on about 20 %."""
    rng, labels = np.random.default_rng(0), np.arange(40) % 5
    noise, useful = rng.normal(size=(40, 12)), np.eye(5)[labels] + 0.01 * rng.normal(size=(40, 5))
    said = {}
    for name, features in (("noise", noise), ("useful", useful)):
        labelled = Labelled(torch.from_numpy(features), Response.of("multiclass", tuple("abcde"), labels))
        (said[name],) = TRANSFER.run(Case((), labelled, 40), lambda done, total: None).findings
    assert said["noise"].low < 0.2 < said["noise"].high
    assert said["noise"].value == pytest.approx(0.2, abs=0.13)  # two errors of 40 rows
    assert said["useful"].value > 0.95
    assert [said[name].severity for name in said] == ["warning", "info"]
