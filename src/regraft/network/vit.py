"""A small vision transformer for small images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from regraft.errors import ModelError

__all__ = ["TAPS", "Attention", "Block", "Perceptron", "TinyViT", "tiny_vit"]

TAPS: tuple[str, ...] = (
    "module:embedded",
    "module:blocks.*.norm1",
    "module:blocks.*.attention",
    "blocks.*.mlp.act",
    "module:blocks.*.mlp",
    "embedding",
)
"""Head2Toe's taps of a vision transformer: the embedded tokens; per block the first LayerNorm, the attention, the
hidden layer after GELU and the perceptron's output; the final embedding (Evci et al., 2022, Appendix C)."""


class Attention(nn.Module):
    """Multi-head self-attention: ``softmax(Q Kᵀ / √d) V`` per head of width d, then a linear layer.

    ``(B, L, width)`` to the same shape. Paper: Vaswani et al., Attention Is All You Need (2017), Section 3.2.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        batch, length, width = x.shape
        parts = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        return self.projection(mixed.transpose(1, 2).reshape(batch, length, width))


class Perceptron(nn.Module):
    """``W₂ GELU(W₁ x + b₁) + b₂`` for every token: ``(B, L, width)`` to the same shape."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    """``x + attention(norm1(x))``, then ``x + mlp(norm2(x))``: normalisation comes first (pre-norm)."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Perceptron(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, L, width)`` to the same shape."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TinyViT(nn.Module):
    """A vision transformer: square patches, a class token, learnt positions, ``depth`` blocks, linear head.

    ``(B, in_channels, size, size)`` to logits ``(B, classes)``, read from the class token after the last
    normalisation. The sequence is the class token and then ``(size / patch)²`` patches, row by row. In
    training mode every row of a batch goes without the patches that a random draw leaves out, a part of
    ``1 - keep`` of them (PatchDropout: Liu et al., 2023): cheaper, and less is learnt by heart.

    Paper: Dosovitskiy et al., An Image is Worth 16x16 Words (2021), Eqs. 1-4.
    """

    def __init__(
        self, classes: int, size: int, patch: int, shape: tuple[int, int, int], in_channels: int, keep: float
    ) -> None:
        super().__init__()
        depth, width, heads = shape
        self.keep = keep
        self.patches = nn.Conv2d(in_channels, width, patch, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.embedded = nn.Identity()
        self.blocks = nn.ModuleList(Block(width, heads, 4 * width) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Conv2d):
                nn.init.xavier_uniform_(part.weight.view(len(part.weight), -1))
                if part.bias is not None:
                    nn.init.zeros_(part.bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw what is the network's own, the class token and the positions: small normal numbers."""
        for token in (self.cls_token, self.positions):
            nn.init.normal_(token, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(B, classes)``."""
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions[:, 1:]
        if self.training and self.keep < 1.0:
            tokens = self._some(tokens)
        first = (self.cls_token + self.positions[:, :1]).expand(len(tokens), -1, -1)
        tokens = self.embedded(torch.cat([first, tokens], 1))
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens)[:, 0])

    def _some(self, tokens: Tensor) -> Tensor:
        """``round(keep · L)`` tokens of each row, at least one, drawn apart for each row."""
        batch, length, width = tokens.shape
        count = max(1, round(self.keep * length))
        chosen = torch.rand(batch, length, device=tokens.device).argsort(1)[:, :count]
        return tokens.gather(1, chosen[..., None].expand(-1, -1, width))


def tiny_vit(
    classes: int,
    size: int = 32,
    patch: int = 4,
    depth: int = 6,
    width: int = 96,
    heads: int = 3,
    in_channels: int = 3,
    keep: float = 1.0,
) -> TinyViT:
    """A :class:`TinyViT`; with the numbers as they are, 0.7 million parameters and sequences of 65 tokens.

    Raises:
        ModelError: a number is not positive, ``patch`` does not divide ``size``, ``heads`` not ``width``, or
            ``keep`` lies outside (0, 1].
    """
    numbers = (classes, size, patch, depth, width, heads, in_channels)
    good = all(isinstance(n, int) and n >= 1 for n in numbers) and 0 < keep <= 1
    if not good or size % patch or width % heads:
        raise ModelError(
            "tiny_vit cannot be built",
            expected="positive integers, a size that patch divides, a width that heads divides, keep in (0, 1]",
            got=f"classes, size, patch, depth, width, heads, in_channels, keep = {(*numbers, keep)}",
        )
    return TinyViT(classes, size, patch, (depth, width, heads), in_channels, keep)
