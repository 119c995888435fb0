"""Molecules: SMILES to graphs, and the graph network against torch-geometric and by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from regraft.errors import DataError, MissingDependencyError
from regraft.network import Network, from_module, load, preprocess_from_json, save
from regraft.network.gcn import AtomNorm, Graph, MoleculeGCN
from regraft.network.loaders import bundled
from regraft.network.molecule import MoleculePreprocess

pytest.importorskip("rdkit", reason="needs the extra: pip install 'regraft[graph]'")

SMILES = ["CCO", "c1ccccc1C(=O)O", "[Na+].[Cl-]", "C", "F/C=C/F", "C[C@H](N)O", "C[C@@H](N)C#N"]


def made(width: int = 8) -> Network:
    """A small one whose normalisation is not the identity."""
    torch.manual_seed(0)
    module = MoleculeGCN(3, width)
    for norm in module.batch_norms:
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    return from_module(module, MoleculePreprocess(), name="gcn")


def oracle(module: nn.Module, width: int) -> nn.Module:
    """The same network as messages along lists of edges, as its authors wrote it."""
    geometric = pytest.importorskip("torch_geometric.nn", reason="needs torch-geometric")
    from torch_geometric.utils import add_self_loops, degree

    class Layer(geometric.MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr="add")
            self.linear = nn.Linear(width, width)
            self.edge_embedding1, self.edge_embedding2 = nn.Embedding(6, width), nn.Embedding(3, width)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor) -> torch.Tensor:
            loops = torch.tensor([[4, 0]]).expand(len(x), -1)
            edge_index, _ = add_self_loops(edge_index, num_nodes=len(x))
            edge_attr = torch.cat([edge_attr, loops])
            edges = self.edge_embedding1(edge_attr[:, 0]) + self.edge_embedding2(edge_attr[:, 1])
            scale = degree(edge_index[0], len(x)).pow(-0.5)
            norm = scale[edge_index[0]] * scale[edge_index[1]]
            return self.propagate(edge_index, x=self.linear(x), edge_attr=edges, norm=norm)

        def message(self, x_j: torch.Tensor, edge_attr: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
            return norm.view(-1, 1) * (x_j + edge_attr)

    class Theirs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x_embedding1, self.x_embedding2 = nn.Embedding(120, width), nn.Embedding(3, width)
            self.gnns = nn.ModuleList([Layer() for _ in module.gnns])
            self.batch_norms = nn.ModuleList([nn.BatchNorm1d(width) for _ in module.gnns])

        def forward(self, row: dict[str, torch.Tensor]) -> torch.Tensor:
            ends = row["edges"].nonzero().T
            codes = row["edges"][ends[0], ends[1]] - 1
            attributes = torch.stack([codes // 3, codes % 3], 1)
            h = self.x_embedding1(row["atoms"]) + self.x_embedding2(row["chirality"])
            for k, (layer, norm) in enumerate(zip(self.gnns, self.batch_norms)):
                h = norm(layer(h, ends, attributes))
                h = h if k + 1 == len(self.gnns) else h.relu()
            return h.mean(0)

    theirs = Theirs()
    theirs.load_state_dict(module.state_dict())
    return theirs.eval()


def test_smiles_become_graphs() -> None:
    row = MoleculePreprocess()("F/C=C/C#N")  # canonical: N#C/C=C/F
    assert row["atoms"].tolist() == [6, 5, 5, 5, 8]
    assert torch.equal(row["edges"], row["edges"].T)
    kinds = {(i, j): divmod(int(row["edges"][i, j]) - 1, 3) for i, j in row["edges"].nonzero().tolist()}
    assert kinds[1, 2][0] == kinds[3, 4][0] == 0  # single
    assert kinds[3, 4][1] in (1, 2)  # of a direction
    assert (kinds[2, 3], kinds[0, 1]) == ((1, 0), (2, 0))  # double, triple
    ring = MoleculePreprocess()("c1ccccc1")["edges"]
    assert sorted(ring.flatten().tolist()) == [0] * 24 + [1 + 3 * 3] * 12
    left, right = (MoleculePreprocess()(f"C[C@{twice}H](N)O")["chirality"].tolist() for twice in ("", "@"))
    assert sorted((left[1], right[1])) == [1, 2]
    assert left[0] == left[2] == left[3] == 0


@pytest.mark.parametrize("smiles", ["F/C=C\\C#N", "C=C(C)[C@@H]1CC=C(C)CC1", "C[C@H](N)C(=O)O"])
def test_a_molecule_is_the_same_however_it_is_written(smiles: str) -> None:
    chemistry = pytest.importorskip("rdkit.Chem")
    molecule, seen = chemistry.MolFromSmiles(smiles), set()
    for seed in range(8):
        order = torch.randperm(molecule.GetNumAtoms(), generator=torch.Generator().manual_seed(seed)).tolist()
        written = chemistry.MolToSmiles(chemistry.RenumberAtoms(molecule, order), canonical=False)
        seen.add(written)
        row, first = MoleculePreprocess()(written), MoleculePreprocess()(smiles)
        assert all(torch.equal(row[name], first[name]) for name in first)
    assert len(seen) > 3


def test_what_rdkit_remarks_of_a_molecule_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    odd, preprocess = "[H+].[Cl-].CCN", MoleculePreprocess()  # "not removing hydrogen atom without neighbors"
    preprocess(odd)
    assert preprocess.canonical(odd) == "CCN.[Cl-].[H+]"
    assert capfd.readouterr() == ("", "")


def test_weights_of_a_path_by_hand() -> None:
    batch = MoleculePreprocess().collate([MoleculePreprocess()(s) for s in ("CCO", "C")])
    graph = Graph.of(batch["edges"], batch["attention_mask"], torch.float64)
    weights = torch.zeros(4, 4, dtype=torch.float64)
    weights[graph.target, graph.source] = graph.weight
    root = 6**-0.5
    by_hand = torch.tensor([[1 / 2, root, 0], [root, 1 / 3, root], [0, root, 1 / 2]], dtype=torch.float64)
    torch.testing.assert_close(weights, torch.block_diag(by_hand, torch.ones(1, 1)).double())  # an atom alone below
    torch.testing.assert_close(graph.bonds[:3, 0], torch.tensor([root, 2 * root, root], dtype=torch.float64))
    torch.testing.assert_close(graph.bonds[:, 4], weights.diagonal())  # the self-loops
    torch.testing.assert_close(graph.directions[:, 0], weights.sum(1))


def test_equals_torch_geometric() -> None:
    network = made()
    theirs = oracle(network.module, 8)
    rows = [network.preprocess(smiles) for smiles in SMILES]
    with torch.no_grad():
        ours = network.forward(network.preprocess.collate(rows))
        expected = torch.stack([theirs(row) for row in rows])
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_a_molecules_features_do_not_depend_on_its_neighbours() -> None:
    network = made()
    rows = [network.preprocess(smiles) for smiles in SMILES]
    alone = torch.cat([network.forward(network.preprocess.collate([row])) for row in rows])
    torch.testing.assert_close(network.forward(network.preprocess.collate(rows)), alone, rtol=1e-5, atol=1e-5)


def test_batch_statistics_leave_padding_out() -> None:
    norm, plain = AtomNorm(4).train(), nn.BatchNorm1d(4).train()
    values = torch.randn(3, 5, 4)
    mask = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]])
    out = norm(values, mask)
    torch.testing.assert_close(out[mask.bool()], plain(values[mask.bool()]))
    torch.testing.assert_close(norm.running_mean, plain.running_mean)
    assert out[~mask.bool()].abs().sum() == 0


def test_sites_are_layers_of_atoms() -> None:
    network = made()
    assert network.blocks == ("gnns.0", "gnns.1", "gnns.2")
    kinds = [(site.kind, site.layout, site.shape[-1]) for site in network.sites]
    assert kinds == [("block", "tokens", 8), ("activation", "tokens", 8)] * 2 + [
        ("block", "tokens", 8), ("embedding", "vector", 8),
    ]  # fmt: skip


def test_the_form_of_backbone_folders_holds_it(tmp_path: Path) -> None:
    module = made().module
    options: dict[str, Any] = {"layers": 3, "width": 8}
    bundled.save_folder(
        tmp_path / "a", module, arch="molecule_gcn", options=options, preprocess=MoleculePreprocess(), classes=()
    )
    network = load(str(tmp_path / "a"))
    batch = network.preprocess.collate([network.preprocess(smiles) for smiles in SMILES])
    torch.testing.assert_close(network.forward(batch), made().forward(batch))
    save(network, tmp_path / "b")
    assert load(str(tmp_path / "b")).fingerprint == network.fingerprint
    assert preprocess_from_json(json.loads(json.dumps(network.preprocess.to_json()))) == network.preprocess


@pytest.mark.parametrize(
    ("smiles", "said"),
    [("a good film", "is no molecule that RDKit reads"), ("", "no molecule"), ("C1CC", "no molecule"),
     ("*CC", "an atom of no element"), ("[NH3]->[Fe]", "a dative bond")],
)  # fmt: skip
def test_what_is_no_molecule(smiles: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        MoleculePreprocess()(smiles)
    assert said in MoleculePreprocess().fault(smiles)


def test_without_rdkit_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rdkit", None)
    with pytest.raises(MissingDependencyError, match=r"regraft\[graph\]"):
        MoleculePreprocess()("CCO")


def test_published_weights_equal_torch_geometric(data_pack: Path) -> None:
    weights = data_pack / "weights" / "gcn_chem_supervised" / "model.safetensors"
    network = load("regraft.network.gcn:molecule_gcn", weights=str(weights))
    theirs = oracle(network.module, 300)
    rows = [network.preprocess(smiles) for smiles in SMILES]
    with torch.no_grad():
        ours = network.forward(network.preprocess.collate(rows))
        expected = torch.stack([theirs(row) for row in rows])
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
