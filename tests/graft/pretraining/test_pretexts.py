"""Pretexts as mathematics: views, losses and whose gradient goes where."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import distributions, nn
from torch.nn.functional import softplus

from regraft.errors import ModelError, RecipeError
from regraft.graft.loop.rows import ImageRows
from regraft.graft.pretraining.autoencoder import Autoencoder, Decoder, explained, kl_to_standard
from regraft.graft.pretraining.bigan import Bigan
from regraft.graft.pretraining.choose import OBJECTIVES, pretext_of
from regraft.graft.pretraining.jigsaw import Jigsaw, cut, permutations
from regraft.graft.pretraining.pretext import ViewRows, normals
from regraft.graft.pretraining.rotation import Rotation, rotations
from regraft.graft.stages.augment import Augment
from regraft.network.architectures import build

LABEL_FREE = tuple(name for name in OBJECTIVES if name != "supervised")


def _images(rows: int = 5, size: int = 18, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, 3, size, size, generator=torch.Generator().manual_seed(seed))


def _backbone(width: int) -> nn.Module:
    torch.manual_seed(0)
    return build("small_resnet", {"channels": [4, 6], "classes": width})


def test_labels_of_rotations_are_those_of_rot90() -> None:
    images = _images(3, 4)
    turned, labels = rotations(images)
    assert turned.shape == (12, 3, 4, 4)
    for row, label in enumerate(labels.tolist()):
        assert torch.equal(turned[row], torch.rot90(images[row % 3], label, (1, 2)))
    assert labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_the_rotation_loss_is_the_mean_over_four_turns() -> None:
    images = _images()
    module = Rotation().module(_backbone(4), "fc", 18).eval()
    module.requires_grad_(False)
    terms = module({"images": images})
    for row in range(5):
        logs = [module.backbone(torch.rot90(images[row : row + 1], k, (2, 3))).log_softmax(1)[0] for k in range(4)]
        assert terms[row, 0] == pytest.approx(-sum(float(log[k]) for k, log in enumerate(logs)) / 4, abs=1e-5)
        assert terms[row, 1] == sum(int(log.argmax()) == k for k, log in enumerate(logs)) / 4


@pytest.mark.parametrize(("pieces", "count", "distance"), [(4, 4, 4), (4, 12, 3), (4, 24, 2), (9, 9, 9), (9, 64, 7)])
def test_orders_are_unique_and_far_apart(pieces: int, count: int, distance: int) -> None:
    orders = permutations(pieces, count)
    assert orders[0] == tuple(range(pieces))
    assert len(set(orders)) == count
    assert all(sorted(order) == list(range(pieces)) for order in orders)
    pairs = itertools.combinations(orders, 2)
    assert min(sum(x != y for x, y in zip(a, b)) for a, b in pairs) == distance


def test_pieces_reassemble_to_the_picture() -> None:
    images = _images(2, 18)
    for grid in (2, 3):
        cell = 18 // grid
        pieces = cut(images, grid, cell, torch.zeros(2, grid**2, 2, dtype=torch.long))
        whole = pieces.view(2, grid, grid, 3, cell, cell).permute(0, 3, 1, 4, 2, 5).reshape(2, 3, 18, 18)
        assert torch.equal(whole, images)
    offsets = torch.tensor([[[0, 1], [2, 0], [1, 1], [2, 2]]]).expand(2, 4, 2)
    inside = cut(images, 2, 7, offsets)
    assert torch.equal(inside[1, 2], images[1, :, 9 + 1 : 9 + 8, 1:8])
    left_over = cut(_images(1, 20), 3, 6, torch.zeros(1, 9, 2, dtype=torch.long))  # one pixel each side is left out
    assert torch.equal(left_over[0, 0], _images(1, 20)[0, :, 1:7, 1:7])


def test_a_puzzle_laid_back_is_the_picture_in_order() -> None:
    jigsaw, images = Jigsaw(2, 24), _images(40, 20)
    views = jigsaw.views(images, np.arange(40), 3, 7)
    assert views["pieces"].shape == (40, 4, 3, 8, 8)
    orders = torch.tensor(permutations(4, 24))[views["order"]]
    back = views["pieces"][torch.arange(40)[:, None], orders.argsort(1)]
    for row, cell in ((0, 0), (3, 1), (17, 2), (39, 3)):
        down, across = 10 * (cell // 2), 10 * (cell % 2)
        places = [
            images[row, :, down + i : down + i + 8, across + j : across + j + 8] for i in range(3) for j in range(3)
        ]
        scaled = [(place - place.mean()) / place.std(correction=0) for place in places]
        assert min(float((place - back[row, cell]).abs().max()) for place in scaled) < 1e-5
    assert len(set(views["order"].tolist())) > 10
    moments = torch.std_mean(views["pieces"], (2, 3, 4), correction=0)
    torch.testing.assert_close(moments[0], torch.ones(40, 4))
    torch.testing.assert_close(moments[1], torch.zeros(40, 4), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", LABEL_FREE)
def test_views_are_a_function_of_row_epoch_and_seed(name: str) -> None:
    pixels = torch.randint(0, 256, (6, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    rows = ViewRows(ImageRows(pixels, torch.zeros(6), augment=Augment(shift=2)), pretext_of(name, 20))
    once, alone = rows.inputs(torch.arange(6), 2, 5), rows.inputs(torch.tensor([4, 1]), 2, 5)
    held = rows.inputs(torch.arange(6))
    for key, value in once.items():
        assert torch.equal(value[[4, 1]], alone[key])
        assert torch.equal(rows.inputs(torch.arange(6))[key], held[key])
    others = [rows.inputs(torch.arange(6), 3, 5), rows.inputs(torch.arange(6), 2, 6), held]
    assert all(any(not torch.equal(other[key], once[key]) for key in once) for other in others)
    assert rows.key != ViewRows(rows.images, pretext_of("vae" if name != "vae" else "bigan", 20)).key


def test_normal_draws_are_normal() -> None:
    drawn = normals(np.arange(2000), 1, 2, 16).double()
    assert torch.isfinite(drawn).all()
    assert abs(float(drawn.mean())) < 4 / np.sqrt(32000)
    assert abs(float(drawn.square().mean()) - 1) < 4 * np.sqrt(2 / 32000)
    assert abs(float(torch.corrcoef(drawn.T).triu(1).abs().max())) < 0.12


def test_the_divergence_and_the_bound_are_those_of_torchs_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, log_variance = (torch.randn(7, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    posterior = distributions.Normal(mean, (0.5 * log_variance).exp())
    prior = distributions.Normal(torch.zeros(5, dtype=torch.float64), 1.0)
    torch.testing.assert_close(
        kl_to_standard(mean, log_variance), distributions.kl_divergence(posterior, prior).sum(1), rtol=1e-12, atol=0
    )

    pretext = Autoencoder(5)
    module = pretext.module(_backbone(5), "fc", 18).eval().double()
    with torch.no_grad():
        module.log_scale.fill_(-0.3)
        module.log_variance.weight.normal_(generator=generator)
    images, noise = _images().double(), torch.randn(5, 5, generator=generator, dtype=torch.float64)
    terms = module({"images": images, "noise": noise})
    mean, log_variance = module.encode(images)
    torch.testing.assert_close(mean, module.backbone(images).float())
    assert log_variance.std() > 0.1
    codes = mean + (0.5 * log_variance).exp() * noise
    copies = module.decoder(codes).float()
    likelihood = distributions.Normal(copies, float(np.exp(-0.3))).log_prob(images).flatten(1).sum(1)
    divergence = distributions.kl_divergence(
        distributions.Normal(mean, (0.5 * log_variance).exp()), distributions.Normal(0.0, 1.0)
    ).sum(1)
    values = images[0].numel()
    torch.testing.assert_close(terms[:, 0], (divergence - likelihood) / values, check_dtype=False, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        terms[:, 1], 1 - (images - copies).square().flatten(1).sum(1) / values, check_dtype=False
    )
    torch.testing.assert_close(terms[:, 2], divergence, check_dtype=False, rtol=1e-5, atol=1e-6)


def test_what_is_explained_is_one_for_a_copy_and_none_for_the_mean() -> None:
    images = (_images(200) - _images(200).mean()) / _images(200).std(correction=0)
    assert explained(images, images).mean() == 1
    assert float(explained(images, torch.zeros_like(images)).double().mean()) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("size", [8, 9, 20, 32])
def test_the_decoder_gives_pictures_of_any_size(size: int) -> None:
    assert Decoder(7, size)(torch.randn(2, 7)).shape == (2, 3, size, size)


def test_each_adversary_gets_the_gradient_of_its_own_loss() -> None:
    pretext, images, noise = Bigan(6), _images(4, 16), torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    module = pretext.module(_backbone(6), "fc", 16).train()
    twin = copy.deepcopy(module)
    terms = module({"images": images, "noise": noise})
    terms[:, 0].mean().backward()
    found = {name: p.grad for name, p in module.named_parameters()}
    assert all(p.requires_grad for p in module.parameters())

    # the same two losses written out, each differentiated by its own side's parameters; the twin's power iteration
    # runs as often, for it moves the spectral norms
    codes, made = twin.backbone(images), twin.generator(noise)
    pictures, pairs = torch.cat([images, made]), torch.cat([codes, noise])
    first, second = twin.discriminator(pictures, pairs), twin.discriminator(pictures, pairs)
    judge = (softplus(-first[:4]) + softplus(first[4:])).mean()
    players = (softplus(second[:4]) + softplus(-second[4:])).mean()
    torch.testing.assert_close(terms[:, 2].mean(), judge)
    torch.testing.assert_close(terms[:, 3].mean(), players)
    for loss, theirs in ((judge, True), (players, False)):
        own = {n: p for n, p in twin.named_parameters() if n.startswith("discriminator") == theirs}
        for name, gradient in zip(own, torch.autograd.grad(loss, list(own.values()), retain_graph=True)):
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


def test_layers_of_the_discriminator_have_a_spectral_norm_of_one() -> None:
    torch.manual_seed(0)
    judge = Bigan(6).module(_backbone(6), "fc", 16).discriminator.train()
    for _ in range(60):
        judge(_images(2, 16), torch.randn(2, 6))
    norms = [
        float(torch.linalg.matrix_norm(part.weight.detach().flatten(1), 2))
        for part in judge.eval().modules()
        if isinstance(part, nn.Linear | nn.Conv2d)
    ]
    assert len(norms) == 7
    assert norms == pytest.approx([1.0] * 7, abs=0.02)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(RecipeError, match="pictures of 12 x 12 pixels are too small for jigsaw; expected at least 18"):
        pretext_of("jigsaw", 12)
    assert pretext_of("jigsaw", 18).views(_images(1, 18), np.zeros(1, int), 0, 0)["pieces"].shape[-1] == 8
    with pytest.raises(RecipeError, match="too small for vae; expected at least 8"):
        pretext_of("vae", 7)
    with pytest.raises(RecipeError, match="25 orders of 4 pieces; expected 2 to 24"):
        Jigsaw(2, 25)
    with pytest.raises(RecipeError, match="4 x 4 pieces; expected 2 x 2 or 3 x 3"):
        Jigsaw(4, 10)
    with pytest.raises(ModelError, match="ends in no linear layer"):
        Autoencoder(5).module(nn.Conv2d(3, 5, 3), "", 18)
