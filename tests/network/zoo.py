"""Tiny random networks of every family, saved as their users would have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regraft.network import Network

FAMILIES = ("resnet", "mobilenet_v1", "mobilenet_v2", "convnext", "swin", "vit", "dinov2", "bert")


def save(folder: Path, model: Any, processor: Any) -> Path:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def tokenizer() -> Any:
    """A word-level tokeniser of the BERT form, made on the spot."""
    import tokenizers
    import transformers

    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *["a", "good", "bad", "film", "was", "the", "very", "it", "is", "not"],
    ]
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, "[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=None, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def build(family: str) -> tuple[Any, Any]:
    """(model, processor) of a family, tiny and random."""
    import transformers as hub

    torch.manual_seed(0)
    plain = hub.ViTImageProcessorPil(size={"height": 32, "width": 32})
    square = hub.ConvNextImageProcessorPil(size={"shortest_edge": 32})
    token = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8}
    if family == "resnet":
        config = hub.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic", num_labels=5
        )
        return hub.ResNetForImageClassification(config), square
    if family == "mobilenet_v1":
        config = hub.MobileNetV1Config(depth_multiplier=0.1, image_size=32, num_labels=5)
        return hub.MobileNetV1ForImageClassification(config), plain
    if family == "mobilenet_v2":
        config = hub.MobileNetV2Config(depth_multiplier=0.1, image_size=32, num_labels=5, classifier_dropout_prob=0.1)
        return hub.MobileNetV2ForImageClassification(config), plain
    if family == "convnext":
        config = hub.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 2], num_stages=2, num_labels=5)
        return hub.ConvNextForImageClassification(config), square
    if family == "swin":
        config = hub.SwinConfig(
            image_size=32, patch_size=4, embed_dim=8, depths=[2, 1], num_heads=[2, 2], window_size=4, num_labels=5
        )
        return hub.SwinForImageClassification(config), plain
    if family == "vit":
        config = hub.ViTConfig(image_size=32, patch_size=8, intermediate_size=16, num_labels=5, **token)
        return hub.ViTForImageClassification(config), plain
    if family == "dinov2":
        config = hub.Dinov2Config(image_size=32, patch_size=8, mlp_ratio=2, **token)
        crop = {"height": 32, "width": 32}
        return hub.Dinov2Model(config), hub.BitImageProcessorPil(size={"shortest_edge": 36}, crop_size=crop)
    config = hub.BertConfig(vocab_size=15, intermediate_size=16, max_position_embeddings=32, **token)
    return hub.BertModel(config), tokenizer()


PUBLISHED = ("BertForMaskedLM", "ViTMAEForPreTraining", "T5ForConditionalGeneration", "CLIPModel")


def published(name: str) -> tuple[Any, Any]:
    """(model, processor) as their authors trained them: with more than what gives features."""
    import transformers as hub

    torch.manual_seed(0)
    token = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 16}
    patches = {"image_size": 32, "patch_size": 8, **token}
    words = {"vocab_size": 15, "max_position_embeddings": 32, **token}
    if name == "BertForMaskedLM":
        return hub.BertForMaskedLM(hub.BertConfig(**words)), tokenizer()
    if name == "T5ForConditionalGeneration":
        config = hub.T5Config(vocab_size=15, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2)
        return hub.T5ForConditionalGeneration(config), tokenizer()
    plain = hub.ViTImageProcessorPil(size={"height": 32, "width": 32})
    if name == "CLIPModel":
        return hub.CLIPModel(hub.CLIPConfig(text_config=words, vision_config=patches, projection_dim=4)), plain
    shape = {f"decoder_{key}": value for key, value in token.items()}
    return hub.ViTMAEForPreTraining(hub.ViTMAEConfig(**patches, **shape)), plain


class BasicBlock(nn.Module):
    """torchvision's form: one in-place ReLU used twice, the second time behind the addition."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class Residual(nn.Module):
    """A stem and two blocks; everything that can write in place does."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.conv1, self.relu = nn.Conv2d(3, width, 3, padding=1), nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(BasicBlock(width), BasicBlock(width))
        self.fc = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(self.relu(self.conv1(x)))
        return self.fc(x.mean((2, 3)))


class Functional(nn.Module):
    """Activations called as functions, one of them in place, and one module called in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.first(x))
        for _ in range(2):
            x = functional.gelu(self.again(x))
        x = torch.relu_(x + 0.1)
        return self.head(x)


class Recurrent(nn.Module):
    """A two-layer LSTM that both reads and writes tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 7, num_layers=2, batch_first=True)
        self.head = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out, (hidden, _) = self.lstm(x)
        return self.head(torch.tanh(out[:, -1])), hidden


class Encoder(nn.Module):
    """torch's own transformer layers, rows first or positions first."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head, self.batch_first = nn.Linear(8, 3), batch_first

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(x if self.batch_first else x.transpose(0, 1))
        return self.head(x.mean(1 if self.batch_first else 0))


OWN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, (3, 12, 10)),
    "functional": (Functional, (6,)),
    "recurrent": (Recurrent, (5, 6)),
    "encoder": (lambda: Encoder(True), (5, 8)),
    "positions-first": (lambda: Encoder(False), (5, 8)),
}


def capture(network: Network, names: Any, batch: Any) -> tuple[dict[str, Tensor], Tensor]:
    """Every named value, cloned as it comes, and the output."""
    values: dict[str, Tensor] = {}
    with torch.no_grad(), network.observe(names, lambda name, value: values.__setitem__(name, value.clone())):
        output = network.forward(batch)
    return values, output
