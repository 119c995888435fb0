"""A hidden layer under the last one: the closed form, and the embedding that the network then has."""

from __future__ import annotations

import pytest
import torch
from tests.features.toy import toy_network

from regraft.errors import ModelError
from regraft.network.hidden import hidden_parameters, with_hidden, without_hidden


def test_the_logits_are_those_of_two_layers_and_the_embedding_is_the_hidden_one():
    network = toy_network()
    random = torch.Generator().manual_seed(1)
    v, a, w, b = (torch.randn(size, generator=random) for size in ((7, 6), (7,), (3, 7), (3,)))
    deeper = with_hidden(network, v, a, 3)
    x = torch.randn(4, 3, 6, 6, generator=random)
    seen = {}
    with network.observe(("embedding",), lambda site, value: seen.update({site: value.clone()})):
        network.forward(x)
    below = seen["embedding"]
    assert torch.equal(deeper.forward(x), torch.zeros(4, 3))  # nothing is said until something is trained
    with deeper.observe(("embedding",), lambda site, value: seen.update({site: value.clone()})):
        deeper.forward(x)
    found = deeper.with_head(w, b).forward(x)
    hidden = (below @ v.T + a).clamp_min(0)
    torch.testing.assert_close(seen["embedding"], hidden)
    torch.testing.assert_close(found, hidden @ w.T + b)
    assert [tuple(deeper.params[name].shape) for name in hidden_parameters(deeper)] == [(7, 6), (7,)]
    assert torch.equal(deeper.params["conv1.weight"], network.params["conv1.weight"])
    assert deeper.fingerprint != network.fingerprint
    bare = without_hidden(deeper)
    assert (bare.head, bare.params["fc.weight"].shape) == ("fc", (3, 6))
    with bare.observe(("embedding",), lambda site, value: seen.update({site: value.clone()})):
        bare.forward(x)
    assert torch.equal(seen["embedding"], below)


def test_a_layer_of_another_width_is_refused():
    with pytest.raises(ModelError, match="does not fit"):
        with_hidden(toy_network(), torch.zeros(7, 5), torch.zeros(7), 3)
