"""A tiny random BERT with a tokeniser learnt from the sentences, in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

WORDS = ["good", "fine", "great", "bad", "poor", "dull"]
SENTENCES = [f"a {WORDS[row % 6]} film, {'very ' * (row % 9)}number {row}" for row in range(40)]
LABELS = ["up" if row % 6 < 3 else "down" for row in range(40)]
LENGTH = 24
_HEAD = "ForSequenceClassification"


def make_tokenizer(length: int = LENGTH) -> Any:
    """A WordPiece tokeniser of BERT's."""
    hub = pytest.importorskip("transformers")
    import tokenizers

    backend = tokenizers.BertWordPieceTokenizer()
    backend.train_from_iterator(SENTENCES, vocab_size=120, show_progress=False)
    first, last = (("[CLS]", backend.token_to_id("[CLS]")), ("[SEP]", backend.token_to_id("[SEP]")))
    backend._tokenizer.post_processor = tokenizers.processors.BertProcessing(last, first)
    return hub.PreTrainedTokenizerFast(
        tokenizer_object=backend._tokenizer,
        model_max_length=length,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def make_bert(folder: Path, tokenizer: Any, model: str = "Bert", **settings: Any) -> Path:
    """Save a model of two blocks, 8 wide, and the tokeniser; ``model`` is a family or its classifier."""
    import transformers as hub

    hub.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    shape = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    shape |= {"vocab_size": len(tokenizer), "max_position_embeddings": LENGTH, **settings}
    family = model.removesuffix(_HEAD)
    config = getattr(hub, f"{family}Config")(**shape)
    getattr(hub, model if model != family else f"{model}Model")(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
