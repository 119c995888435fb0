"""Models of transformers: a local folder made by ``save_pretrained``, or an id of the hub."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from regraft.errors import ModelError
from regraft.files import write_json
from regraft.network.blocks import prefix_tokens
from regraft.network.loaders import timm
from regraft.network.loaders.hub import NO_CODE, library, quiet, unusable
from regraft.network.loaders.text import TextPreprocess, beside, longest, pooling_of, save_text
from regraft.network.network import About, Network, Traits
from regraft.network.preprocess import ArrayPreprocess, ImagePreprocess, Modality, Preprocess
from regraft.network.seeding import seeded
from regraft.wording import one_line

__all__ = ["PREPROCESS", "ProcessorPreprocess", "load", "save"]

# Entries of a configuration that do not change what the network computes.
_VOLATILE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "id2label", "label2id")
_HEADS = {"ForImageClassification": "AutoModelForImageClassification",
          "ForSequenceClassification": "AutoModelForSequenceClassification"}  # fmt: skip
_MASKED = "vit_mae"  # hides three patches of four, at random; a ViT has its encoder
_TIMM = "timm_wrapper"  # what timm saved, wrapped by transformers
PREPROCESS = "regraft_preprocess.json"  # where a saved model reads other images than its processor says
_ENCODED = ("t5", "mt5", "umt5")  # of these the half that reads: the other one asks for the text that it shall write


def load(name: str, revision: str | None, head: bool, seed: int | None) -> Network:
    """Load a model with its preprocessing and class names, in float32.

    A local folder is read without any network access. Only safetensors weights are read and no code of
    the repository is run. With ``head`` the classifier is kept where the configuration names one.

    Raises:
        ModelError: the folder or repository holds no usable model, cannot be reached, or its weights do
            not fit.
    """
    transformers = library()
    local = Path(name).is_dir()
    where: dict[str, Any] = {**({"local_files_only": True} if local else {"revision": revision}), **NO_CODE}
    source = str(Path(name)) if local else name
    with quiet(transformers):
        try:
            config = transformers.AutoConfig.from_pretrained(source, **where)
            if config.model_type == _TIMM and config.model_args:  # transformers gives the number of classes itself
                config.model_args.pop("num_classes", None)
            module, traits = _module(transformers, source, config, where, head, seed)
            preprocess = _preprocess(transformers, source, config, module, where)
        except ModelError:
            raise
        except Exception as error:
            raise unusable(name, local, error) from error
    labels = getattr(config, "id2label", None) or {}
    classes = tuple(str(labels[key]) for key in sorted(labels))
    if not module.__class__.__name__.endswith(tuple(_HEADS)) or all(c.startswith("LABEL_") for c in classes):
        classes = ()
    found = "" if local else revision or _commit(transformers, source)
    about = About("transformers", _licence(Path(source)) if local else "", classes, found)
    own: Any = module.config  # that of the half or the class which is used
    settings = {key: value for key, value in own.to_dict().items() if key not in _VOLATILE}
    settings["architectures"] = [type(module).__name__]  # as it is saved, whatever it was published as
    if traits.pool is not None:  # decides what the network computes, as the rest does
        settings["token_pooling"] = traits.pool
    prefix = max(prefix_tokens(module), preprocess.prefix if isinstance(preprocess, TextPreprocess) else 0)
    for part in (*module.parameters(), *module.buffers()):  # copied: a mapped file that is written to would change them
        part.data = part.data.to(torch.float32 if part.is_floating_point() else part.dtype, copy=True)
    return Network(name, module, preprocess, about, traits=replace(traits, config=settings, prefix_tokens=prefix))


def save(network: Network, folder: Path) -> None:
    """Write the model and its processor or tokeniser as ``save_pretrained`` does.

    An image model's other preprocessing, such as of another size, stands in a file of its own beside the processor.

    Raises:
        ModelError: the processor can no longer be read from where the model came from.
    """
    transformers = library()
    preprocess = network.preprocess
    with quiet(transformers):
        network.module.save_pretrained(folder)  # type: ignore[operator]
        if isinstance(preprocess, TextPreprocess):
            whole = type(network.module).__name__.endswith(tuple(_HEADS))
            save_text(preprocess, None if whole else network.traits.pool or "pooler", folder)
        elif isinstance(preprocess, ProcessorPreprocess):
            preprocess.processor.save_pretrained(folder)
        else:
            local = Path(network.name).is_dir()
            where = {"local_files_only": True} if local else {"revision": network.about.revision or None}
            try:
                processor = transformers.AutoImageProcessor.from_pretrained(
                    network.name, use_fast=False, **where, **NO_CODE
                )
            except Exception as error:
                raise unusable(network.name, local, error) from error
            processor.save_pretrained(folder)
            where, config = {"local_files_only": True, **NO_CODE}, network.module.config
            if preprocess != _preprocess(transformers, str(folder), config, network.module, where):
                write_json(folder / PREPROCESS, preprocess.to_json())


def _commit(transformers: Any, source: str) -> str:
    """The commit that the hub's cache holds of the default branch; empty where that cannot be told."""
    hub = transformers.utils.hub
    with contextlib.suppress(OSError):
        return hub.extract_commit_hash(hub.cached_file(source, "config.json", local_files_only=True), None) or ""
    return ""


