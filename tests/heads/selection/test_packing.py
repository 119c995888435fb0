"""Which features are kept, in few bytes and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regraft.heads.selection.packing import index_bytes, pack, stored_bytes, unpack


@given(st.integers(0, 400_000).flatmap(lambda top: st.tuples(st.just(top + 1), st.sets(st.integers(0, top)))))
def test_indices_come_back(case):
    width, kept = case[0], torch.tensor(sorted(case[1]), dtype=torch.long)
    packed = pack(kept, width)
    assert torch.equal(unpack(packed), kept)
    assert packed.numel() * packed.element_size() <= min((width + 7) // 8, 4 * len(kept))


@pytest.mark.parametrize(
    ("kept", "width", "dtype", "count"),
    [
        ([0, 3, 16], 17, torch.uint8, 3),  # two bytes each would be six
        ([0, 3, 99], 100, torch.uint16, 3),
        ([7, 65_543], 900_000, torch.uint16, 2),
        ([7, 65_544], 900_000, torch.int32, 2),  # 65,536 left out between them
        ([65_536], 900_000, torch.int32, 1),
        ([], 40, torch.uint16, 0),
    ],
)
def test_the_fewer_bytes_are_taken(kept, width, dtype, count):
    packed = pack(torch.tensor(kept, dtype=torch.long), width)
    assert (packed.dtype, packed.numel()) == (dtype, count)
    assert unpack(packed).tolist() == kept


@pytest.mark.parametrize("wrong", [[3, 1], [2, 2], [-1, 4], [4, 50]])
def test_only_ascending_indices_are_packed(wrong):
    with pytest.raises(ValueError, match="ascending indices below 50"):
        pack(torch.tensor(wrong), 50)


def test_stored_bytes_are_the_head_and_what_says_which_features():
    assert stored_bytes(kept=10, outputs=3, width=17) == 4 * 3 * 12 + 3
    assert stored_bytes(kept=10, outputs=3, width=1_000_000) == 4 * 3 * 12 + 20
    columns = {"a": torch.arange(0, 90, 9), "b": torch.tensor([5])}
    assert index_bytes(columns, {"a": 90, "b": 800, "c": 30}) == 12 + 2
