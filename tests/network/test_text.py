"""Text networks: the tokeniser and its limit, how tokens are pooled, and an artifact that carries its own tokeniser."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.network.texts import LABELS, LENGTH, SENTENCES, make_bert, make_tokenizer

import regraft
from regraft.errors import ModelError
from regraft.network import TextPreprocess, load, preprocess_from_json, save
from regraft.network.loaders.text import longest


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture
def folder(tokenizer: Any, tmp_path: Path) -> Path:
    return make_bert(tmp_path / "bert", tokenizer)


def beside(folder: Path, name: str, value: Any) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(value))


def test_an_embedded_text_backbone_needs_nothing_else(folder: Path, tmp_path: Path) -> None:
    beside(folder, "sentence_bert_config.json", {"max_seq_length": 10})
    beside(folder, "1_Pooling/config.json", {"pooling_mode_cls_token": True})
    run = regraft.adapt((SENTENCES, LABELS), str(folder), folds=2)
    live = run.predict_proba(SENTENCES).probabilities
    run.save(tmp_path / "run", embed=True)
    folder.rename(tmp_path / "gone")
    loaded = regraft.load(tmp_path / "run")
    assert np.array_equal(loaded.predict_proba(SENTENCES).probabilities, live)
    assert loaded.network.preprocess.max_length == 10


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
    cut, split = (load(str(folder)).preprocess.tokenizer for _ in range(2))
    cut.truncation_side, split.split_special_tokens = "left", True
    identifiers = [TextPreprocess.of("here", one, 24).identifier for one in (tokenizer, other, added, cut, split)]
    assert len(set(identifiers)) == 5


def test_the_embedding_is_the_mean_of_real_tokens_unless_the_folder_says_which(folder: Path, tmp_path: Path) -> None:
    plain = load(str(folder))
    batch = plain.preprocess.collate([plain.preprocess(text) for text in ("a film", "a very very good film")])
    with torch.no_grad():
        hidden = plain.module(**batch).last_hidden_state
        count = int(batch["attention_mask"][0].sum())
        assert count < hidden.shape[1]
        torch.testing.assert_close(plain.forward(batch)[0], hidden[0, :count].mean(0))
        beside(folder, "1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
        first = load(str(folder))
        torch.testing.assert_close(first.forward(batch), hidden[:, 0])
        beside(folder, "1_Pooling/config.json", {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False})
        last = load(str(folder))
        torch.testing.assert_close(last.forward(batch), torch.stack([hidden[0, count - 1], hidden[1, -1]]))
        save(last, tmp_path / "copy")
        assert load(str(tmp_path / "copy")).fingerprint == last.fingerprint
    assert len({plain.fingerprint, first.fingerprint, last.fingerprint}) == 3  # they compute different numbers
    for told in ({"pooling_mode": "max"}, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}):
        beside(folder, "1_Pooling/config.json", told)
        with pytest.raises(ModelError, match=r"pools its tokens by (max|cls_token and mean_tokens)"):
            load(str(folder))


@pytest.mark.parametrize(
    ("stated", "limit"),
    [
        ((LENGTH, LENGTH, None), LENGTH), ((LENGTH, LENGTH, 9), 9), ((12, LENGTH, None), 12), ((10**30, 17, None), 17),
        ((6, LENGTH, 10), 10),  # a sentence encoder's own stands for the tokeniser's, as in its library
    ],
)  # fmt: skip
def test_the_limit_is_the_smaller_of_the_models_and_the_settings(
    tmp_path: Path, stated: tuple[Any, ...], limit: int
) -> None:
    length, positions, settings = stated
    folder = make_bert(tmp_path / "bert", make_tokenizer(length), max_position_embeddings=positions)
    if settings is not None:
        beside(folder, "sentence_bert_config.json", {"max_seq_length": settings})
    network = load(str(folder))
    assert network.preprocess.max_length == limit
    save(network, tmp_path / "copy")
    assert load(str(tmp_path / "copy")).fingerprint == network.fingerprint
    long = network.preprocess.collate([network.preprocess("very " * 99)])
    assert long["input_ids"].shape == (1, limit)
    assert torch.isfinite(network.forward(long)).all()


def test_a_sentence_encoders_settings_have_a_name_of_their_own_kind(folder: Path) -> None:
    beside(folder, "sentence_roberta_config.json", {"max_seq_length": 4})
    assert load(str(folder)).preprocess.max_length == 4


def test_a_sentence_encoder_may_read_small_letters(tmp_path: Path) -> None:
    import tokenizers

    cased = make_tokenizer()
    cased.backend_tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False)
    folder = make_bert(tmp_path / "bert", cased)
    plain = load(str(folder))
    beside(folder, "sentence_bert_config.json", {"max_seq_length": LENGTH, "do_lower_case": True})
    network = load(str(folder))
    small, large = (network.preprocess(text)["input_ids"].tolist() for text in ("a good film", "A GOOD Film"))
    assert small == large == plain.preprocess("a good film")["input_ids"].tolist()
    assert plain.preprocess("A GOOD Film")["input_ids"].tolist() != small
    assert network.fingerprint != plain.fingerprint
    save(network, tmp_path / "copy")
    assert load(str(tmp_path / "copy")).fingerprint == network.fingerprint


def test_what_a_sentence_encoder_does_after_its_pooling_is_refused_but_for_the_norm(folder: Path) -> None:
    parts = ["models.Transformer", "models.Pooling", "models.Normalize"]
    listed = [{"idx": i, "path": f"{2 * i}_X", "type": f"sentence_transformers.{part}"} for i, part in enumerate(parts)]
    plain = load(str(folder)).fingerprint
    beside(folder, "modules.json", listed)
    assert load(str(folder)).fingerprint == plain
    beside(folder, "2_X/config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    assert load(str(folder)).traits.pool == "cls"  # where the list says that it stands
    beside(folder, "modules.json", [*listed, {"path": "3_Dense", "type": "sentence_transformers.models.Dense"}])
    with pytest.raises(ModelError, match="layers beside its network: Dense"):
        load(str(folder))


def test_what_the_library_makes_up_is_the_same_at_every_load(tmp_path: Path) -> None:
    """A pooler whose class cannot leave it out."""
    from safetensors.torch import load_file, save_file

    settings = {f"{part}_groups": 1 for part in ("q", "k", "v", "post_attention", "intermediate", "output")}
    folder = make_bert(tmp_path / "squeeze", make_tokenizer(), "SqueezeBert", embedding_size=8, **settings)
    file = folder / "model.safetensors"
    kept = {name: value for name, value in load_file(file).items() if "pooler" not in name}
    assert len(kept) < len(load_file(file))
    save_file(kept, file, {"format": "pt"})
    torch.manual_seed(0)
    first = load(str(folder)).fingerprint
    torch.manual_seed(1)
    assert load(str(folder)).fingerprint == first


def test_positions_that_start_behind_the_padding_are_not_counted(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(10**30)
    folder = make_bert(tmp_path / "roberta", tokenizer, "Roberta", pad_token_id=0, max_position_embeddings=LENGTH)
    network = load(str(folder))
    assert network.preprocess.max_length == LENGTH - 1
    long = network.preprocess.collate([network.preprocess("very " * 99)])
    assert torch.isfinite(network.forward(long)).all()


def test_a_limit_below_zero_is_none() -> None:
    """As XLNet's configuration has it."""
    assert longest(torch.nn.Linear(1, 1), SimpleNamespace(max_position_embeddings=-1)) is None


