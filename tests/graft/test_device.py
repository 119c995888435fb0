"""Every method on an accelerator: as on the processor, and read there; run with ``--device cuda``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.features.toy import toy_arrays, toy_manifest, toy_network

import regraft
from regraft.data import Manifest, scan
from regraft.graft import METHODS, Recipe
from regraft.network import Network

TRAINED = [name for name, recipe in METHODS.items() if recipe.train is not None]
FROZEN = [name for name in METHODS if name not in TRAINED]


def numbers(rows: int, seed: int = 0) -> Manifest:
    x, _ = toy_arrays(rows, seed=seed)
    return scan((x, x[:, 0].mean((1, 2)) + 0.1 * np.random.default_rng(seed).normal(size=rows)))


def short(method: str) -> Recipe:
    return METHODS[method].altered(steps=6) if method in TRAINED else METHODS[method]


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("rows", [toy_manifest, numbers], ids=["classes", "numbers"])
def test_a_run_there_is_read_here(method: str, rows, accelerator: str, tmp_path: Path) -> None:
    run = regraft.adapt(rows(60), toy_network(), method=short(method), device=accelerator, cache=tmp_path / "cache")
    assert run.adapted.network.device.type == torch.device(accelerator).type
    run.save(tmp_path / "run")
    x = toy_arrays(20, seed=3)[0]
    expected = values(run.adapted, x)
    for device in ("cpu", accelerator):
        again = regraft.load(tmp_path / "run", model=toy_network(), device=device)
        assert again.network.device.type == torch.device(device).type
        np.testing.assert_allclose(values(again, x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", FROZEN)
@pytest.mark.parametrize("rows", [toy_manifest, numbers], ids=["classes", "numbers"])
def test_what_is_chosen_there_is_chosen_here(method: str, rows, accelerator: str, tmp_path: Path) -> None:
    there, here = (
        regraft.adapt(rows(60), toy_network(), method=method, device=device, cache=tmp_path / device)
        for device in (accelerator, "cpu")
    )
    x = toy_arrays(20, seed=3)[0]
    np.testing.assert_allclose(values(there.adapted, x), values(here.adapted, x), rtol=1e-3, atol=1e-3)
    assert there.score.value == pytest.approx(here.score.value, abs=1e-3)


def test_features_are_equal_to_rounding(accelerator: str) -> None:
    """No product runs in fewer bits than the numbers have, whatever the accelerator would do for speed."""
    network: Network = toy_network()
    batch = network.example(8)
    exact = network.module.double()(batch.double())
    found = toy_network().to(accelerator)
    torch.testing.assert_close(found.forward(found.place(batch)).cpu().double(), exact, rtol=1e-5, atol=1e-6)


def values(adapted, x: np.ndarray) -> np.ndarray:
    found = adapted.predict_proba(x)
    return found.probabilities if found.probabilities is not None else found.labels
