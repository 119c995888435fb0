"""Gathered columns are the kept design's, in memory."""

import os

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from tests.heads.problems import classes_of, design_of, features

from regraft.heads import held
from regraft.heads.held import on_disk
from regraft.heads.l2.model import Basis
from regraft.heads.selection import foldwise
from regraft.heads.selection.fold_tasks import fold_tasks
from regraft.heads.selection.foldwise import Foldwise, fold_fitters, gathered
from regraft.heads.selection.kept import kept_design
from regraft.heads.selection.panel import Panel
from regraft.linear import Dense, FeatureDesign, Matrix, SignedRoot, Taken, UnitRows

ROWS = 23
CHOICES = [
    {"a": torch.tensor([5, 0, 39]), "b": torch.tensor([], dtype=torch.long), "c": torch.tensor([1])},
    {"b": torch.arange(0, 60, 7)},
]


def design(dtype: torch.dtype, hard: bool = False) -> FeatureDesign:
    """Two layers of unit rows and a plain one; ``hard`` ones hold a row of zeros and one whose squares leave the range
    of float32."""
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(ROWS + 4, width, generator=generator).to(dtype) for width in (40, 60))
    if hard:
        a[4], a[6], b[5] = 0, a[6] * 1e25, b[5] * 1e25  # roots of the last are in range again
    taken = Taken(Dense(a), torch.arange(ROWS).flip(0) + 2)
    matrices: dict[str, Matrix] = {"a": UnitRows(taken), "b": UnitRows(SignedRoot(Dense(b[:ROWS])))}
    return FeatureDesign({**matrices, "c": Dense(b[:ROWS, :2].clone())}, 3)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gathered_columns_are_the_kept_ones(dtype, hard, normalise, monkeypatch):
    monkeypatch.setattr(foldwise, "_READ_BYTES", 1000)  # several reads
    whole = design(dtype, hard)
    for found, choice in zip(gathered(whole, CHOICES, normalise), CHOICES):
        wanted = kept_design(whole, choice, normalise).dense()
        tolerance = 2**-8 if dtype == torch.bfloat16 else 4 * torch.finfo(dtype).eps  # what is read is rounded
        torch.testing.assert_close(found.dense(), wanted.to(found.dtype), rtol=tolerance, atol=0)


def test_sixteen_bits_are_held_in_float32_where_that_fits(monkeypatch):
    whole = design(torch.bfloat16)
    monkeypatch.setattr(foldwise, "on_disk", None)
    for room, dtype in ((4, torch.float32), (3, torch.bfloat16), (2, torch.bfloat16)):
        monkeypatch.setattr(foldwise, "HELD_BYTES", room * ROWS * kept_entries(CHOICES))
        assert all(found.dtype == dtype for found in gathered(whole, CHOICES, False))


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_memory_has_no_room_for_lies_in_a_file(dtype, normalise, monkeypatch):
    whole, files = design(dtype), []
    monkeypatch.setattr(foldwise, "_READ_BYTES", 1000)  # several reads
    monkeypatch.setattr(foldwise, "HELD_BYTES", 1)
    monkeypatch.setattr(held, "_SPARE", 0)
    monkeypatch.setattr(held, "_in_ram", lambda folder: False)  # where temporary files lie is another test's
    monkeypatch.setattr(foldwise, "on_disk", lambda *asked: files.append(on_disk(*asked)) or files[-1])
    for found, choice in zip(gathered(whole, CHOICES, normalise), CHOICES):
        (file,) = files  # one of all: a process may open few
        assert all(isinstance(matrix, Dense) and within(matrix.tensor, file) for matrix in found.matrices.values())
        assert found.dtype == dtype
        wanted = kept_design(whole, choice, normalise).dense()
        tolerance = 2**-8 if dtype == torch.bfloat16 else 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(found.dense(), wanted, rtol=tolerance, atol=0)


def test_no_file_is_made_where_it_saves_little_or_has_no_room(monkeypatch):
    whole, most = design(torch.float32), [{"a": torch.arange(40), "b": torch.arange(11)}]
    monkeypatch.setattr(foldwise, "HELD_BYTES", 1)
    assert not any(isinstance(matrix, Dense) for matrix in gathered(whole, most, False)[0].matrices.values())
    monkeypatch.setattr(held, "_SPARE", 2**60)
    assert not any(isinstance(matrix, Dense) for matrix in gathered(whole, CHOICES, False)[1].matrices.values())


def within(part, whole):
    return part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


