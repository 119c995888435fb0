"""The suite's pick of today among adapters: LoRA by peft, in the plain loop that its users write.

Rank 8 at every linear map and every convolution that is not grouped, a new linear head, AdamW with a cosine to zero for
500 steps of 64 rows, no augmentation; BatchNorm's statistics follow the batches. The rate is the best of three on a
fifth of the 1,000 rows, then all of them are trained on. Stored are the adapters, the head and the statistics.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from regraft.data import Manifest, holdout
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.network import Network
from suite_training import Measured

__all__ = ["LORA", "at_hand", "lora"]

LORA = "lora-peft"
RANK, RATES = 8, (3e-3, 1e-3, 3e-4)
STEPS, BATCH, HELD_OUT = 500, 64, 0.2


def at_hand() -> bool:
    """Whether peft is installed."""
    return find_spec("peft") is not None


def lora(rows: Manifest, network: Network, seed: int) -> Measured:
    """Accuracy on the test rows of what the best rate gives, CPU seconds of all of it but decoding, bytes to store."""
    train, test = (ManifestRows.of(network, rows.part(part), workers=0) for part in ("train", "test"))
    began = time.process_time()
    target = rows.part("train").target
    if target is None:
        raise ValueError("the suite's tasks have labels")
    held = holdout(target, None, HELD_OUT, seed)
    inner, outer = train.take(np.flatnonzero(~held)), train.take(np.flatnonzero(held))
    classes = len(target.classes)
    scores = {rate: _right(_trained(network, inner, classes, rate, seed), outer) for rate in RATES}
    model = _trained(network, train, classes, max(RATES, key=lambda rate: scores[rate]), seed)
    return Measured(_right(model, test), time.process_time() - began, _bytes(model))


def _adapted(network: Network, classes: int) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    module = copy.deepcopy(network.module)
    path = str(network.head)
    parent, _, name = path.rpartition(".")
    head = module.get_submodule(path)
    width = head.in_channels if isinstance(head, nn.Conv2d) else head.in_features
    new = nn.Conv2d(width, classes, 1) if isinstance(head, nn.Conv2d) else nn.Linear(width, classes)
    nn.init.zeros_(new.weight)
    setattr(module.get_submodule(parent), name, new)
    reached = [
        name
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear) or (isinstance(part, nn.Conv2d) and part.groups == 1)
        if name != path
    ]
    config = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=reached, modules_to_save=[path])
    model = get_peft_model(module, config)
    for part in model.modules():  # a MobileNet of transformers asks its convolutions how to pad; wrapped ones hide it
        base = getattr(part, "base_layer", None)
        if isinstance(base, nn.Conv2d):
            part.stride, part.kernel_size, part.dilation = base.stride, base.kernel_size, base.dilation
    return model


def _logits(model: nn.Module, batch: Tensor) -> Tensor:
    said = model(batch)
    return getattr(said, "logits", said).flatten(1)


def _batches(rows: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(rows, generator=generator)
        yield from order[: rows - rows % BATCH].split(BATCH)


def _trained(network: Network, rows: ManifestRows, classes: int, rate: float, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = _adapted(network, classes).train()
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    for _, index in zip(range(STEPS), _batches(len(rows), seed)):
        loss = functional.cross_entropy(_logits(model, rows.inputs(index)), rows.targets(index))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def _right(model: nn.Module, rows: ManifestRows) -> float:
    parts = torch.arange(len(rows)).split(BATCH)
    said = torch.cat([_logits(model, rows.inputs(index)).argmax(1) for index in parts])
    return float((said == rows.labels).double().mean())


def _bytes(model: nn.Module) -> int:
    moved = [p for p in model.parameters() if p.requires_grad]
    moved += [b for name, b in model.named_buffers() if name.endswith(("running_mean", "running_var"))]
    return sum(4 * tensor.numel() for tensor in moved)