def _module(
    transformers: Any, source: str, config: Any, where: Mapping[str, Any], head: bool, seed: int | None
) -> tuple[nn.Module, Traits]:
    """The model; whether its own pooled output may be used, and else how a text's tokens are pooled."""
    architecture = (getattr(config, "architectures", None) or [""])[0]
    auto = _class(transformers, config, architecture, head)
    if seed is not None:
        module = _random(auto, config, seed)
        traits = _traits(transformers, source, where, module, architecture)
        if not traits.pooler:
            with contextlib.suppress(TypeError):
                module = _random(auto, config, seed, add_pooling_layer=False)
        return module, traits
    # what does not fit is reported then, and named below
    options = {**where, "use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
    if config.model_type == _TIMM:  # changed above; of others the class may have one of its own
        options["config"] = config
    # what a module computes for itself, such as tables of positions, would else be rounded to the dtype of the file
    options["dtype" if int(transformers.__version__.split(".")[0]) > 4 else "torch_dtype"] = torch.float32
    with seeded(0):  # what the library makes up is the same at every load
        module, report = auto.from_pretrained(source, **options)
    missing = sorted(report["missing_keys"])
    traits = _traits(transformers, source, where, module, architecture)
    if any(".pooler." in f".{key}" for key in missing):  # made up at random by the library
        traits = replace(traits, pooler=False)
    if not traits.pooler:  # leave it out, where the class allows that
        with contextlib.suppress(TypeError), seeded(0):
            module, report = auto.from_pretrained(source, **options, add_pooling_layer=False)
            missing = sorted(report["missing_keys"])
    missing = [key for key in missing if ".pooler." not in f".{key}"]
    shapes = [
        f"{name} of shape {tuple(given)}, where it says {tuple(own)}"
        for name, given, own in sorted(report.get("mismatched_keys", ()))  # a set
    ]
    if wrong := [*shapes, *map(str, missing)]:
        raise ModelError(
            f"the weights in {source} do not fit its configuration",
            expected="a tensor of the right shape for every parameter",
            got=f"{len(wrong)} missing or of another shape, such as {wrong[0]}",
            do=_prefixed(missing, report.get("unexpected_keys", ())) or "take weights and config.json from one model",
        )
    return module, traits


def _prefixed(missing: Sequence[str], unexpected: Iterable[str]) -> str:
    """What to do where the tensors stand under a wrapper's name, such as ``module.``; else nothing."""
    left = set(unexpected)
    before = {name.removesuffix(missing[0]) for name in left if name.endswith(f".{missing[0]}")} if missing else set()
    found = [prefix for prefix in sorted(before) if all(prefix + name in left for name in missing)]
    return f"take {found[0]!r} off the names in the file, which a wrapper put there" if found else ""


def _class(transformers: Any, config: Any, architecture: str, head: bool) -> Any:
    """What reads a row as it is and gives its features, or the scores of its classes."""
    if config.model_type == _TIMM and head and config.num_labels and architecture != "TimmWrapperModel":
        return transformers.AutoModelForImageClassification
    for ending, name in _HEADS.items():
        if head and architecture.endswith(ending):
            return getattr(transformers, name)
    if hasattr(config, "vision_config") and hasattr(config, "text_config"):  # CLIP-like: the image half
        half = re.sub("(Model|ForImageClassification)$", "VisionModel", architecture)
        return getattr(transformers, half, transformers.AutoModel)
    if config.model_type == _MASKED:
        return transformers.ViTModel
    if config.model_type in _ENCODED:
        return transformers.AutoModelForTextEncoding
    return transformers.AutoModel


def _random(auto: Any, config: Any, seed: int, **options: Any) -> nn.Module:
    """A model with weights that are drawn now."""
    with seeded(seed):
        if make := getattr(auto, "from_config", None):
            return make(config, **NO_CODE, **options)
        own = getattr(config, "vision_config", None) or auto.config_class.from_dict(config.to_dict())
        return auto(own, **options)


def _traits(transformers: Any, source: str, where: Mapping[str, Any], module: nn.Module, architecture: str) -> Traits:
    """Of a masked autoencoder no pooler, for it has none; of a text encoder that was published without a classifier no
    pooler either, and how its tokens are pooled instead, unless it was saved as a classifier without its head."""
    if getattr(module.config, "model_type", "") == _MASKED:
        return Traits(pooler=False)
    if not _reads_text(module) or architecture.endswith(tuple(_HEADS)):
        return Traits()
    pool = pooling_of(transformers, source, where)
    return Traits(pooler=pool is None or getattr(module, "pooler", None) is None, pool=pool)


def _reads_text(module: nn.Module) -> bool:
    return getattr(module, "main_input_name", "") == "input_ids"


def _preprocess(transformers: Any, source: str, config: Any, module: nn.Module, where: Mapping[str, Any]) -> Preprocess:
    if _reads_text(module):
        pad = max(getattr(config, "pad_token_id", None) or 0, 0)  # -1 says that there is none
        return TextPreprocess.load(transformers, source, longest(module, config), where, pad)
    if own := beside(transformers, source, PREPROCESS, where):
        return (ArrayPreprocess if own["kind"] == "array" else ImagePreprocess).from_json(own)
    if config.model_type == _TIMM:
        return timm.of_config(config.pretrained_cfg)
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(source, use_fast=False, **where)
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise unusable(source, True, error) from error
        raise ModelError(
            f"{source} says nothing about its preprocessing",
            expected="preprocessor_config.json",
            got=one_line(error),
            do="save the image processor beside the model with processor.save_pretrained",
        ) from error
    return _in_grey(processor) if getattr(module.config, "num_channels", 3) == 1 else image_preprocess(processor)


def _in_grey(processor: Any) -> Preprocess:
    """:func:`image_preprocess` in one channel, for a network that reads grey images, whose processor gives three.

    The three stay where their means or deviations differ: which of them is that of grey is not known.
    """
    for name in ("image_mean", "image_std"):
        value = getattr(processor, name, None)
        if isinstance(value, list | tuple) and len(value) == 1:  # of the one channel, which processors refuse of RGB
            setattr(processor, name, list(value) * 3)
    found = image_preprocess(processor)
    if not isinstance(found, ImagePreprocess) or len({*found.mean}) > 1 or len({*found.std}) > 1:
        return found
    return replace(found, channels=1, mean=found.mean[:1], std=found.std[:1])


def image_preprocess(processor: Any) -> Preprocess:
    """An own preprocessing that gives the processor's pixels; the processor itself where none does.

    The settings are read off the processor and tried on images of odd sizes: pixels that differ at all
    mean that it does something more, and then it is called as it is.
    """
    own = ProcessorPreprocess(_settings(processor), processor)
    generator = np.random.default_rng(0)
    sides = ((61, 97), (330, 251), (40, 40))
    images = [Image.fromarray(generator.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in sides]
    wanted = [own(image) for image in images]  # one that cannot be called is refused here
    try:
        candidate = _read_settings(processor)
        if not all(torch.equal(candidate(image), pixels) for image, pixels in zip(images, wanted)):
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
    if len(size) > 1 and set(size) != {"height", "width"}:  # such as a longest side, which few images come up to
        raise ModelError("the size that an image processor gives", expected="one side or two", got=str(size))
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
    libraries: ClassVar[tuple[str, ...]] = ("pillow", "transformers")
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
        transformers, settings = library(), value["settings"]
        name = settings["image_processor_type"]
        found = getattr(transformers, name + "Pil", None) or getattr(transformers, name)
        with quiet(transformers):
            return cls(settings, found.from_dict(dict(settings)))


def _licence(folder: Path) -> str:
    """The ``license:`` of the model card's front matter, of several the first."""
    card = folder / "README.md"
    text = card.read_text(errors="replace") if card.is_file() else ""
    front = re.match(r"---\n(.*?)^---", text, re.S | re.M)
    named = r"""^licen[sc]e:(?:[ \t]*|[ \t]*\n[ \t]*-[ \t]*)["']?([\w.+-]+)"""
    found = re.search(named, front[1] if front else "", re.M)
    return found[1] if found else ""
