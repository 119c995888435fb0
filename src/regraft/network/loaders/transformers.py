"""Models of transformers: a local folder made by ``save_pretrained``, or an id of the hub."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from regraft.errors import MissingDependencyError, ModelError
from regraft.files import canonical_json, digest
from regraft.network.blocks import prefix_tokens
from regraft.network.network import About, Network, Traits
from regraft.network.preprocess import ImagePreprocess, Modality, Preprocess

__all__ = ["ProcessorPreprocess", "TextPreprocess", "load", "save"]

# Entries of a configuration that do not change what the network computes.
_VOLATILE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "id2label", "label2id")
_HEADS = {"ForImageClassification": "AutoModelForImageClassification",
          "ForSequenceClassification": "AutoModelForSequenceClassification"}  # fmt: skip
_MAX_LENGTH = 512
_NO_CODE = {"trust_remote_code": False}  # said outright: left open, the library asks on the standard input


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingDependencyError(
            "transformers is not installed or does not load", got=str(error), do="pip install 'regraft[hub]'"
        ) from error
    return transformers


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No log lines, warnings or progress bars; what was set before is restored."""
    settings = transformers.utils.logging
    level, bars = settings.get_verbosity(), settings.is_progress_bar_enabled()
    settings.set_verbosity(logging.CRITICAL)
    settings.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        settings.set_verbosity(level)
        if bars:
            settings.enable_progress_bar()


def load(name: str, revision: str | None, head: bool, seed: int | None) -> Network:
    """Load a model with its preprocessing and class names, in float32.

    A local folder is read without any network access. Only safetensors weights are read and no code of
    the repository is run. With ``head`` the classifier is kept where the configuration names one.

    Raises:
        ModelError: the folder or repository holds no usable model, cannot be reached, or its weights do
            not fit.
    """
    transformers = _transformers()
    local = Path(name).is_dir()
    where: dict[str, Any] = {**({"local_files_only": True} if local else {"revision": revision}), **_NO_CODE}
    source = str(Path(name)) if local else name
    with _quiet(transformers):
        try:
            config = transformers.AutoConfig.from_pretrained(source, **where)
            module, pooler = _module(transformers, source, config, where, head, seed)
            preprocess = _preprocess(transformers, source, config, module, where)
        except ModelError:
            raise
        except Exception as error:
            raise _unusable(name, local, error) from error
    labels = getattr(config, "id2label", None) or {}
    classes = tuple(str(labels[key]) for key in sorted(labels))
    if not module.__class__.__name__.endswith(tuple(_HEADS)) or all(c.startswith("LABEL_") for c in classes):
        classes = ()
    found = revision or str(getattr(config, "_commit_hash", None) or "")
    about = About("transformers", _licence(Path(source)) if local else "", classes, "" if local else found)
    settings = {key: value for key, value in config.to_dict().items() if key not in _VOLATILE}
    prefix = max(prefix_tokens(module), preprocess.prefix if isinstance(preprocess, TextPreprocess) else 0)
    return Network(name, module.float(), preprocess, about, traits=Traits(settings, pooler, prefix))


def save(network: Network, folder: Path) -> None:
    """Write the model and its processor or tokeniser as ``save_pretrained`` does.

    Raises:
        ModelError: the processor can no longer be read from where the model came from.
    """
    transformers = _transformers()
    preprocess = network.preprocess
    with _quiet(transformers):
        network.module.save_pretrained(folder)  # type: ignore[operator]
        if isinstance(preprocess, TextPreprocess):
            preprocess.tokenizer.save_pretrained(folder)
        elif isinstance(preprocess, ProcessorPreprocess):
            preprocess.processor.save_pretrained(folder)
        else:
            local = Path(network.name).is_dir()
            where = {"local_files_only": True} if local else {"revision": network.about.revision}
            try:
                processor = transformers.AutoImageProcessor.from_pretrained(
                    network.name, use_fast=False, **where, **_NO_CODE
                )
            except Exception as error:
                raise _unusable(network.name, local, error) from error
            processor.save_pretrained(folder)


