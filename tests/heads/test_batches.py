"""Each epoch shows every row at most once, and batches are full."""

from itertools import islice

import torch

from regraft.heads.batches import batches


def test_epochs_of_full_batches_without_replacement():
    drawn = list(islice(batches(10, 4, torch.Generator().manual_seed(0)), 40))
    assert {len(rows) for rows in drawn} == {4}
    epochs = [torch.cat(drawn[i : i + 2]) for i in range(0, 40, 2)]  # two rows of ten are left out of each
    assert all(len(set(rows.tolist())) == 8 for rows in epochs)
    assert len({tuple(rows.tolist()) for rows in epochs}) == 20
    assert set(torch.cat(epochs).tolist()) == set(range(10))


def test_a_batch_larger_than_the_rows_is_all_of_them_and_a_seed_gives_one_order():
    first, again = (list(islice(batches(3, 8, torch.Generator().manual_seed(1)), 5)) for _ in range(2))
    assert all(sorted(rows.tolist()) == [0, 1, 2] for rows in first)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
