"""A graph convolutional network over molecules (Kipf and Welling, 2017; with bonds, as Hu et al., 2020).

Its modules carry the names of "Strategies for Pre-training Graph Neural Networks", so that the weights published with
that paper load as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from regraft.network.molecule import ATOMS, BONDS, CHIRALITIES, DIRECTIONS, SELF_LOOP, MoleculePreprocess

__all__ = ["Graph", "MoleculeGCN", "molecule_gcn"]


@dataclass(frozen=True)
class Graph:
    """A batch of molecules as lists of their N atoms and E edges, padding left out.

    Attributes:
        real: ``(B, L)`` bool, the atoms' places.
        source, target: ``(E,)`` numbers of atoms; every bond is there in both directions, every atom's loop once.
        weight: ``(E,)``, the symmetric normalisation ``d_i^{-1/2} d_j^{-1/2}``, d counting the loop.
        bonds, directions: ``(N, 6)`` and ``(N, 3)``: an atom's weights summed by the type and direction of its edges.
    """

    real: Tensor
    source: Tensor
    target: Tensor
    weight: Tensor
    bonds: Tensor
    directions: Tensor

    @staticmethod
    def of(edges: Tensor, mask: Tensor, dtype: torch.dtype) -> Graph:
        """From codes ``(B, L, L)`` and the mask ``(B, L)``."""
        real = mask.bool()
        codes = edges + torch.diag_embed(mask.long()) * (1 + DIRECTIONS * SELF_LOOP)
        number = (real.flatten().long().cumsum(0) - 1).view_as(mask)
        row, here, there = codes.nonzero(as_tuple=True)
        source, target, code = number[row, there], number[row, here], codes[row, here, there] - 1
        count = int(real.sum())
        scale = torch.bincount(target, minlength=count).to(dtype).rsqrt()
        weight = scale[source] * scale[target]
        bonds, directions = weight.new_zeros(count, BONDS), weight.new_zeros(count, DIRECTIONS)
        kind = torch.div(code, DIRECTIONS, rounding_mode="floor")
        bonds.index_put_((target, kind), weight, accumulate=True)
        directions.index_put_((target, code % DIRECTIONS), weight, accumulate=True)
        return Graph(real, source, target, weight, bonds, directions)


class Convolution(nn.Module):
    """One layer: m_i = W h_i + b, then for every atom i over its neighbours and itself

    h'_i = Σ_j d_i^{-1/2} d_j^{-1/2} (m_j + e_ij),

    with d the number of neighbours plus one and e_ij the sum of the embeddings of the bond's type and direction.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.edge_embedding1 = nn.Embedding(BONDS, width)
        self.edge_embedding2 = nn.Embedding(DIRECTIONS, width)

    def forward(self, nodes: Tensor, graph: Graph) -> Tensor:
        """``(B, L, D)`` of states ``(B, L, D)``; zeros where there is no atom."""
        states = self.linear(nodes[graph.real])
        edges = graph.bonds @ self.edge_embedding1.weight + graph.directions @ self.edge_embedding2.weight
        messages = states[graph.source] * graph.weight[:, None]
        out = torch.zeros_like(nodes)
        out[graph.real] = edges.index_add(0, graph.target, messages)
        return out


class AtomNorm(nn.BatchNorm1d):
    """BatchNorm over real atoms: padding has no part in the batch's statistics."""

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        """``(B, L, D)`` of states and their mask ``(B, L)``."""
        if not self.training or mask is None:  # the running statistics hold for every atom alone
            return super().forward(input.flatten(0, -2)).view_as(input)
        real = mask.bool()
        out = torch.zeros_like(input)
        out[real] = super().forward(input[real])
        return out


class MoleculeGCN(nn.Module):
    """Atoms' states after ``layers`` convolutions; the network's embedding is their mean over a molecule.

    Molecules come padded to the largest of their batch, with a mask; no edge joins padding to an atom, so what an
    atom's state is depends on its own molecule alone. Sums go along lists of real atoms and edges.

    Args:
        layers: convolutions.
        width: of the states.
        dropout: in training, where it is switched on.
    """

    def __init__(self, layers: int = 5, width: int = 300, dropout: float = 0.5) -> None:
        super().__init__()
        self.x_embedding1 = nn.Embedding(ATOMS, width)
        self.x_embedding2 = nn.Embedding(CHIRALITIES, width)
        self.gnns = nn.ModuleList([Convolution(width) for _ in range(layers)])
        self.batch_norms = nn.ModuleList([AtomNorm(width) for _ in range(layers)])
        self.dropout = nn.Dropout(dropout)
        self.preprocess = MoleculePreprocess()

    def forward(self, atoms: Tensor, chirality: Tensor, edges: Tensor, attention_mask: Tensor) -> Tensor:
        """``(B, L, width)`` states.

        Args:
            atoms: ``(B, L)`` atomic numbers less one.
            chirality: ``(B, L)`` codes.
            edges: ``(B, L, L)``: 0 where there is no bond, else 1 + 3 · type + direction.
            attention_mask: ``(B, L)``, 1 at real atoms.
        """
        graph = Graph.of(edges, attention_mask, self.x_embedding1.weight.dtype)
        nodes = self.x_embedding1(atoms) + self.x_embedding2(chirality)
        for number, (convolution, norm) in enumerate(zip(self.gnns, self.batch_norms)):
            nodes = norm(convolution(nodes, graph), attention_mask)
            if number + 1 < len(self.gnns):
                nodes = functional.relu(nodes)
            nodes = self.dropout(nodes)
        return nodes


def molecule_gcn(layers: int = 5, width: int = 300, dropout: float = 0.5) -> MoleculeGCN:
    """A :class:`MoleculeGCN` with freshly drawn weights."""
    return MoleculeGCN(layers, width, dropout)