def _unusable(name: str, local: bool, error: Exception) -> ModelError:
    reason = " ".join(str(error).split())[:300]
    if "trust_remote_code" in str(error):
        return ModelError(
            f"{name} needs code of its own, and none of a repository's is run",
            expected="an architecture, a preprocessing and a tokeniser that transformers itself holds",
            do="build it in a module of yours and name that as package.module:callable",
        )
    if local:
        return ModelError(
            f"{name} holds no usable model",
            expected="config.json, model.safetensors and a preprocessing file, as save_pretrained writes them",
            got=f"{type(error).__name__}: {reason}",
        )
    offline = re.search(r"offline|connect|resolve|internet|network|timed? ?out|cached files", reason, re.I)
    return ModelError(
        f"{name} is not in the cache and the hub cannot be reached" if offline else f"{name} cannot be loaded",
        got=f"{type(error).__name__}: {reason}",
        do="check the name and the connection, or give a local folder made by save_pretrained",
    )


def _module(
    transformers: Any, source: str, config: Any, where: Mapping[str, Any], head: bool, seed: int | None
) -> tuple[nn.Module, bool]:
    """The model, and whether its own pooled output was trained."""
    architecture = (getattr(config, "architectures", None) or [""])[0]
    auto = transformers.AutoModel
    for ending, name in _HEADS.items():
        if head and architecture.endswith(ending):
            auto = getattr(transformers, name)
    if hasattr(config, "vision_config") and hasattr(config, "text_config"):  # CLIP-like: the image half
        auto = getattr(transformers, architecture.replace("Model", "VisionModel"), auto)
    if seed is not None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            make = getattr(auto, "from_config", None)
            return (make(config, **_NO_CODE) if make else auto(config.vision_config)), True
    options = {**where, "use_safetensors": True, "output_loading_info": True}
    module, report = auto.from_pretrained(source, **options)
    missing = sorted(report["missing_keys"])
    pooler = not any(".pooler." in f".{key}" for key in missing)
    if not pooler:  # made up at random by the library: leave it out, where the class allows that
        with contextlib.suppress(TypeError):
            module, report = auto.from_pretrained(source, **options, add_pooling_layer=False)
            missing = sorted(report["missing_keys"])
    missing = [key for key in missing if ".pooler." not in f".{key}"]
    wrong = [str(key) for key in [*missing, *report.get("mismatched_keys", ())]]
    if wrong:
        raise ModelError(
            f"the weights in {source} do not fit its configuration",
            expected="a tensor of the right shape for every parameter",
            got=f"{len(wrong)} missing or of another shape, such as {wrong[0]}",
        )
    return module, pooler


def _preprocess(transformers: Any, source: str, config: Any, module: nn.Module, where: Mapping[str, Any]) -> Preprocess:
    if getattr(module, "main_input_name", "") == "input_ids":
        return TextPreprocess.load(transformers, source, config, where)
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(source, use_fast=False, **where)
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise _unusable(source, True, error) from error
        raise ModelError(
            f"{source} says nothing about its preprocessing",
            expected="preprocessor_config.json",
            got=" ".join(str(error).split())[:200],
            do="save the image processor beside the model with processor.save_pretrained",
        ) from error
    return image_preprocess(processor)


def image_preprocess(processor: Any) -> Preprocess:
    """An own preprocessing that gives the processor's pixels; the processor itself where none does.

    The settings are read off the processor and tried on images of odd sizes: pixels that differ at all
    mean that it does something more, and then it is called as it is.
    """
    own = ProcessorPreprocess(_settings(processor), processor)
    try:
        candidate = _read_settings(processor)
        generator = np.random.default_rng(0)
        for height, width in ((61, 97), (330, 251), (40, 40)):
            image = Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))
            if not torch.equal(candidate(image), own(image)):
                return own
    except (ModelError, TypeError, ValueError, AttributeError, KeyError):
        return own
    return candidate


