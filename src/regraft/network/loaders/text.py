"""Sentences for transformers' text models: tokens, their limit, and how a row of them becomes one vector."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from regraft.errors import ModelError
from regraft.files import canonical_json, digest, read_json, write_json
from regraft.network.loaders.hub import NO_CODE, library, quiet, unusable
from regraft.network.preprocess import Modality, Preprocess
from regraft.wording import one_line

__all__ = ["TextPreprocess", "TokenPooling", "beside", "longest", "pooling_of", "save_text"]

_MAX_LENGTH = 512
_ENDLESS = 10**9  # the library's number for no limit is larger
_USUAL = {"truncation_side": "right", "split_special_tokens": False}  # settings beside the vocabulary's
# Where sentence encoders say what no configuration of transformers does: their limit, and how tokens are pooled.
_KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_LENGTHS = tuple(f"sentence_{kind}_config.json" for kind in _KINDS)  # the first that is there
_LENGTH_KEY, _LOWER_KEY = "max_seq_length", "do_lower_case"
_POOLING, _MODE_KEY = "1_Pooling/config.json", "pooling_mode"
_MODULES, _READ = "modules.json", ("Transformer", "Pooling", "Normalize")
TokenPooling = Literal["cls", "last", "mean"]
_FLAGS: dict[str, TokenPooling] = {"cls_token": "cls", "lasttoken": "last", "mean_tokens": "mean"}
_MODES: dict[str, TokenPooling] = {**_FLAGS, "cls": "cls", "mean": "mean"}


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
        pad: the token that rows are filled up with, where the tokeniser names none.
    """

    modality: ClassVar[Modality] = "text"
    libraries: ClassVar[tuple[str, ...]] = ("tokenizers", "transformers")
    ragged: ClassVar[bool] = True
    source: str
    identifier: str
    max_length: int
    tokenizer: Any = field(repr=False)
    names: tuple[str, ...] = ("input_ids", "attention_mask")
    prefix: int = 0
    pad: int = 0

    @classmethod
    def load(
        cls, transformers: Any, source: str, limit: int | None, where: Mapping[str, Any], pad: int = 0
    ) -> TextPreprocess:
        """The tokeniser of a folder or hub id.

        Args:
            transformers: the library.
            source: the folder or id.
            limit: of the model, in tokens, if it has one. The smaller of it and that of a sentence encoder's settings
                counts, the tokeniser's own where there are none; 512 where nothing is stated.
            where: of the library's loaders.
            pad: the model's token for padding, for a tokeniser without one.

        Raises:
            ModelError: there is no tokeniser, or one without a vocabulary.
        """
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, **where)
        except Exception as error:
            if "trust_remote_code" in str(error):
                raise unusable(source, True, error) from error
            raise _no_tokenizer(source, one_line(error)) from error
        if len(tokenizer) <= len(tokenizer.all_special_tokens):  # made up by the library where no file is
            raise _no_tokenizer(source, "special tokens alone")
        settings = _settings(transformers, source, where)
        if settings.get(_LOWER_KEY) is True:
            _lowered(tokenizer)
        stated = (settings.get(_LENGTH_KEY) or tokenizer.model_max_length, limit)
        known = [int(value) for value in stated if value and value < _ENDLESS]
        return cls.of(source, tokenizer, min(known, default=_MAX_LENGTH), pad)

    @classmethod
    def of(cls, source: str, tokenizer: Any, max_length: int, pad: int = 0) -> TextPreprocess:
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
        other = {name: value for name, usual in _USUAL.items() if (value := getattr(tokenizer, name, usual)) != usual}
        told = (text, json.dumps(names), *([canonical_json(other)] if other else []))
        if tokenizer.pad_token_id is not None:
            pad = int(tokenizer.pad_token_id)
        return cls(source, digest(*told), max_length, tokenizer, names, first, pad)

    def __call__(self, raw: str) -> dict[str, Tensor]:
        """Token ids, attention mask (and token types) of one sentence, each ``(L,)``."""
        encoded = self.tokenizer(str(raw), truncation=True, max_length=self.max_length)
        return {name: torch.tensor(encoded[name], dtype=torch.long) for name in self.names}

    @property
    def limit(self) -> str:
        """The most tokens."""
        return f"{self.max_length} tokens"

    def length(self, raw: str) -> int:
        """In characters, which tokens follow closely enough to choose a row's neighbours by."""
        return len(raw)

    def shortened(self, raws: Sequence[str]) -> list[int]:
        """Which texts have more than ``max_length`` tokens; those that are too short for that are not looked at."""
        rows = [row for row, raw in enumerate(raws) if len(raw.encode(errors="replace")) + 2 > self.max_length]
        texts = [raws[row] for row in rows]
        found = self.tokenizer(texts, truncation=False, verbose=False)["input_ids"] if texts else []
        return [row for row, ids in zip(rows, found) if len(ids) > self.max_length]

    def collate(self, items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """``(B, L)`` each, padded on the right to the longest row."""
        fill = {"input_ids": self.pad}
        return {
            name: nn.utils.rnn.pad_sequence([item[name] for item in items], True, fill.get(name, 0))
            for name in self.names
        }

    def example(self, rows: int) -> dict[str, Tensor]:
        """``rows`` random sequences of 12 tokens (fewer if the limit is lower), between the special ones of a text."""
        generator = torch.Generator().manual_seed(0)
        shape = (rows, min(12, self.max_length))
        special = set(self.tokenizer.all_special_ids)
        words = torch.tensor([token for token in range(len(self.tokenizer)) if token not in special])
        ids = words[torch.randint(0, len(words), shape, generator=generator)]
        front, back = self._frame()
        if len(front) + len(back) <= shape[1]:
            ids[:, : len(front)] = torch.tensor(front, dtype=torch.long)
            ids[:, shape[1] - len(back) :] = torch.tensor(back, dtype=torch.long)
        made = {"input_ids": ids, "attention_mask": torch.ones(shape, dtype=torch.long)}
        return {name: made.get(name, torch.zeros(shape, dtype=torch.long)) for name in self.names}

    def _frame(self) -> tuple[list[int], list[int]]:
        """The special tokens that the tokeniser puts before and behind a text."""
        whole, word = (self.tokenizer("a", add_special_tokens=add)["input_ids"] for add in (True, False))
        starts = [at for at in range(len(whole) - len(word) + 1) if whole[at : at + len(word)] == word]
        at = starts[0] if starts else 0
        return whole[:at], whole[at + len(word) :]

    def identity(self) -> dict[str, Any]:
        """The vocabulary, settings and length, wherever they were found; the token of padding is the model's."""
        return {name: value for name, value in self.to_json().items() if name not in ("source", "pad")}

    def to_json(self) -> dict[str, Any]:
        """The tokeniser's place and digest, and the length."""
        return {
            "kind": "text",
            "source": self.source,
            "identifier": self.identifier,
            "max_length": self.max_length,
        } | ({"pad": self.pad} if self.tokenizer.pad_token_id is None and self.pad else {})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TextPreprocess:
        """The inverse of :meth:`to_json`; reads the tokeniser from its place.

        Raises:
            ModelError: it is not there any more, or has changed.
        """
        transformers, source = library(), value["source"]
        where = {**({"local_files_only": True} if Path(source).is_dir() else {}), **NO_CODE}
        with quiet(transformers):
            made = cls.load(transformers, source, None, where)
        made = cls.of(source, made.tokenizer, int(value["max_length"]), int(value.get("pad", 0)))
        if made.identifier != value["identifier"]:
            raise ModelError(f"the tokeniser in {source} has changed", expected=value["identifier"][:12])
        return made


def pooling_of(transformers: Any, source: str, where: Mapping[str, Any]) -> TokenPooling | None:
    """How a text model's last hidden states become one vector: the mean over a row's real tokens, or the class token
    or the last one where the settings of a sentence encoder beside the model say so; ``None`` of a classifier that was
    saved without its head, which reads what the head did.

    The pooler of BERT-like models, a layer on the class token, is left out: it was trained to tell whether one
    sentence follows another, or not at all.

    A sentence encoder's last step, to unit norm, is left out too: heads have scalings of their own.

    Raises:
        ModelError: the settings say another way, or several, or further layers follow.
    """
    settings = beside(transformers, source, _pooling_file(transformers, source, where), where)
    mode, flag = settings.get(_MODE_KEY), f"{_MODE_KEY}_"
    if mode == "pooler":
        return None
    said = [key.removeprefix(flag) for key, on in settings.items() if key.startswith(flag) and on]
    if mode is not None:
        said = [mode] if isinstance(mode, str) else list(mode)
    if not said:
        return "mean"
    if len(said) > 1 or said[0] not in _MODES:
        raise ModelError(
            f"{source} pools its tokens by {' and '.join(map(str, said))}",
            expected="the mean, the class token or the last token",
            do=f"take {_POOLING} away for the mean, which the encoder was not trained for",
        )
    return _MODES[said[0]]


def longest(module: nn.Module, config: Any) -> int | None:
    """The most tokens that a text model has positions for; ``None`` where positions are relative, or not said."""
    limit = getattr(config, "max_position_embeddings", None)
    for name, part in module.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding) and part.padding_idx is not None:
            limit = part.num_embeddings - part.padding_idx - 1  # RoBERTa counts from behind the padding's own place
    return limit if limit is not None and limit > 0 else None  # XLNet says -1


