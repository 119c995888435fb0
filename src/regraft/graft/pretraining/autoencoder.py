"""Pretraining as a variational autoencoder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from regraft.errors import ModelError
from regraft.graft.pretraining.pretext import Pretext, normals
from regraft.graft.stages.augment import Augment

__all__ = ["Autoencoder", "Decoder", "explained", "kl_to_standard"]


def kl_to_standard(mean: Tensor, log_variance: Tensor) -> Tensor:
    r"""``KL(N(μ, diag σ²) ‖ N(0, I)) = ½ Σ_j (μ_j² + σ_j² − 1 − log σ_j²)`` of every row, in nats.

    Paper: Kingma and Welling, Auto-encoding variational Bayes (2014), appendix B.
    """
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)


def explained(images: Tensor, copies: Tensor) -> Tensor:
    """``1 − mean (x − x̂)²`` of every row ``(B, …)`` of pixels of variance 1: the share of it that is explained."""
    return 1 - (images - copies).square().flatten(1).mean(1)


class Decoder(nn.Module):
    """Codes ``(B, width)`` to pictures ``(B, 3, size, size)``: linear, three transposed convolutions, a last one.

    Each doubles the side (128-64-32-32 channels, 4 x 4, BatchNorm, ReLU), as in Radford et al., Unsupervised
    representation learning with deep convolutional generative adversarial networks (2016).
    """

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.size, self.start = size, -(-size // 8)
        self.project = nn.Linear(width, 128 * self.start**2, bias=False)
        layers: list[nn.Module] = [nn.BatchNorm2d(128), nn.ReLU()]
        for inputs, outputs in ((128, 64), (64, 32), (32, 32)):
            layers += [nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.grow = nn.Sequential(*layers, nn.Conv2d(32, 3, 3, 1, 1))

    def forward(self, codes: Tensor) -> Tensor:
        """See the class."""
        maps = self.project(codes).view(-1, 128, self.start, self.start)
        return self.grow(maps)[:, :, : self.size, : self.size]


@dataclass(frozen=True)
class Autoencoder(Pretext):
    r"""Minus the evidence lower bound, per pixel value: ``(E_q[−log p(x|z)] + KL(q(z|x) ‖ N(0, I))) / d``.

    ``q(z|x) = N(μ(x), diag σ²(x))``, one draw a row; ``p(x|z) = N(decoder(z), s² I)`` over the d normalised pixel
    values, with one s that is learnt. The backbone's outputs are μ; log σ² is a second linear layer on the same
    embedding. The measure is the share of the pixels' variance that the draw explains.

    Attributes:
        width: dimensions of z.

    Papers: Kingma and Welling, Auto-encoding variational Bayes (ICLR 2014), Eq. 3; the learnt s: Rybkin et al.,
    Simple and effective VAE training with calibrated decoders (ICML 2021).
    """

    width: int = 64

    name: ClassVar[str] = "vae"
    terms: ClassVar[tuple[str, ...]] = ("minus ELBO per value", "r2", "KL in nats")
    measure: ClassVar[str] = "r2"
    citation: ClassVar[str] = "Kingma and Welling, Auto-Encoding Variational Bayes, ICLR 2014"

    @property
    def classes(self) -> tuple[str, ...]:
        """None: the outputs are a code."""
        return ()

    def augment(self, size: int) -> Augment:
        """None: what comes in at the edges would be learnt too."""
        return Augment()

    def views(self, images: Tensor, rows: np.ndarray, epoch: int, seed: int) -> Mapping[str, Tensor]:
        """``images`` and, for the draw from q, standard normal ``noise`` ``(B, width)``."""
        return {"images": images, "noise": normals(rows, epoch, seed, self.width)}

    def module(self, backbone: nn.Module, head: str, size: int) -> nn.Module:
        """See the class.

        Raises:
            ModelError: the backbone ends in no linear layer.
        """
        return _Variational(backbone, head, self.width, size)


class _Variational(nn.Module):
    def __init__(self, backbone: nn.Module, head: str, width: int, size: int) -> None:
        super().__init__()
        last = backbone.get_submodule(head) if head else None
        if not isinstance(last, nn.Linear):
            raise ModelError("the backbone ends in no linear layer", do="take an architecture that does, such as s4")
        self.backbone, self.head = backbone, head
        self.log_variance = nn.Linear(last.in_features, width)
        nn.init.zeros_(self.log_variance.weight)
        nn.init.zeros_(self.log_variance.bias)
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.decoder = Decoder(width, size)

    def forward(self, views: Mapping[str, Tensor]) -> Tensor:
        images, noise = views["images"], views["noise"]
        mean, log_variance = self.encode(images)
        copies = self.decoder(mean + (0.5 * log_variance).exp() * noise).float()
        values = images[0].numel()
        misfit = (images - copies).square().flatten(1).sum(1)
        surprise = 0.5 * misfit * (-2 * self.log_scale).exp() + values * (self.log_scale + 0.5 * math.log(2 * math.pi))
        divergence = kl_to_standard(mean, log_variance)
        return torch.stack([(surprise + divergence) / values, explained(images, copies), divergence], 1)

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """μ and log σ², ``(B, width)`` each; the logarithm kept within ±10."""
        seen: list[Tensor] = []

        def keep(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            seen.append(inputs[0])

        handle = self.backbone.get_submodule(self.head).register_forward_pre_hook(keep)
        try:
            mean = self.backbone(images).float()
        finally:
            handle.remove()
        return mean, self.log_variance(seen[0]).float().clamp(-10, 10)
