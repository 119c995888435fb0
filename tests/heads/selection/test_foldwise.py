"""Gathered columns are the kept design's, in memory."""

import pytest
import torch
from tests.heads.problems import classes_of, design_of, features

from regraft.heads.l2.model import Basis
from regraft.heads.selection import foldwise
from regraft.heads.selection.fold_tasks import fold_tasks
from regraft.heads.selection.foldwise import Foldwise, fold_fitters, gathered
from regraft.heads.selection.kept import kept_design
from regraft.heads.selection.panel import Panel
from regraft.linear import Dense, FeatureDesign, Matrix, SignedRoot, Taken, UnitRows

ROWS = 23
CHOICES = [{"a": torch.tensor([5, 0, 39]), "b": torch.tensor([], dtype=torch.long)}, {"b": torch.arange(0, 60, 7)}]


def design(dtype: torch.dtype, hard: bool = False) -> FeatureDesign:
    """Two layers; ``hard`` ones hold a row of zeros and one whose squares leave the range of float32."""
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(ROWS + 4, width, generator=generator).to(dtype) for width in (40, 60))
    if hard:
        a[4], a[6], b[5] = 0, a[6] * 1e25, b[5] * 1e25  # roots of the last are in range again
    taken = Taken(Dense(a), torch.arange(ROWS).flip(0) + 2)
    matrices: dict[str, Matrix] = {"a": UnitRows(taken), "b": UnitRows(SignedRoot(Dense(b[:ROWS])))}
    return FeatureDesign(matrices, 3)


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
    entries = ROWS * sum(len(index) for choice in CHOICES for index in choice.values())
    for room, dtype, in_memory in ((4, torch.float32, True), (3, torch.bfloat16, True), (1, torch.bfloat16, False)):
        monkeypatch.setattr(foldwise, "HELD_BYTES", room * entries)
        for found in gathered(whole, CHOICES, False):
            assert found.dtype == dtype
            assert all(isinstance(matrix, Dense) for matrix in found.matrices.values()) == in_memory


@pytest.mark.parametrize(("width", "grams"), [(12, 0), (200, 4)])
def test_a_gram_of_the_rows_is_made_only_where_more_columns_are_chosen(width, grams, monkeypatch):
    x, codes = features(60, 200, 3)
    made, whole = [], Basis.of_gram.__func__
    monkeypatch.setattr(Basis, "of_gram", classmethod(lambda cls, *a: made.append(len(a[0])) or whole(cls, *a)))
    folds, design, response = torch.arange(60) % 4, design_of(x, 3), classes_of(codes)
    tasks, choices = fold_tasks(response, folds), [{"layer0": torch.arange(width)}] * 4
    fits = Foldwise(folds, fold_fitters(design, Panel(design), choices, True, tasks, response, folds))
    found, _ = fits.out_of_fold("ridge", [0.1, 1e-3])
    assert made == [60] * grams
    alone = Foldwise(folds, fold_fitters(design, None, choices, True, tasks, response, folds))
    torch.testing.assert_close(found, alone.out_of_fold("ridge", [0.1, 1e-3])[0])