def save_text(preprocess: TextPreprocess, pool: TokenPooling | Literal["pooler"] | None, folder: Path) -> None:
    """Write the tokeniser, its limit and a pooling, for :meth:`TextPreprocess.load` and :func:`pooling_of`."""
    preprocess.tokenizer.save_pretrained(folder)
    write_json(folder / _LENGTHS[0], {_LENGTH_KEY: preprocess.max_length})
    if pool is not None:
        (folder / _POOLING).parent.mkdir(exist_ok=True)
        flags = {f"{_MODE_KEY}_{flag}": pool == mode for flag, mode in _FLAGS.items()}
        write_json(folder / _POOLING, {_MODE_KEY: pool} if pool == "pooler" else flags)


def _settings(transformers: Any, source: str, where: Mapping[str, Any]) -> dict[str, Any]:
    """What a sentence encoder says of its texts."""
    return next((found for name in _LENGTHS if (found := beside(transformers, source, name, where))), {})


def _lowered(tokenizer: Any) -> None:
    """Have a tokeniser read small letters, before whatever else it does to a text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        tokenizer.do_lower_case = True
    elif '"Lowercase"' not in backend.to_str():  # as it is saved
        from tokenizers.normalizers import Lowercase, Sequence

        backend.normalizer = Sequence([Lowercase(), *([] if backend.normalizer is None else [backend.normalizer])])


def _pooling_file(transformers: Any, source: str, where: Mapping[str, Any]) -> str:
    """Where a sentence encoder says how it pools.

    Raises:
        ModelError: it has layers that are none of transformers', and its vectors are those of the last.
    """
    listed = _file(transformers, source, _MODULES, where)
    found = [part for part in listed if isinstance(part, dict)] if isinstance(listed, list) else []
    kinds = [str(part.get("type", "")).rsplit(".", 1)[-1] for part in found]
    if further := [kind for kind in kinds if kind not in _READ]:
        raise ModelError(
            f"{source} is a sentence encoder with layers beside its network: {', '.join(further)}",
            expected=f"at most {', '.join(_READ)}",
            do=f"load it as a module of your own, or take {_MODULES} away for the pooled tokens alone",
        )
    paths = [str(part.get("path", "")) for part, kind in zip(found, kinds) if kind == "Pooling"]
    return f"{paths[0]}/config.json" if paths else _POOLING


def beside(transformers: Any, source: str, name: str, where: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object that may stand beside a model; empty where it does not, or holds something else."""
    value = _file(transformers, source, name, where)
    return value if isinstance(value, dict) else {}


def _file(transformers: Any, source: str, name: str, where: Mapping[str, Any]) -> Any:
    """What a JSON file holds that may stand beside a model; ``None`` where it does not."""
    quietly = {
        f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors", "gated_repo")
    }
    place = {key: value for key, value in where.items() if key not in NO_CODE}
    path = transformers.utils.cached_file(source, name, **place, **quietly)
    return None if path is None else read_json(Path(path))


def _no_tokenizer(source: str, got: str) -> ModelError:
    return ModelError(
        f"{source} has no tokeniser that loads",
        expected="tokenizer.json or a vocabulary beside the model",
        got=got,
        do="save it there with tokenizer.save_pretrained",
    )
