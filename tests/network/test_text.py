"""Text networks: the tokeniser's identity, and an artifact that carries its own tokeniser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regraft
from regraft.network import TextPreprocess, load, preprocess_from_json

WORDS = ["good", "fine", "great", "bad", "poor", "dull"]
SENTENCES = [f"a {WORDS[row % 6]} film, {'very ' * (row % 9)}number {row}" for row in range(40)]
LABELS = ["up" if row % 6 < 3 else "down" for row in range(40)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A WordPiece tokeniser of BERT's, learnt from the sentences."""
    hub = pytest.importorskip("transformers")
    import tokenizers

    backend = tokenizers.BertWordPieceTokenizer()
    backend.train_from_iterator(SENTENCES, vocab_size=120, show_progress=False)
    return hub.PreTrainedTokenizerFast(
        tokenizer_object=backend._tokenizer,
        model_max_length=24,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


@pytest.fixture
def folder(tokenizer: Any, tmp_path: Path) -> Path:
    import transformers as hub

    hub.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    config = hub.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=24,
    )
    hub.BertModel(config).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def test_an_embedded_text_backbone_needs_nothing_else(folder: Path, tmp_path: Path) -> None:
    run = regraft.adapt((SENTENCES, LABELS), str(folder), folds=2)
    live = run.predict_proba(SENTENCES).probabilities
    run.save(tmp_path / "run", embed=True)
    folder.rename(tmp_path / "gone")
    loaded = regraft.load(tmp_path / "run")
    assert np.array_equal(loaded.predict_proba(SENTENCES).probabilities, live)


def test_identity_does_not_depend_on_what_the_tokeniser_did_last(tokenizer: Any) -> None:
    fresh = TextPreprocess.of("here", tokenizer, 24).identifier
    for options in ({"truncation": True, "max_length": 5}, {"padding": "max_length", "max_length": 9}, {}):
        tokenizer("a good film", **options)
        assert TextPreprocess.of("here", tokenizer, 24).identifier == fresh


def test_identity_sees_the_vocabulary_and_the_rules(folder: Path, tokenizer: Any) -> None:
    import tokenizers

    network = load(str(folder))
    assert preprocess_from_json(network.preprocess.to_json()).identity() == network.preprocess.identity()
    other = load(str(folder)).preprocess.tokenizer
    other.backend_tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False)
    added = load(str(folder)).preprocess.tokenizer
    added.add_tokens(["film-maker"])
    identifiers = [TextPreprocess.of("here", one, 24).identifier for one in (tokenizer, other, added)]
    assert len(set(identifiers)) == 3
