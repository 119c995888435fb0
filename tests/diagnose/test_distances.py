"""Distances between runs, the plane they are drawn in, and how far groups are apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.spatial import procrustes
from scipy.spatial.distance import pdist, squareform
from torch import Tensor, nn

from regraft.diagnose import mds, weight_distances
from regraft.diagnose.clusters import silhouette, tsne
from regraft.errors import DataError
from regraft.network import ArrayPreprocess, Network, from_module


def _runs(count: int = 4, width: int = 6) -> list[Network]:
    made = []
    for seed in range(count):
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2))
        made.append(from_module(module, preprocess=ArrayPreprocess((3,))))
    return made


def _flat(run: Network, names: tuple[str, ...]) -> np.ndarray:
    return np.concatenate([run.params[name].double().numpy().ravel() for name in names])


def _points(count: int, width: int = 2) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, width))


def _table(points: np.ndarray) -> Tensor:
    return torch.from_numpy(squareform(pdist(points)))


def test_distances_are_those_of_the_weights_as_vectors() -> None:
    runs = _runs()
    found = weight_distances(runs)
    wanted = squareform(pdist(np.stack([_flat(run, ("0.weight", "2.weight")) for run in runs])))
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)
    assert torch.equal(found.diagonal(), torch.zeros(4).double())
    every = squareform(pdist(np.stack([_flat(run, tuple(run.params)) for run in runs])))
    np.testing.assert_allclose(weight_distances(runs, counted="all").numpy(), every, rtol=1e-12)
    head = squareform(pdist(np.stack([_flat(run, ("0.weight",)) for run in runs])))
    np.testing.assert_allclose(weight_distances([r.params for r in runs], without="2.*").numpy(), head, rtol=1e-12)


def test_near_runs_keep_their_distance() -> None:
    base = {"layer.weight": torch.full((50, 50), 100.0, dtype=torch.float64)}
    moved = {"layer.weight": base["layer.weight"] + 1e-7}
    assert float(weight_distances([base, moved])[0, 1]) == pytest.approx(50e-7, rel=1e-6)


def test_layers_of_one_say_each() -> None:
    runs = _runs()
    found = weight_distances(runs, by_layer=True)
    squares = np.zeros((4, 4))
    for name in ("0.weight", "2.weight"):
        flat = np.stack([_flat(run, (name,)) for run in runs])
        squares += squareform(pdist(flat)) ** 2 / (flat**2).sum(1).mean()
    np.testing.assert_allclose(found.numpy(), np.sqrt(squares), rtol=1e-10)
    larger = [{n: v * (1000.0 if n.startswith("2") else 1.0) for n, v in run.params.items()} for run in runs]
    np.testing.assert_allclose(weight_distances(larger, by_layer=True).numpy(), found.numpy(), rtol=1e-5)
    zeros = [{**run.params, "2.weight": run.params["2.weight"] * 0} for run in runs]
    assert bool(torch.isfinite(weight_distances(zeros, by_layer=True)).all())


def test_scaling_finds_a_known_plane() -> None:
    points = _points(9)
    found = mds(_table(points))
    assert procrustes(points, found.points.numpy())[2] < 1e-20
    np.testing.assert_allclose(_table(found.points.numpy()).numpy(), _table(points).numpy(), rtol=1e-10, atol=1e-12)
    values = np.linalg.svd(points - points.mean(0), compute_uv=False) ** 2
    np.testing.assert_allclose(found.explained.numpy(), values / values.sum(), rtol=1e-10)
    assert found.lost == 0.0
    assert torch.equal(mds(_table(points)).points, found.points)


def test_what_a_plane_leaves_out_is_said() -> None:
    found = mds(_table(_points(9, 5)), 3)
    values = np.linalg.svd(_points(9, 5) - _points(9, 5).mean(0), compute_uv=False) ** 2
    np.testing.assert_allclose(found.explained.numpy(), (values / values.sum())[:3], rtol=1e-9)
    star = torch.tensor([[0, 1, 1, 1], [1, 0, 2, 2], [1, 2, 0, 2], [1, 2, 2, 0]]).double()  # of no points of any space
    assert mds(star).lost > 0.05
    same = mds(torch.zeros(4, 4))
    assert float(same.points.abs().max()) == 0.0
    assert same.explained.tolist() == [0.0, 0.0]


def test_silhouettes_by_hand() -> None:
    found = silhouette(_table(np.array([[0.0], [1.0], [10.0], [13.0]])), ["a", "a", "b", "b"])
    wanted = [(11.5 - 1) / 11.5, (10.5 - 1) / 10.5, (9.5 - 3) / 9.5, (12.5 - 3) / 12.5]
    assert found.values == pytest.approx(wanted)
    assert found.groups == pytest.approx({"a": sum(wanted[:2]) / 2, "b": sum(wanted[2:]) / 2})
    assert found.mean == pytest.approx(sum(wanted) / 4)
    alone = silhouette(_table(np.array([[0.0], [1.0], [10.0]])), ["a", "a", "b"])
    assert alone.groups["b"] == 0.0


def test_a_picture_keeps_groups_together() -> None:
    points = np.concatenate([_points(6), _points(6) + 40])
    picture = tsne(_table(points))
    assert picture.shape == (12, 2)
    assert silhouette(_table(picture.numpy()), ["a"] * 6 + ["b"] * 6).mean > 0.5
    assert torch.equal(tsne(_table(points)), picture)


def test_mistakes_are_named() -> None:
    runs = _runs(3)
    with pytest.raises(DataError, match="at least two"):
        weight_distances(runs[:1])
    with pytest.raises(DataError, match=r"two architectures; got 0\.weight, 2\.weight in run 1"):
        weight_distances([runs[0], *_runs(1, width=7)])
    table = _table(_points(4))
    with pytest.raises(DataError, match="1 to 3 for 4 runs"):
        mds(table, 4)
    with pytest.raises(DataError, match=r"\(M, M\)"):
        mds(table[:3])
    with pytest.raises(DataError, match="symmetric"):
        mds(table + torch.eye(4))
    with pytest.raises(DataError, match="finite"):
        mds(table * math.nan)
    with pytest.raises(DataError, match="groups of runs"):
        silhouette(table, ["a"] * 4)
    with pytest.raises(DataError, match="groups of runs"):
        silhouette(table, list("abcd"))
    with pytest.raises(DataError, match="four runs"):
        tsne(table[:3, :3])
    with pytest.raises(DataError, match="perplexity"):
        tsne(table, perplexity=4)
    with pytest.raises(DataError, match="runs that differ"):
        tsne(torch.zeros(5, 5))
