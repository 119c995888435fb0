"""SMILES → graphs of atoms and bonds, by RDKit: imported here alone, when the first molecule is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from regraft.errors import DataError, MissingDependencyError
from regraft.network.preprocess import Modality, Preprocess

__all__ = ["ATOMS", "BONDS", "CHIRALITIES", "DIRECTIONS", "SELF_LOOP", "MoleculePreprocess"]

ATOMS, CHIRALITIES, BONDS, DIRECTIONS = 120, 3, 6, 3  # rows of the tables of embeddings
ELEMENTS = 118
SELF_LOOP = 4  # its bond type, of direction 0
_TYPES = {"SINGLE": 0, "DOUBLE": 1, "TRIPLE": 2, "AROMATIC": 3}
_WAYS = {"NONE": 0, "ENDUPRIGHT": 1, "ENDDOWNRIGHT": 2}
_CHIRAL = {"CHI_TETRAHEDRAL_CW": 1, "CHI_TETRAHEDRAL_CCW": 2}  # any other kind counts as not specified
_EXAMPLE_ATOMS = 12


def _rdkit() -> Any:
    try:
        import rdkit
        import rdkit.Chem
    except ImportError as error:
        raise MissingDependencyError(
            "rdkit is not installed or does not load", got=str(error), do="pip install 'regraft[graph]'"
        ) from error
    return rdkit


@lru_cache(maxsize=2**17)  # folds, findings and records each ask for every row
def _canonical(smiles: str) -> str:
    chemistry = _rdkit()
    with chemistry.rdBase.BlockLogs():
        return str(chemistry.Chem.CanonSmiles(smiles))


@dataclass(frozen=True)
class MoleculePreprocess(Preprocess):
    """A SMILES string to a graph: atoms by element and chirality, bonds by type and direction (Hu et al., 2020).

    Hydrogens that are not written stay implicit. Every molecule is read as RDKit's canonical SMILES write it, for which
    way an atom turns and a bond points is told by the order of writing: so a prediction does not depend on it. Rows are
    ragged: a batch is padded to its largest molecule.
    """

    modality: ClassVar[Modality] = "text"
    libraries: ClassVar[tuple[str, ...]] = ("rdkit",)
    ragged: ClassVar[bool] = True
    ordered: ClassVar[bool] = False
    strict: ClassVar[bool] = True

    def __call__(self, raw: str) -> dict[str, Tensor]:
        """``atoms`` and ``chirality`` ``(L,)``, ``edges`` ``(L, L)``, ``attention_mask`` ``(L,)``.

        Raises:
            DataError: RDKit reads no molecule there, or it holds what the tables have no row for.
        """
        chemistry = _rdkit()
        with chemistry.rdBase.BlockLogs():
            molecule = chemistry.Chem.MolFromSmiles(str(raw))
        if molecule is None or not molecule.GetNumAtoms():
            raise DataError(f"{str(raw)[:80]!r} is no molecule that RDKit reads", expected="SMILES such as CCO")
        with chemistry.rdBase.BlockLogs():
            molecule = chemistry.Chem.MolFromSmiles(chemistry.Chem.MolToSmiles(molecule)) or molecule
        atoms = list(molecule.GetAtoms())
        elements = torch.tensor([atom.GetAtomicNum() - 1 for atom in atoms])
        if not ((elements >= 0) & (elements < ELEMENTS)).all():
            raise DataError(f"{str(raw)[:80]!r} holds an atom of no element", do="write the whole molecule")
        edges = torch.zeros(len(atoms), len(atoms), dtype=torch.long)
        for bond in molecule.GetBonds():
            kind, way = str(bond.GetBondType()), str(bond.GetBondDir())
            if kind not in _TYPES:
                raise DataError(f"{str(raw)[:80]!r} holds a {kind.lower()} bond", expected=", ".join(_TYPES).lower())
            first, last = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
            edges[first, last] = edges[last, first] = 1 + DIRECTIONS * _TYPES[kind] + _WAYS.get(way, 0)
        chirality = torch.tensor([_CHIRAL.get(str(atom.GetChiralTag()), 0) for atom in atoms])
        return {
            "atoms": elements,
            "chirality": chirality,
            "edges": edges,
            "attention_mask": torch.ones(len(atoms), dtype=torch.long),
        }

    def fault(self, raw: str) -> str:
        """Why a string is no molecule that the network reads."""
        try:
            self(raw)
        except DataError as error:
            return error.what
        return ""

    def canonical(self, raw: str) -> str | None:
        """RDKit's canonical SMILES, the same for every way of writing the molecule."""
        return _canonical(str(raw))

    def length(self, raw: str) -> int:
        """In characters, which atoms follow closely enough to choose a molecule's neighbours by."""
        return len(raw)

    def collate(self, items: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The rows padded with zeros to the largest molecule, on every axis of atoms."""
        most = max(len(item["atoms"]) for item in items)
        batch = {
            name: torch.zeros(len(items), *(most for _ in value.shape), dtype=value.dtype)
            for name, value in items[0].items()
        }
        for row, item in enumerate(items):
            for name, value in item.items():
                batch[name][row][tuple(slice(size) for size in value.shape)] = value
        return batch

    def example(self, rows: int) -> dict[str, Tensor]:
        """Chains of random atoms."""
        generator = torch.Generator().manual_seed(0)
        shape = (rows, _EXAMPLE_ATOMS)
        chain = torch.diag(torch.ones(_EXAMPLE_ATOMS - 1, dtype=torch.long), 1)
        return {
            "atoms": torch.randint(0, ELEMENTS, shape, generator=generator),
            "chirality": torch.randint(0, CHIRALITIES, shape, generator=generator),
            "edges": (chain + chain.T).expand(rows, -1, -1).clone(),
            "attention_mask": torch.ones(shape, dtype=torch.long),
        }

    def to_json(self) -> dict[str, Any]:
        """Its kind and how molecules are written; it has no settings."""
        return {"kind": "molecule", "written": "canonical"}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> MoleculePreprocess:
        """The inverse of :meth:`to_json`."""
        return cls()
