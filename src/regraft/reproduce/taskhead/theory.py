"""The theory of paper 004 in an overparameterised two-layer linear model, as closed forms in float64.

The model (Ren, Guo, Bae, Sutherland, ICLR 2023, Eq. 1 and Appendix D): inputs X ``(N, d)`` with N < d, a backbone B
``(h, d)``, a head v ``(h,)``, features ``z = B x``, outputs ``q = X Bᵀ v`` and the loss ``½ ‖q − Y‖²``. Fine-tuning
moves B and v together from (B₀, v₀); in the lazy regime, where the weights are large beside the residual, its end is
that of the linearised model, and everything below is exact for that end.

Errata of the paper, each checked by the rows: Lemma 3 prints the *head's* kernel ``X B₀ᵀ B₀ Xᵀ`` where its derivation
needs the backbone's ``‖v₀‖² X Xᵀ``, so that its two limits are swapped; its critical point is a multiple of Y only if
``X Xᵀ ∝ K₀``; the sign of its second derivative is reversed. Proposition 2 and Table 9 hold at a fixed ``‖v₀‖``, for a
head that is scaled to zero moves no feature.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

__all__ = ["Model", "aligned", "generic", "head_for"]

_SIZES = (6, 12, 10)  # N, d and h of what is drawn


@dataclass(frozen=True, eq=False)
class Model:
    """Inputs, labels and weights before fine-tuning, all float64.

    Attributes:
        inputs: X ``(N, d)``.
        labels: Y ``(N,)``.
        backbone: B₀ ``(h, d)``.
        head: v₀ ``(h,)``.
    """

    inputs: Tensor
    labels: Tensor
    backbone: Tensor
    head: Tensor

    @property
    def outputs(self) -> Tensor:
        """``q₀ = X B₀ᵀ v₀``, ``(N,)``."""
        return self.inputs @ self.backbone.T @ self.head

    @property
    def backbone_kernel(self) -> Tensor:
        """``‖v₀‖² X Xᵀ`` ``(N, N)``: the kernel ``(∇_b q₀)(∇_b q₀)ᵀ`` of what B moves."""
        return self.head.square().sum() * self.inputs @ self.inputs.T

    @property
    def head_kernel(self) -> Tensor:
        """``X B₀ᵀ B₀ Xᵀ`` ``(N, N)``: the kernel ``(∇_v q₀)(∇_v q₀)ᵀ`` of what v moves, which Lemma 3 prints."""
        features = self.inputs @ self.backbone.T
        return features @ features.T

    @property
    def kernel(self) -> Tensor:
        """``K₀ = X (B₀ᵀ B₀ + ‖v₀‖² I) Xᵀ`` ``(N, N)`` (Eq. 30)."""
        return self.head_kernel + self.backbone_kernel

    @property
    def _pull(self) -> Tensor:
        """``K₀⁻¹ (q₀ − Y)`` ``(N,)``."""
        return torch.linalg.solve(self.kernel, self.outputs - self.labels)

    @property
    def tuned_backbone(self) -> Tensor:
        """``B_t = B₀ − v₀ (Xᵀ K₀⁻¹ (q₀ − Y))ᵀ`` ``(h, d)``: Eq. 31 as a matrix, t → ∞."""
        return self.backbone - torch.outer(self.head, self.inputs.T @ self._pull)

    @property
    def tuned_head(self) -> Tensor:
        """``v_t = v₀ − B₀ Xᵀ K₀⁻¹ (q₀ − Y)`` ``(h,)``: the rest of Eq. 29."""
        return self.head - self.backbone @ self.inputs.T @ self._pull

    @property
    def dot(self) -> Tensor:
        """``tr(B₀ᵀ B_t)``, a number: what Lemma 2 is about."""
        return (self.backbone * self.tuned_backbone).sum()

    @property
    def norm(self) -> Tensor:
        """``tr(B_tᵀ B_t)``, a number: what Lemma 3 is about."""
        return self.tuned_backbone.square().sum()

    def critical_norm(self, kernel: Tensor) -> Tensor:
        """``(I + (C₂ − 2 C₁)⁻¹ C₁) Y`` ``(N,)`` with ``C₁ = K₀⁻¹``, ``C₂ = K₀⁻¹ K̃ K₀⁻¹`` (Lemma 3).

        It depends on the head through ``‖v₀‖`` alone.

        Args:
            kernel: K̃: :attr:`backbone_kernel` for the corrected lemma, :attr:`head_kernel` for the printed one.
        """
        first = torch.linalg.inv(self.kernel)
        second = first @ kernel @ first
        return self.labels + torch.linalg.solve(second - 2 * first, first @ self.labels)


def head_for(model: Model, outputs: Tensor) -> Model:
    """The model with another head of the same ``‖v₀‖``, for which ``q₀`` is what is asked for.

    With ``A = X B₀ᵀ`` ``(N, h)`` the head is ``A⁺ q₀ + n √(‖v₀‖² − ‖A⁺ q₀‖²)``, n a unit vector of A's null space (the
    part of the old head there, so that the head depends smoothly on ``q₀``). So ``K₀`` stays as it is.

    Args:
        model: with N < h.
        outputs: ``(N,)``, with ``‖A⁺ q₀‖ < ‖v₀‖``; differentiable.

    Raises:
        ValueError: no head of this norm gives these outputs.
    """
    features = model.inputs @ model.backbone.T
    inverse = torch.linalg.pinv(features)
    needed = inverse @ outputs
    left = model.head.square().sum() - needed.square().sum()
    if float(left.detach()) <= 0:
        raise ValueError(
            f"outputs need a head of norm {float(needed.detach().norm()):.3g}, above {float(model.head.norm()):.3g}"
        )
    free = model.head - inverse @ (features @ model.head)
    return Model(model.inputs, model.labels, model.backbone, needed + free / free.norm() * left.sqrt())


def generic(seed: int) -> Model:
    """Gaussian inputs, backbone, head and labels, scaled so that every ``q₀`` between 0 and Y can be had."""
    rows, width, hidden = _SIZES
    rng = torch.Generator().manual_seed(seed)
    drawn = partial(torch.randn, generator=rng, dtype=torch.float64)
    inputs, backbone, head = drawn(rows, width) / width**0.5, drawn(hidden, width) / hidden**0.5, drawn(hidden)
    return _labelled(inputs, backbone, head, drawn(rows), float(torch.rand((), generator=rng)))


def aligned(seed: int) -> Model:
    """Whitened inputs (``X Xᵀ = I``) and a backbone with ``X B₀ᵀ B₀ Xᵀ = c I``, so that ``X Xᵀ ∝ K₀``.

    ``B₀ = √c U X + W (I − Xᵀ X)`` with U of orthonormal columns and a Gaussian W; c and ``‖v₀‖²`` are uniform in
    [½, 2], so that ``r = ‖v₀‖² / (c + ‖v₀‖²)`` lies in [.2, .8].
    """
    rows, width, hidden = _SIZES
    rng = torch.Generator().manual_seed(seed)
    drawn = partial(torch.randn, generator=rng, dtype=torch.float64)
    share, square, level = (0.5 + 1.5 * float(torch.rand((), generator=rng)) for _ in range(3))
    inputs = torch.linalg.qr(drawn(width, rows))[0].T
    inside = torch.linalg.qr(drawn(hidden, rows))[0]
    outside = torch.eye(width, dtype=torch.float64) - inputs.T @ inputs
    backbone = share**0.5 * inside @ inputs + drawn(hidden, width) @ outside / hidden**0.5
    head = drawn(hidden)
    return _labelled(inputs, backbone, square**0.5 * head / head.norm(), drawn(rows), (level - 0.5) / 1.5)


def _labelled(inputs: Tensor, backbone: Tensor, head: Tensor, labels: Tensor, level: float) -> Model:
    """Labels of the size at which ``‖A⁺ Y‖`` is .4 to .9 of ``‖v₀‖``."""
    needed = torch.linalg.pinv(inputs @ backbone.T) @ labels
    scale = (0.4 + 0.5 * level) * head.norm() / needed.norm()
    return Model(inputs, labels * scale, backbone, head)