@pytest.mark.parametrize("fault", ["no folder", "full", "in RAM"])
def test_columns_are_read_when_asked_for_where_no_file_can_be_made(fault, monkeypatch, tmp_path):
    def refuse(*_):
        raise FileNotFoundError("no usable temporary directory") if fault == "no folder" else OSError("no space left")

    monkeypatch.setattr(foldwise, "HELD_BYTES", 1)
    if fault == "no folder":
        monkeypatch.setattr(held.tempfile, "gettempdir", refuse)
    elif fault == "full":
        monkeypatch.setattr(held.os, "posix_fallocate", refuse, raising=False)
    else:
        device = tmp_path.stat().st_dev
        monkeypatch.setattr(held.tempfile, "gettempdir", lambda: str(tmp_path))
        monkeypatch.setattr(held, "_MOUNTS", tmp_path / "mounts")
        held._MOUNTS.write_text(f"36 25 {os.major(device)}:{os.minor(device)} / /tmp rw shared:9 - tmpfs tmpfs rw\n")
    whole = design(torch.float32)
    for found, choice in zip(gathered(whole, CHOICES, False), CHOICES):
        assert not any(isinstance(matrix, Dense) for matrix in found.matrices.values())
        assert torch.equal(found.dense(), kept_design(whole, choice, False).dense())


def kept_entries(choices):
    return sum(len(index) for choice in choices for index in choice.values())


@pytest.mark.parametrize(("width", "grams"), [(12, 0), (200, 4)])
def test_a_gram_of_the_rows_is_made_only_where_more_columns_are_chosen(width, grams, monkeypatch):
    x, codes = features(60, 200, 3)
    made, whole = [], Basis.of_gram.__func__
    monkeypatch.setattr(Basis, "of_gram", classmethod(lambda cls, *a: made.append(len(a[0])) or whole(cls, *a)))
    x = torch.from_numpy(x)
    design = FeatureDesign({"unit": UnitRows(Dense(x[:, :198])), "plain": Dense(x[:, 198:])}, 3)
    folds, response = torch.arange(60) % 4, classes_of(codes)
    choice = {"unit": torch.arange(width - 2), "plain": torch.arange(2)}
    tasks, choices = fold_tasks(response, folds), [choice] * 4
    fits = Foldwise(folds, fold_fitters(design, Panel(design), choices, True, tasks, response, folds))
    found, _ = fits.out_of_fold("ridge", [0.1, 1e-3])
    assert made == [60] * grams
    alone = Foldwise(folds, fold_fitters(design, None, choices, True, tasks, response, folds))
    torch.testing.assert_close(found, alone.out_of_fold("ridge", [0.1, 1e-3])[0])


def test_the_rows_that_are_fitted_say_whether_folds_need_a_basis(monkeypatch):
    """Not the rows of a whole of which a panel has a draw."""
    x, codes = features(60, 200, 3)
    folds, drawn, response = torch.arange(60) % 4, design_of(x, 3), classes_of(codes)
    tasks, choices = fold_tasks(response, folds), [{"layer0": torch.arange(k, k + 12)} for k in range(4)]
    monkeypatch.setattr("regraft.heads.l2.fitters.ROTATED_LIMIT", 60 * 12)
    whole = design_of(np.tile(x, (2, 1)), 3)
    for fit in fold_fitters(whole, Panel(drawn), choices, False, tasks, response, folds):
        assert bool((fit.weights == 1).all())


@pytest.mark.parametrize(("width", "normalise"), [(12, False), (12, True), (200, False)])
def test_a_fold_is_left_out_without_a_basis_of_its_own(width, normalise, monkeypatch):
    x, codes = features(60, 200, 3)
    folds, design, response = torch.arange(60) % 4, design_of(x, 3), classes_of(codes)
    tasks, choices = fold_tasks(response, folds), [{"layer0": torch.arange(k, k + width) % 200} for k in range(4)]
    fits = Foldwise(folds, fold_fitters(design, Panel(design), choices, normalise, tasks, response, folds))
    monkeypatch.setattr(torch.linalg, "eigh", None)
    found, _ = fits.out_of_fold("ridge", [0.1])
    for k, choice in enumerate(choices):
        kept = kept_design(design, choice, normalise).dense().double()
        penalty = 0.1 * float((kept - kept.mean(0)).square().sum(1).mean())
        inside = folds != k
        model = Ridge(alpha=penalty * int(inside.sum())).fit(kept[inside], response.values[inside])
        torch.testing.assert_close(
            found[0, ~inside], torch.from_numpy(model.predict(kept[~inside])), rtol=1e-4, atol=1e-5
        )