def _settings(processor: Any) -> dict[str, Any]:
    return json.loads(json.dumps(processor.to_dict(), default=str))


def _read_settings(processor: Any) -> ImagePreprocess:
    size = dict(processor.size) if processor.do_resize else {}
    size = {key: value for key, value in size.items() if value is not None}
    crop_size = getattr(processor, "crop_size", None) if getattr(processor, "do_center_crop", False) else None
    crop = (int(crop_size["height"]), int(crop_size["width"])) if crop_size else None
    resize: int | tuple[int, int] | None = None
    if "shortest_edge" in size:
        resize = int(size["shortest_edge"])
        if share := getattr(processor, "crop_pct", None):  # ConvNeXt: crop_pct below 384, a square above
            crop = crop or ((resize, resize) if resize < 384 else None)
            resize = int(resize / share) if resize < 384 else (resize, resize)
    elif size:
        resize = (int(size["height"]), int(size["width"]))
    normal = processor.do_normalize
    return ImagePreprocess(
        resize,
        crop,
        int(getattr(processor, "resample", 2) or 0),
        _three(processor.image_mean) if normal else (),
        _three(processor.image_std) if normal else (),
        float(processor.rescale_factor) if processor.do_rescale else 1.0,
    )


def _three(value: Any) -> tuple[float, ...]:
    return (float(value),) * 3 if isinstance(value, int | float) else tuple(map(float, value))


