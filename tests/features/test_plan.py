"""Plans: what may be asked for, and rows whose tokens have no order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.features.toy import toy_network

from regraft.errors import TapError
from regraft.features import Taps, by_size, plan, pool_batch
from regraft.network import from_module
from regraft.network.gcn import MoleculeGCN
from regraft.network.molecule import MoleculePreprocess


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sizes": ("512",)}, r"got \('512',\)"),
        ({"sizes": "512"}, "got '512'"),
        ({"sizes": (0,)}, "above 0"),
        ({"sizes": (512, -3)}, "above 0"),
        ({"sizes": (2.5,)}, "whole number"),
        ({"sizes": (True,)}, "whole number"),
        ({"sizes": 512}, "give them as a tuple"),
        ({"sizes": ()}, "at least one"),
        ({"cls": "foo"}, "expected pooled, only, apart"),
    ],
)
def test_taps_that_mean_nothing_are_refused(settings: dict, words: str) -> None:
    with pytest.raises(TapError, match=words):
        Taps(**settings)


def test_no_target_size_is_called_a_plain_average() -> None:
    assert list(by_size(toy_network(), Taps(sizes=(np.int64(16), None)))) == ["16", "plain average"]


def test_atoms_are_averaged_at_every_target_size() -> None:
    pytest.importorskip("rdkit", reason="needs the extra: pip install 'regraft[graph]'")
    torch.manual_seed(0)
    network = from_module(MoleculeGCN(3, 8), MoleculePreprocess())
    wanted = plan(network, [Taps(sizes=(8, 512, None))])
    assert {block.pooling.label for block in wanted.blocks} == {""}
    assert wanted.width == 8 * len(network.sites)
    rows = [network.preprocess(smiles) for smiles in ("CCCC(=O)O", "OC(=O)CCC")]
    values = pool_batch(network, wanted.blocks, network.preprocess.collate(rows))
    for value in values.values():
        torch.testing.assert_close(value[0], value[1])
