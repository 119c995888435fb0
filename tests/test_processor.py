"""Which kernels OpenBLAS is told to take, and when."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from regraft.processor import avx512_of_amd

ALL = "fpu sse2 avx2 avx512f avx512dq avx512cd avx512bw avx512vl"


def listed(folder: Path, vendor: str, flags: str, second: str = "") -> str:
    file = folder / "cpuinfo"
    one = f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: {flags}\npower management:\n\n"
    file.write_text(one + second, encoding="utf-8")
    return str(file)


@pytest.mark.parametrize(
    ("vendor", "flags", "expected"),
    [
        ("AuthenticAMD", ALL, True),
        ("GenuineIntel", ALL, False),
        ("AuthenticAMD", ALL.replace("avx512vl", ""), False),
        ("AuthenticAMD", ALL.replace("avx512f ", "avx512foo "), False),
        ("AuthenticAMD", "", False),
    ],
)
def test_amd_and_every_part_of_avx512_are_asked_for(tmp_path: Path, vendor: str, flags: str, expected: bool) -> None:
    assert avx512_of_amd(listed(tmp_path, vendor, flags)) is expected


def test_only_the_first_processor_is_read_and_no_list_is_no_avx512(tmp_path: Path) -> None:
    second = f"processor\t: 1\nvendor_id\t: AuthenticAMD\nflags\t: {ALL}\n"
    assert not avx512_of_amd(listed(tmp_path, "GenuineIntel", ALL, second))
    assert not avx512_of_amd(str(tmp_path / "absent"))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    assert not avx512_of_amd(str(tmp_path / "bytes"))


def after(code: str, **variables: str) -> object:
    """What ``code`` prints as JSON in a process of its own, where no kernels are chosen yet."""
    kept = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    found = subprocess.run(
        [sys.executable, "-c", f"import json, os, sys\n{code}"],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(found.stdout)


SHOW = "print(json.dumps(os.environ.get('OPENBLAS_CORETYPE')))"
CORES = (
    "import numpy, threadpoolctl\n"
    "print(json.dumps([i['architecture'] for i in threadpoolctl.threadpool_info() if i['internal_api'] == 'openblas']))"
)


def test_what_is_set_stays_and_numpy_that_is_loaded_is_left_alone() -> None:
    assert after(f"import regraft\n{SHOW}", OPENBLAS_CORETYPE="Haswell") == "Haswell"
    assert after(f"import numpy, regraft\n{SHOW}") is None


@pytest.mark.skipif(not avx512_of_amd(), reason="this processor is not AMD's with AVX-512")
def test_openblas_takes_avx512_where_regraft_comes_first() -> None:
    cores = after(f"import regraft\n{CORES}")
    assert cores
    assert set(cores) == {"SkylakeX"}


@pytest.mark.skipif(avx512_of_amd(), reason="this processor is AMD's with AVX-512")
def test_other_processors_choose_for_themselves() -> None:
    assert after(f"import regraft\n{SHOW}") is None