def test_rows_that_lose_their_ends_are_counted(folder: Path) -> None:
    own = load(str(folder)).preprocess
    fits = own.tokenizer("very " * (LENGTH - 2))["input_ids"]
    assert len(fits) == LENGTH  # with the two special tokens
    assert own.shortened(["very " * (LENGTH - 2), "very " * (LENGTH - 1), "a film", "x" * 99]) == [1]
    assert own.shortened(["!" * (LENGTH - 2), "!" * (LENGTH - 1)]) == [1]  # each letter is a token
    assert own.shortened([]) == []


def test_a_model_without_its_tokeniser_is_refused(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            path.unlink()
    with pytest.raises(ModelError, match=r"has no tokeniser that loads; .*tokenizer.save_pretrained"):
        load(str(folder))


def test_a_tokeniser_of_more_words_than_the_model_is_said_to_be_another_ones(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"got IndexError: .*take the tokeniser that the model learnt with"):
        load(str(make_bert(tmp_path / "bert", tokenizer, vocab_size=len(tokenizer) // 2)))


def test_padding_changes_a_rows_values_by_rounding_alone(folder: Path) -> None:
    network = load(str(folder))
    rows = [network.preprocess(text) for text in SENTENCES]
    alone = torch.cat([network.forward(network.preprocess.collate([row])) for row in rows])
    together = network.forward(network.preprocess.collate(rows))
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", ["Roberta", "DistilBert", "Albert", "MPNet", "Electra", "GPT2", "DebertaV2"])
def test_families_of_encoders_are_read_alike(tmp_path: Path, model: str) -> None:
    more = {"embedding_size": 8} if model in ("Albert", "Electra") else {}
    network = load(str(make_bert(tmp_path / model, make_tokenizer(LENGTH - 2), model, pad_token_id=0, **more)))
    rows = [network.preprocess(text) for text in SENTENCES[:9]]
    batch = network.preprocess.collate(rows)
    with torch.no_grad():
        hidden, mask = network.module(**batch).last_hidden_state, batch["attention_mask"][..., None]
        torch.testing.assert_close(network.forward(batch), (hidden * mask).sum(1) / mask.sum(1), rtol=1e-4, atol=1e-5)
        alone = torch.cat([network.forward(network.preprocess.collate([row])) for row in rows])
    torch.testing.assert_close(network.forward(batch), alone, rtol=1e-4, atol=1e-5)
    assert not any("pooler" in name for name in network.params)
    save(network, tmp_path / "copy")
    assert load(str(tmp_path / "copy")).fingerprint == network.fingerprint


PARTS = [f"{part}_{what}" for part in ("encoder", "decoder") for what in ("attention_heads", "layers", "ffn_dim")]


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        ("Bart", dict.fromkeys(PARTS, 2)),
        ("T5", {"num_layers": 2, "num_decoder_layers": 2, "num_heads": 2, "d_ff": 16, "d_kv": 4}),
    ],
)
def test_classifiers_that_read_the_end_of_a_text_are_loaded(
    family: str, shape: dict[str, int], tokenizer: Any, tmp_path: Path
) -> None:
    """The states at the end token, of which every row must have as many."""
    pad, end = tokenizer.pad_token_id, tokenizer.sep_token_id
    shape = {**shape, "d_model": 8, "pad_token_id": pad, "eos_token_id": end, "decoder_start_token_id": end}
    network = load(str(make_bert(tmp_path / family, tokenizer, f"{family}ForSequenceClassification", **shape)))
    assert network.head == "classification_head.out_proj"
    framed = network.example(2)["input_ids"]
    assert (framed[:, 0] == tokenizer.cls_token_id).all()
    assert (framed[:, -1] == end).all()
    assert not torch.isin(framed[:, 1:-1], torch.tensor(tokenizer.all_special_ids)).any()


def test_classifiers_of_the_last_token_are_padded_as_they_tell_it(tmp_path: Path) -> None:
    """The last token is the one before the first of the model's own padding, whatever the attention mask says."""
    tokenizer, model = make_tokenizer(), "GPT2ForSequenceClassification"
    with pytest.raises(ModelError, match=r"short text depends on the texts beside it.*differ by.*pad_token_id"):
        load(str(make_bert(tmp_path / "other", tokenizer, model, pad_token_id=7)))
    tokenizer.pad_token = None
    network = load(str(make_bert(tmp_path / "none", tokenizer, model, pad_token_id=7)))
    rows = [network.preprocess(text) for text in SENTENCES[:9]]
    alone = torch.cat([network.forward(network.preprocess.collate([row])) for row in rows])
    torch.testing.assert_close(network.forward(network.preprocess.collate(rows)), alone, rtol=1e-4, atol=1e-5)
    again = preprocess_from_json(network.preprocess.to_json())
    assert (again.pad, again.identity()) == (7, network.preprocess.identity())
    save(network, tmp_path / "copy")
    assert load(str(tmp_path / "copy")).preprocess.pad == 7
