"""Pretraining as the encoder of a bidirectional generative adversarial network."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.nn.utils.parametrizations import spectral_norm

from regraft.graft.pretraining.autoencoder import Decoder, explained
from regraft.graft.pretraining.pretext import Pretext, normals
from regraft.graft.stages.augment import Augment
from regraft.graft.stages.config import Optimiser

__all__ = ["Bigan"]


@dataclass(frozen=True)
class Bigan(Pretext):
    r"""A discriminator D tells pairs ``(x, E(x))`` from pairs ``(G(z), z)``, z ~ N(0, I); E and G deceive it.

    With l = D's logit, D descends ``softplus(−l(x, E(x))) + softplus(l(G(z), z))``, and E and G descend the same with
    the signs of l exchanged (Donahue et al., Section 3.4: inverted labels). The loss of a row is the sum of both, each
    of whose gradients reaches its own side alone; so one step moves both sides at once, and the sum need not fall.
    Where nobody can improve, E and G are each other's inverse (Theorem 2), so the measure is the share of the pixels'
    variance that G(E(x)) explains.

    What keeps it stable: spectral normalisation of every layer of D (Miyato et al., ICLR 2018), no normalisation
    between rows in D, Adam with β₁ = 0.5 (Radford et al., 2016).

    Attributes:
        width: dimensions of z.

    Paper: Donahue, Krähenbühl, Darrell, Adversarial feature learning (ICLR 2017), Eqs. 2-3; the same model: Dumoulin
    et al., Adversarially learned inference (ICLR 2017).
    """

    width: int = 64

    name: ClassVar[str] = "bigan"
    terms: ClassVar[tuple[str, ...]] = ("both losses", "r2", "discriminator's loss", "encoder's and generator's loss")
    measure: ClassVar[str] = "r2"
    citation: ClassVar[str] = "Donahue et al., Adversarial Feature Learning, ICLR 2017"

    @property
    def classes(self) -> tuple[str, ...]:
        """None: the outputs are a code."""
        return ()

    @property
    def optimiser(self) -> Optimiser:
        """Adam at 2e-4 with β₁ = 0.5."""
        return Optimiser(kind="adamw", lr=2e-4, momentum=0.5, weight_decay=0.0)

    def augment(self, size: int) -> Augment:
        """None: what comes in at the edges would be learnt too."""
        return Augment()

    def views(self, images: Tensor, rows: np.ndarray, epoch: int, seed: int) -> Mapping[str, Tensor]:
        """``images`` and ``noise`` z ``(B, width)``, as many draws as pictures."""
        return {"images": images, "noise": normals(rows, epoch, seed, self.width)}

    def module(self, backbone: nn.Module, head: str, size: int) -> nn.Module:
        """See the class."""
        return _Adversaries(backbone, self.width, size)


class Discriminator(nn.Module):
    """Pictures ``(B, 3, size, size)`` and codes ``(B, width)`` to logits ``(B,)``: joint, spectrally normalised."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
            layers += [spectral_norm(nn.Conv2d(inputs, outputs, 4, 2, 1)), nn.LeakyReLU(0.2)]
        side = size // 8
        self.look = nn.Sequential(*layers, nn.Flatten(), spectral_norm(nn.Linear(128 * side**2, 256)))
        self.read = nn.Sequential(spectral_norm(nn.Linear(width, 256)), nn.LeakyReLU(0.2))
        self.join = nn.Sequential(
            nn.LeakyReLU(0.2), spectral_norm(nn.Linear(512, 256)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(256, 1))
        )

    def forward(self, images: Tensor, codes: Tensor) -> Tensor:
        """See the class."""
        return self.join(torch.cat([self.look(images), self.read(codes)], 1))[:, 0]


class _Adversaries(nn.Module):
    def __init__(self, backbone: nn.Module, width: int, size: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.generator = Decoder(width, size)
        self.discriminator = Discriminator(width, size)

    def forward(self, views: Mapping[str, Tensor]) -> Tensor:
        images, noise = views["images"], views["noise"]
        codes, made = self.backbone(images).float(), self.generator(noise).float()
        pictures, pairs = torch.cat([images, made]), torch.cat([codes, noise])
        told = self.discriminator(pictures.detach(), pairs.detach()).float()
        with self._fixed_judge():
            deceived = self.discriminator(pictures, pairs).float()
        count = len(images)
        judge = softplus(-told[:count]) + softplus(told[count:])
        players = softplus(deceived[:count]) + softplus(-deceived[count:])
        with torch.no_grad():
            back = explained(images, self._copies(codes))
        return torch.stack([judge + players, back, judge.detach(), players.detach()], 1)

    def _copies(self, codes: Tensor) -> Tensor:
        """G(E(x)) with running statistics, which stay as they are."""
        mode = self.generator.training
        self.generator.eval()
        try:
            return self.generator(codes).float()
        finally:
            self.generator.train(mode)

    @contextlib.contextmanager
    def _fixed_judge(self) -> Iterator[None]:
        """For the block, no gradient reaches the discriminator's parameters, though it passes through it."""
        own = [parameter for parameter in self.discriminator.parameters() if parameter.requires_grad]
        for parameter in own:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in own:
                parameter.requires_grad_(True)