@dataclass(frozen=True, eq=False)
class ProcessorPreprocess(Preprocess):
    """A processor of transformers called as it is, for options that this package does not know.

    Attributes:
        settings: the processor's own JSON.
        processor: made from it.
    """

    modality: ClassVar[Modality] = "image"
    settings: Mapping[str, Any]
    processor: Any = field(repr=False)

    def __call__(self, raw: Image.Image) -> Tensor:
        """``(C, H, W)`` float32."""
        pixels = self.processor(raw.convert("RGB"), return_tensors="np")["pixel_values"][0]
        return torch.from_numpy(np.ascontiguousarray(pixels, dtype=np.float32))

    def example(self, rows: int) -> Tensor:
        """Preprocessed noise images, so that their size is the processor's."""
        generator = np.random.default_rng(0)
        images = generator.integers(0, 256, (rows, 256, 256, 3), dtype=np.uint8)
        return torch.stack([self(Image.fromarray(image)) for image in images])

    def to_json(self) -> dict[str, Any]:
        """The processor's settings."""
        return {"kind": "processor", "settings": dict(self.settings)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ProcessorPreprocess:
        """The inverse of :meth:`to_json`."""
        transformers, settings = _transformers(), value["settings"]
        name = settings["image_processor_type"]
        found = getattr(transformers, name + "Pil", None) or getattr(transformers, name)
        with _quiet(transformers):
            return cls(settings, found.from_dict(dict(settings)))


@dataclass(frozen=True, eq=False)
class TextPreprocess(Preprocess):
    """A sentence to token ids, cut to ``max_length``; batches are padded to their longest row.

    Attributes:
        source: the tokeniser's folder or hub id.
        identifier: digest of its vocabulary and settings, checked when it is loaded again.
        max_length: in tokens.
        tokenizer: the tokeniser itself.
        names: the model's input names, in the tokeniser's order.
        prefix: 1 where every row starts with a class token, else 0.
    """

    modality: ClassVar[Modality] = "text"
    source: str
    identifier: str
    max_length: int
    tokenizer: Any = field(repr=False)
    names: tuple[str, ...] = ("input_ids", "attention_mask")
    prefix: int = 0

    @classmethod
    def load(cls, transformers: Any, source: str, config: Any, where: Mapping[str, Any]) -> TextPreprocess:
        """The tokeniser of a folder or hub id, with the model's own limit of length (512 if it has none)."""
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, **where)
        except Exception as error:
            if "trust_remote_code" in str(error):
                raise _unusable(source, True, error) from error
            raise ModelError(
                f"{source} has no tokeniser that loads",
                expected="tokenizer.json or a vocabulary beside the model",
                got=" ".join(str(error).split())[:200],
            ) from error
        limit = getattr(config, "max_position_embeddings", None) or _MAX_LENGTH
        return cls.of(source, tokenizer, min(int(tokenizer.model_max_length), int(limit), _MAX_LENGTH))

    @classmethod
    def of(cls, source: str, tokenizer: Any, max_length: int) -> TextPreprocess:
        """From a tokeniser in hand."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        ids = tokenizer("a", truncation=True, max_length=max_length)["input_ids"]
        if backend is not None:
            content = json.loads(backend.to_str())
            for state in ("truncation", "padding"):  # left behind by the last call, and said anew in every call
                content.pop(state, None)
            text = canonical_json(content)
        else:
            text = json.dumps(tokenizer.get_vocab(), sort_keys=True)
        first = int(tokenizer.cls_token_id is not None and len(ids) > 0 and ids[0] == tokenizer.cls_token_id)
        names = tuple(tokenizer.model_input_names)
        return cls(source, digest(text, json.dumps(names)), max_length, tokenizer, names, first)

    def __call__(self, raw: str) -> dict[str, Tensor]:
        """Token ids, attention mask (and token types) of one sentence, each ``(L,)``."""
        encoded = self.tokenizer(str(raw), truncation=True, max_length=self.max_length)
        return {name: torch.tensor(encoded[name], dtype=torch.long) for name in self.names}

    def collate(self, items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """``(B, L)`` each, padded on the right to the longest row."""
        fill = {"input_ids": int(self.tokenizer.pad_token_id or 0)}
        return {
            name: nn.utils.rnn.pad_sequence([item[name] for item in items], True, fill.get(name, 0))
            for name in self.names
        }

    def example(self, rows: int) -> dict[str, Tensor]:
        """``rows`` random sequences of 12 tokens (fewer if the limit is lower)."""
        generator = torch.Generator().manual_seed(0)
        shape = (rows, min(12, self.max_length))
        ids = torch.randint(0, len(self.tokenizer), shape, generator=generator)
        if self.prefix:
            ids[:, 0] = int(self.tokenizer.cls_token_id)
        made = {"input_ids": ids, "attention_mask": torch.ones(shape, dtype=torch.long)}
        return {name: made.get(name, torch.zeros(shape, dtype=torch.long)) for name in self.names}

    def identity(self) -> dict[str, Any]:
        """The vocabulary, settings and length, wherever they were found."""
        return {name: value for name, value in self.to_json().items() if name != "source"}

    def to_json(self) -> dict[str, Any]:
        """The tokeniser's place and digest, and the length."""
        return {
            "kind": "text",
            "source": self.source,
            "identifier": self.identifier,
            "max_length": self.max_length,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TextPreprocess:
        """The inverse of :meth:`to_json`; reads the tokeniser from its place.

        Raises:
            ModelError: it is not there any more, or has changed.
        """
        transformers, source = _transformers(), value["source"]
        where = {**({"local_files_only": True} if Path(source).is_dir() else {}), **_NO_CODE}
        with _quiet(transformers):
            made = cls.load(transformers, source, None, where)
        made = cls.of(source, made.tokenizer, int(value["max_length"]))
        if made.identifier != value["identifier"]:
            raise ModelError(f"the tokeniser in {source} has changed", expected=value["identifier"][:12])
        return made


def _licence(folder: Path) -> str:
    """The ``license:`` of the model card's front matter."""
    card = folder / "README.md"
    if not card.is_file():
        return ""
    found = re.match(r"---\n.*?^licen[sc]e:\s*(\S+)", card.read_text(errors="replace"), re.S | re.M)
    return found.group(1) if found else ""
