"""Numbers as words, and the geometry of axes."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regraft.app.report import words
from regraft.app.report.scale import Scale, linear_ticks, log_ticks, nice, padded

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=64)


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.912, "91.2 %"),
        (1.0, "100 %"),
        (0.0, "0 %"),
        (0.00001, "< 0.1 %"),
        (0.99999, "> 99.9 %"),
        (0.9994, "99.9 %"),
        (-0.031, "−3.1 %"),
        (1.25, "125.0 %"),
        (None, ""),
    ],
)
def test_percent(value: float | None, shown: str) -> None:
    assert plain(words.percent(value)) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.031, "0.031"),
        (0.4127, "0.413"),
        (1.27, "1.27"),
        (12.44, "12.4"),
        (1234.4, "1,234"),
        (0.00831, "0.0083"),
        (0.000647, "0.00065"),
        (3.1e-05, "3.1 × 10⁻⁵"),
        (1e-09, "10⁻⁹"),
        (-0.25, "−0.250"),
        (250000000.0, "2.5 × 10⁸"),
    ],
)
def test_decimal(value: float, shown: str) -> None:
    assert plain(words.decimal(value)) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 s"),
        (0.0004, "< 1 ms"),
        (0.42, "420 ms"),
        (0.9996, "1.0 s"),
        (3.21, "3.2 s"),
        (9.96, "10 s"),
        (31.2, "31 s"),
        (59.7, "1 min"),
        (125, "2 min 5 s"),
        (3599.6, "1 h"),
        (3840, "1 h 4 min"),
        (-1, "0 s"),
    ],
)
def test_seconds(value: float, shown: str) -> None:
    assert plain(words.seconds(value)) == shown


@pytest.mark.parametrize(
    ("function", "value", "shown"),
    [
        (words.bytes_, 1.31e9, "1.3 GB"),
        (words.bytes_, 999, "999 B"),
        (words.bytes_, 999_700, "1.0 MB"),
        (words.bytes_, 412e6, "412 MB"),
        (words.flops, 5.18e11, "518 GFLOP"),
        (words.flops, 1.55e12, "1.6 TFLOP"),
        (words.passes, 1.0, "1.0 backbone pass"),
        (words.passes, 2.44, "2.4 backbone passes"),
        (words.passes, 0.0, "0 backbone passes"),
        (words.passes, 0.05, "0.05 backbone passes"),
        (words.times, 1.0837, "1.08 ×"),
        (words.times, 42.2, "42.2 ×"),
        (words.count, 2589, "2,589"),
        (words.strength, 1e-3, "10⁻³"),
        (words.strength, 0.1, "0.1"),
        (words.strength, 3.2e-4, "3.2 × 10⁻⁴"),
        (words.strength, 0.0, "0"),
        (words.strength, 10_000.0, "10⁴"),
        (words.trimmed, "25.0 %", "25 %"),
        (words.trimmed, "0.400", "0.4"),
        (words.trimmed, "0.405", "0.405"),
        (words.trimmed, "1,000", "1,000"),
        (words.trimmed, "100 %", "100 %"),
        (words.date, "2026-11-20T10:41:07+00:00", "20 Nov 2026, 10:41 UTC"),
        (words.date, "2026-11-20T10:41:07Z", "20 Nov 2026, 10:41 UTC"),
        (words.date, "yesterday", "yesterday"),
    ],
)
def test_units(function, value: float, shown: str) -> None:
    assert plain(function(value)) == shown


def test_interval() -> None:
    assert words.interval(0.891, 0.929, "percent") == "89.1 to 92.9"
    assert words.interval(0.021, 0.0441, "decimal") == "0.021 to 0.044"
    assert words.interval(None, 0.5, "decimal") == ""


def test_power() -> None:
    assert plain(words.power("3.1", -5)) == "3.1 × 10⁻⁵"
    assert words.power("1", 12) == "10¹²"


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (1.0956, 1.1032, ("1.0956", "1.1032")),
        (0.67, 5.2, ("0.670", "5.20")),
        (-0.001, 1.0, ("−0.0010", "1.00")),
        (3.0, 3.0, ("3.00", "3.00")),
        (1e-5, 1.002e-5, ("1.0000 × 10⁻⁵", "1.0020 × 10⁻⁵")),
        (1234.0, 1234.5, ("1,234.00", "1,234.50")),
    ],
)
def test_two_numbers_are_written_so_that_they_differ(low: float, high: float, shown: tuple[str, str]) -> None:
    assert tuple(map(plain, words.apart(low, high))) == shown


@given(st.floats(1e-3, 1e6), st.floats(1e-6, 10.0))
def test_numbers_that_differ_are_told_apart(low: float, share: float) -> None:
    one, other = words.apart(low, low * (1 + share))
    assert one != other
    assert words.apart(-low * (1 + share), -low)[0].startswith("−")


@given(NUMBERS, NUMBERS)
def test_no_pair_of_numbers_breaks_a_writer(one: float, other: float) -> None:
    assert not any(bad in text.lower() for text in words.apart(one, other) for bad in ("nan", "inf", "e+"))


WRITERS = [words.percent, words.decimal, words.seconds, words.bytes_, words.flops, words.passes]
WRITERS += [words.times, words.strength, words.count]


@given(NUMBERS, st.sampled_from(WRITERS))
@example(999.5, words.strength)
def test_no_number_breaks_a_writer(value: float, write) -> None:
    shown = write(value)
    assert shown
    assert not any(bad in shown.lower() for bad in ("nan", "inf", "none", "e+"))


@given(st.floats(0.001, 0.999))
def test_percent_is_within_its_rounding(value: float) -> None:
    assert float(words.percent(value, unit=False).split("\u00a0")[-1]) == pytest.approx(100 * value, abs=0.0501)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_scale_stays_inside_and_keeps_the_order(a: float, b: float, c: float) -> None:
    low, high = min(a, b), max(a, b)
    scale, flipped = Scale(low, high), Scale(low, high, flip=True)
    assert 0 <= scale(c) <= 100
    assert scale(c) + flipped(c) == pytest.approx(100, abs=0.002)
    assert scale(low) <= scale(high)


def test_scale_ends_and_middle() -> None:
    assert [Scale(2, 4)(v) for v in (1, 2, 3, 4, 5)] == [0, 0, 50, 100, 100]
    assert [Scale(1e-4, 1e4, log=True)(v) for v in (1e-4, 1, 1e4)] == [0, 50, 100]
    assert Scale(3, 3)(3) == 50


@given(NUMBERS.filter(lambda v: abs(v) < 1e12), st.floats(1e-6, 1e12))
def test_linear_ticks_are_round_even_and_inside(low: float, span: float) -> None:
    high = low + span
    if not high - low > abs(low) * 1e-6:
        return
    ticks = linear_ticks(low, high)
    assert 2 <= len(ticks) <= 7
    assert all(low - span * 1e-6 <= t <= high + span * 1e-6 for t in ticks)
    steps = [b - a for a, b in itertools.pairwise(ticks)]
    assert max(steps) == pytest.approx(min(steps), rel=1e-3)


def test_ticks_of_known_ranges() -> None:
    assert linear_ticks(0, 1, 4) == [0, 0.25, 0.5, 0.75, 1]
    assert linear_ticks(-0.1, 0.21, 3) == [0.0, 0.2]
    assert linear_ticks(-0.3, 0.3, 6) == [-0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3]  # 0.3 / 0.1 is below 3
    assert math.copysign(1, linear_ticks(-1, 1, 2)[1]) == 1
    assert linear_ticks(5, 5) == [5]
    assert log_ticks(1e-6, 1e4) == [1e-6, 1e-4, 1e-2, 1.0, 100.0, 1e4]
    assert log_ticks(2e-3, 50) == [0.01, 0.1, 1, 10]
    assert log_ticks(2, 48) == [2, 5, 10, 20]  # one power of ten tells no scale
    assert log_ticks(0.03, 0.3) == [0.05, 0.1, 0.2]
    assert log_ticks(2.1, 4.8) == [3, 4]


@given(st.floats(1e-100, 1e100))
def test_nice_is_the_next_round_number(value: float) -> None:
    found = nice(value)
    assert value * (1 - 1e-9) <= found <= value * 2.5 * (1 + 1e-9)


def test_padded_is_never_empty() -> None:
    assert padded([1, 3]) == pytest.approx((0.88, 3.12))
    for values in ([0.0], [5.0, 5.0], [-2.0]):
        low, high = padded(values)
        assert low < values[0] < high
