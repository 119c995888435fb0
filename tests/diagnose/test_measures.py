"""Energy, drift, changes of weights, exchanged heads: against closed forms written out in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special
from sklearn.decomposition import PCA
from sklearn.metrics import accuracy_score

from regraft.diagnose import axes, drift, energy, exchange, shares, weight_changes
from regraft.errors import DataError
from regraft.heads import Readout, Response
from regraft.linear import Blocks, Dense, FeatureDesign

RNG = np.random.default_rng(0)


# ---------------------------------------------------------------------------------------------- energy


def test_energy_of_classes_is_the_distance_of_the_label_from_the_probabilities() -> None:
    outputs, labels = RNG.normal(size=(40, 5)) * 3, RNG.integers(0, 5, 40)
    found = energy(torch.from_numpy(outputs), Response.of("multiclass", list("abcde"), labels))
    p = special.softmax(outputs, axis=1)
    np.testing.assert_allclose(found.rows.numpy(), np.linalg.norm(np.eye(5)[labels] - p, axis=1), rtol=1e-12)
    assert found.mean == pytest.approx(np.linalg.norm(np.eye(5)[labels] - p, axis=1).mean(), rel=1e-12)
    np.testing.assert_allclose(found.truth.numpy(), p[np.arange(40), labels], rtol=1e-12)
    assert found.right == accuracy_score(labels, p.argmax(1))


def test_energy_has_its_known_values_at_the_ends() -> None:
    """Right and sure: 0. Uniform over C: √((1 − 1/C)² + (C − 1)/C²) = √(1 − 1/C). Wrong and sure: √2."""
    sure = torch.tensor([[900.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 900.0, 0.0]])
    found = energy(sure, Response.of("multiclass", "abc", [0, 0, 0]))
    np.testing.assert_allclose(found.rows.numpy(), [0.0, math.sqrt(2 / 3), math.sqrt(2)], atol=1e-12)


def test_rows_without_a_label_have_no_energy() -> None:
    outputs, labels = RNG.normal(size=(6, 3)), np.array([0, -1, 2, -1, 1, 1])
    outputs[2, 2] += 9.0
    with_gaps = energy(torch.from_numpy(outputs), Response.of("multiclass", "abc", labels))
    there = labels >= 0
    alone = energy(torch.from_numpy(outputs[there]), Response.of("multiclass", "abc", labels[there]))
    assert torch.equal(with_gaps.rows, alone.rows)
    assert torch.equal(with_gaps.truth, alone.truth)
    assert with_gaps.right == alone.right > 0


def test_energy_of_labels_counts_those_that_are_there() -> None:
    outputs = RNG.normal(size=(30, 4))
    labels = (RNG.random((30, 4)) > 0.5).astype(float)
    labels[RNG.random((30, 4)) > 0.7] = np.nan
    labels[0] = 1.0
    found = energy(torch.from_numpy(outputs), Response.of("multilabel", "abcd", labels))
    gaps = np.where(np.isnan(labels), 0.0, np.nan_to_num(labels) - special.expit(outputs))
    some = ~np.isnan(labels).all(1)
    np.testing.assert_allclose(found.rows.numpy(), np.linalg.norm(gaps[some], axis=1), rtol=1e-12)
    assert found.truth is None
    assert found.right is None


def test_masks_have_no_energy() -> None:
    masks = Response.of("segmentation", "abc", RNG.integers(0, 9, (4, 3)))
    with pytest.raises(DataError, match="masks"):
        energy(torch.zeros(4, 3), masks)


def test_energy_of_values_is_their_distance() -> None:
    outputs, values = RNG.normal(size=(20, 2)), RNG.normal(size=(20, 2))
    values[3, 1] = np.nan
    found = energy(torch.from_numpy(outputs), Response.of("regression", "ab", values))
    gaps = np.nan_to_num(values - outputs)
    np.testing.assert_allclose(found.rows.numpy(), np.linalg.norm(gaps, axis=1), rtol=1e-12)


def test_energy_refuses_what_does_not_fit() -> None:
    with pytest.raises(DataError, match="do not fit"):
        energy(torch.zeros(4, 2), Response.of("multiclass", "abc", [0, 1, 2, 0]))
    with pytest.raises(DataError, match="labelled row"):
        energy(torch.zeros(2, 3), Response.of("multiclass", "abc", [-1, -1]))


def test_shares_are_numpys_histogram() -> None:
    values = np.concatenate([RNG.random(200), [0.0, 1.0, 1.0]])
    counts, _ = np.histogram(values, bins=20, range=(0, 1))
    np.testing.assert_allclose(shares(torch.from_numpy(values)), counts / len(values), atol=1e-15)
    assert shares(torch.from_numpy(values).reshape(7, 29)) == shares(torch.from_numpy(values))


# ----------------------------------------------------------------------------------------------- drift


def test_drift_is_its_formulas() -> None:
    before, after = RNG.normal(size=(25, 7)), RNG.normal(size=(25, 7))
    found = drift(torch.from_numpy(before), torch.from_numpy(after))
    norm = np.linalg.norm
    assert found.change == pytest.approx((norm(after - before, axis=1) ** 2).mean(), rel=1e-12)
    assert found.norm == pytest.approx((norm(after, axis=1) ** 2).mean(), rel=1e-12)
    assert found.norm_before == pytest.approx((norm(before, axis=1) ** 2).mean(), rel=1e-12)
    assert found.dot == pytest.approx((after * before).sum(1).mean(), rel=1e-12)
    cosines = (after * before).sum(1) / norm(after, axis=1) / norm(before, axis=1)
    assert found.cosine == pytest.approx(cosines.mean(), rel=1e-12)
    assert found.distance == pytest.approx(norm(after - before, axis=1).mean(), rel=1e-12)
    assert found.change == pytest.approx(found.norm + found.norm_before - 2 * found.dot, rel=1e-12)


def test_stretched_features_keep_their_direction() -> None:
    before = torch.from_numpy(RNG.normal(size=(9, 4)))
    found = drift(before, 1.5 * before)
    assert found.cosine == pytest.approx(1.0, abs=1e-12)
    assert found.change == pytest.approx(0.25 * found.norm_before, rel=1e-12)


def test_a_dead_row_has_no_direction() -> None:
    before = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    assert drift(before, torch.tensor([[0.0, 1.0], [1.0, 1.0]])).cosine == 0.0
    assert math.isnan(drift(torch.zeros(2, 2), torch.ones(2, 2)).cosine)
    with pytest.raises(DataError, match="do not fit"):
        drift(before, torch.zeros(2, 3))


def test_axes_are_those_of_principal_component_analysis() -> None:
    rows = RNG.normal(size=(50, 6)) * np.array([5, 3, 1, 1, 0.5, 0.1])
    later = rows + RNG.normal(size=rows.shape)
    found, oracle = axes(torch.from_numpy(rows)), PCA(2).fit(rows)
    signs = np.sign((found.components.numpy() * oracle.components_).sum(1))
    np.testing.assert_allclose(found.components.numpy(), signs[:, None] * oracle.components_, atol=1e-10)
    np.testing.assert_allclose(found.explained.numpy(), oracle.explained_variance_ratio_, rtol=1e-10)
    expected = signs * oracle.transform(later)
    np.testing.assert_allclose(found.project(torch.from_numpy(later)).numpy(), expected, atol=1e-9)
    with pytest.raises(DataError, match="principal axes"):
        axes(torch.zeros(5, 1))


# --------------------------------------------------------------------------------------------- weights


def test_complex_weights_move_by_both_of_their_parts():
    before, after = torch.tensor([3 + 4j, 0j]), torch.tensor([3 + 4j, 2j])
    (found,) = weight_changes({"w": before}, {"w": after})
    assert (found.change, found.before, found.size) == (2.0, 5.0, 2)


def test_changes_of_weights_are_gathered_by_layer() -> None:
    before = {
        "a.weight": torch.from_numpy(RNG.normal(size=(3, 4))),
        "a.bias": torch.from_numpy(RNG.normal(size=3)),
        "b.weight": torch.zeros(2, 2),
        "c.weight": torch.ones(2),
        "alone": torch.ones(1),
    }
    after = {name: value.clone() for name, value in before.items()}
    after["a.weight"][1, 2] += 3.0
    after["a.bias"][0] -= 4.0
    after["b.weight"][0, 0] = 0.5
    found = {layer.name: layer for layer in weight_changes(before, after)}
    assert list(found) == ["a", "b", "c", "alone"]
    size = math.sqrt(float(before["a.weight"].square().sum() + before["a.bias"].square().sum()))
    assert found["a"].change == pytest.approx(5.0, rel=1e-12)
    assert found["a"].relative == pytest.approx(5.0 / size, rel=1e-12)
    assert found["a"].size == 15
    assert found["b"].relative == math.inf
    assert found["c"].relative == 0.0
    with pytest.raises(DataError, match="not those of one network"):
        weight_changes(before, {"a.weight": before["a.weight"]})


# -------------------------------------------------------------------------------------------- exchange


def test_every_head_is_scored_on_every_backbone() -> None:
    labels = RNG.integers(0, 3, 60)
    features = [RNG.normal(size=(60, 4)) for _ in range(3)]
    heads = [RNG.normal(size=(4, 3)) for _ in range(3)]
    shift = RNG.normal(size=3)
    designs = [FeatureDesign({"z": Dense(torch.from_numpy(z))}, 3) for z in features]
    readouts = [Readout(Blocks({"z": torch.from_numpy(w)}), torch.from_numpy(shift), "softmax") for w in heads]
    found = exchange(designs, readouts, Response.of("multiclass", "abc", labels), "accuracy")
    expected = [[accuracy_score(labels, (z @ w + shift).argmax(1)) for z in features] for w in heads]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
