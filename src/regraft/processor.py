"""Vectors that the libraries beneath leave unused: AVX-512 on processors of AMD.

There the MKL in torch keeps to AVX2, and so does OpenBLAS on a family that is newer than it (Zen 5, for the one in
NumPy 2.4): half the products a second, in each.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

__all__ = ["avx512_of_amd", "choose_kernels"]

_NEEDED = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})
_VARIABLE = "OPENBLAS_CORETYPE"


@cache
def avx512_of_amd(path: str = "/proc/cpuinfo") -> bool:
    """Whether the first processor that Linux lists is AMD's and has AVX-512; False where there is no such list."""
    try:
        with Path(path).open(encoding="utf-8") as lines:
            first: dict[str, str] = {}
            for line in lines:
                key, _, value = line.partition(":")
                if not value:
                    break
                first[key.strip()] = value
    except (OSError, UnicodeDecodeError):
        return False
    return first.get("vendor_id", "").strip() == "AuthenticAMD" and set(first.get("flags", "").split()) >= _NEEDED


def choose_kernels() -> None:
    """Have OpenBLAS use AVX-512 where it would not, for this process and what it starts.

    OpenBLAS reads the environment variable OPENBLAS_CORETYPE as it is loaded: what is set stays, and once NumPy is
    imported nothing is done. Its kernels of SkylakeX use no more than the instructions that are asked for here.
    """
    if _VARIABLE not in os.environ and "numpy" not in sys.modules and avx512_of_amd():
        os.environ[_VARIABLE] = "SkylakeX"
