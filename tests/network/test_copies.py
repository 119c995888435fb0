"""A network goes to other processes and into copies, whatever it has worked out about itself."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone
from tests.features.toy import toy_arrays, toy_network
from tests.network.zoo import FAMILIES, OWN

from regraft.graft import GraftClassifier
from regraft.network import Network, load

Zoo = Callable[[str], Network]


def used(network: Network) -> Network:
    """The network after everything that it keeps was asked for."""
    _ = network.params, network.buffers, network.fingerprint, network.blocks, network.sites, network.policy
    return network


def assert_equal(made: Network, network: Network) -> None:
    assert made.fingerprint == network.fingerprint
    assert made.sites == network.sites
    assert (made.name, made.about) == (network.name, network.about)
    batch = network.example(3)
    with torch.no_grad():
        # the same numbers to rounding: convolutions choose their kernel by where the weights lie in memory
        torch.testing.assert_close(made.forward(batch), network.forward(batch), rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", [*FAMILIES, *OWN])
def test_pickle_and_deepcopy(name: str, folders: Callable[[str], Path], own: Zoo) -> None:
    # loaded anew: transformers leaves hooks that cannot be pickled on a model that was asked for hidden states
    network = used(own(name) if name in OWN else load(str(folders(name))))
    assert_equal(pickle.loads(pickle.dumps(network)), network)
    assert_equal(copy.deepcopy(network), network)


def test_a_bundled_backbone_and_a_network_with_a_new_head(own: Zoo) -> None:
    for network in (load("regraft/fashion-resnet"), own("residual").without_head().with_head(torch.ones(2, 6))):
        assert_equal(pickle.loads(pickle.dumps(used(network))), network)


def test_estimators_are_cloned_and_pickled() -> None:
    x, y = toy_arrays(30)
    network = used(toy_network())
    estimator = GraftClassifier(network, method="probe", folds=2)
    assert clone(estimator).model is network  # no copy of the weights for every fold
    fitted = estimator.fit(x, y)
    assert clone(fitted).model is network
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(x), fitted.predict_proba(x))
