"""Plans over rows whose tokens have no order."""

from __future__ import annotations

import pytest
import torch

from regraft.features import Taps, plan, pool_batch
from regraft.network import from_module
from regraft.network.gcn import MoleculeGCN
from regraft.network.molecule import MoleculePreprocess

pytest.importorskip("rdkit", reason="needs the extra: pip install 'regraft[graph]'")


def test_atoms_are_averaged_at_every_target_size() -> None:
    torch.manual_seed(0)
    network = from_module(MoleculeGCN(3, 8), MoleculePreprocess())
    wanted = plan(network, [Taps(sizes=(8, 512, None))])
    assert {block.pooling.label for block in wanted.blocks} == {""}
    assert wanted.width == 8 * len(network.sites)
    rows = [network.preprocess(smiles) for smiles in ("CCCC(=O)O", "OC(=O)CCC")]
    values = pool_batch(network, wanted.blocks, network.preprocess.collate(rows))
    for value in values.values():
        torch.testing.assert_close(value[0], value[1])
