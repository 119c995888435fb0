"""The sweep and a run on a CUDA device; skipped where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.features.toy import toy_arrays, toy_manifest, toy_network

import regraft
from regraft.features import Taps, plan, sweep

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_features_are_those_of_the_processor(tmp_path):
    wanted = plan(toy_network(), [Taps(sizes=(16, None))])
    here = sweep(toy_network(), toy_manifest(), wanted, cache=tmp_path / "cpu").matrices()
    there = sweep(toy_network().to("cuda"), toy_manifest(), wanted, cache=tmp_path / "cuda").matrices()
    for name, matrix in here.items():
        torch.testing.assert_close(there[name].rows(slice(None)), matrix.rows(slice(None)), atol=2e-3, rtol=2e-3)


def test_a_run_on_the_device_predicts_like_one_on_the_processor(tmp_path):
    x = toy_arrays(20, seed=3)[0]
    one = regraft.adapt(toy_manifest(90), toy_network(), device="cuda", cache=tmp_path / "cuda")
    two = regraft.adapt(toy_manifest(90), toy_network(), device="cpu", cache=tmp_path / "cpu")
    np.testing.assert_allclose(one.predict_proba(x).probabilities, two.predict_proba(x).probabilities, atol=0.02)
    assert one.adapted.network.device.type == "cuda"
