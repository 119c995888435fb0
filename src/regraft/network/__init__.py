"""Pretrained networks as pure functions with named parameters, taps and preprocessing."""

from regraft.network.fold import Folding, fold
from regraft.network.fresh import reinitialised, settled
from regraft.network.load import check_weights, load, preprocess_from_json
from regraft.network.loaders.module import from_module
from regraft.network.loaders.text import TextPreprocess
from regraft.network.network import About, Network, Traits
from regraft.network.policy import Policy
from regraft.network.preprocess import ArrayPreprocess, ImagePreprocess, Preprocess
from regraft.network.reading import attention_mask
from regraft.network.save import save
from regraft.network.site import Site

__all__ = [
    "About",
    "ArrayPreprocess",
    "Folding",
    "ImagePreprocess",
    "Network",
    "Policy",
    "Preprocess",
    "Site",
    "TextPreprocess",
    "Traits",
    "attention_mask",
    "check_weights",
    "fold",
    "from_module",
    "load",
    "preprocess_from_json",
    "reinitialised",
    "save",
    "settled",
]
