"""What no data can make right is refused before anything is read or kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.features.toy import toy_manifest, toy_network

import regraft
from regraft.errors import ModelError, RecipeError
from regraft.graft import adapt, diagnose, rank
from regraft.graft.options import Options, check_options


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("batch_size", 0, "a whole number, at least 1"),
        ("batch_size", None, "a whole number, at least 1"),
        ("workers", -1, "a whole number, at least 0"),
        ("folds", 2.5, "a whole number, at least 2"),
        ("limit", 20.0, "a whole number, at least 2"),
        ("seed", "a", "0 to 4,294,967,294"),
        ("seed", 1.5, "0 to 4,294,967,294"),
    ],
)
def test_numbers_out_of_range_leave_nothing_in_the_cache(name, value, expected, tmp_path):
    with pytest.raises(RecipeError) as told:
        regraft.adapt(toy_manifest(30), toy_network(), method="probe", cache=tmp_path, **{name: value})
    assert (told.value.what, told.value.expected) == (f"{name} {value!r} is out of range", expected)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "value"),
    [("cache", 3), ("skip_bad", "no"), ("tolerance", "x"), ("progress", 1), ("before", 1), ("after", "save")],
)
def test_what_is_of_another_type_is_refused_before_the_pass(name, value, tmp_path):
    with pytest.raises(RecipeError, match=rf"{name}.*got {value!r}"):
        regraft.adapt(toy_manifest(30), toy_network(), method="head2toe", **{"cache": tmp_path, name: value})
    assert not any(tmp_path.iterdir())


def test_weights_beside_a_network_that_is_loaded_are_refused(tmp_path):
    rows, network, options = toy_manifest(30), toy_network(), Options(weights="w.safetensors", cache=tmp_path)
    for call, models in ((adapt, network), (diagnose, network), (rank, ["a", network])):
        with pytest.raises(ModelError, match="weights are named beside toy"):
            call(rows, models, options=options)


def test_numbers_of_numpy_are_numbers():
    assert check_options(Options(seed=np.int64(3), folds=np.int32(2), batch_size=np.uint8(8), device="cpu")) == "cpu"


@pytest.mark.parametrize("device", [0, torch.device("cuda:99"), torch.device("xla")])
def test_devices_of_torch_that_are_not_there_are_refused_in_a_sentence(device):
    with pytest.raises(RecipeError, match=r"expected auto, cpu, cuda or mps"):
        check_options(Options(device=device))


def test_a_method_that_is_no_name_is_unknown():
    with pytest.raises(RecipeError, match="method 3 is unknown"):
        regraft.adapt(toy_manifest(30), toy_network(), method=3)


def test_a_run_seeded_by_numpy_is_saved_as_any_other(tmp_path):
    for name, seed in (("plain", 3), ("numpy", np.int64(3))):
        run = regraft.adapt(toy_manifest(30), toy_network(), cache=tmp_path / "cache", seed=seed)
        run.save(tmp_path / name)
    assert (tmp_path / "numpy" / "config.json").read_bytes() == (tmp_path / "plain" / "config.json").read_bytes()
    assert regraft.Record.load(tmp_path / "numpy" / "record.json").seeds == {"seed": 3}


_TOO_FEW = [("batch_size", 0), ("batch_size", -1), ("batch_size", 2.5), ("workers", -1)]


@pytest.mark.parametrize(("name", "value"), _TOO_FEW)
def test_predictions_in_batches_of_no_rows_are_refused(name, value, tmp_path):
    run = regraft.adapt(toy_manifest(30), toy_network(), cache=tmp_path)
    with pytest.raises(RecipeError, match=f"{name} {value} is out of range"):
        run.predict(toy_manifest(30), **{name: value})
