"""Quantities as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.quantities import counted, duration, si, significant


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "B", "0 B"),
        (7, "B", "7 B"),
        (999, "B", "999 B"),
        (1000, "B", "1.000 kB"),
        (33_554_432, "B", "33.55 MB"),
        (125_472_832, "B", "125.5 MB"),
        (2_007_565_312, "B", "2.008 GB"),
        (999_999, "B", "1.000 MB"),
        (2.25e15, "FLOP/s", "2.250 PFLOP/s"),
        (8e12, "B/s", "8.000 TB/s"),
        (5.5, "B", "5.500 B"),
        (12_345, "", "12.35 k"),
    ],
)
def test_a_value_has_four_digits_and_a_prefix(value: float, unit: str, text: str) -> None:
    assert si(value, unit) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (12.5, "12.50 s"),
        (1.0, "1.000 s"),
        (0.9382499, "938.2 ms"),
        (95.06e-6, "95.06 µs"),
        (3.2e-9, "3.200 ns"),
        (4e-12, "0.004 ns"),
    ],
)
def test_a_duration_has_the_prefix_that_suits_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_significant_digits_never_become_an_exponent() -> None:
    assert [significant(value) for value in (0.5, 33.554, 17953.2, 1e9)] == ["0.500", "33.55", "17953", "1000000000"]


def test_a_value_that_rounds_up_to_the_next_digit_has_no_digit_more() -> None:
    assert [significant(9.99996), significant(99.996), si(9_999_960, "B")] == ["10.00", "100.0", "10.00 MB"]


def test_small_values_keep_their_digits_where_that_is_asked_for() -> None:
    assert significant(0.00512346) == "0.005"
    assert significant(0.00512346, digits=5, smallest=-5) == "0.0051235"
    assert significant(0.0, digits=5, smallest=-5) == "0.0000"


@given(st.floats(1, 9.99e20))
def test_a_value_keeps_its_size_to_a_thousandth(value: float) -> None:
    number, _, prefix = si(value, "").partition(" ")
    factor = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}[prefix]
    assert float(number) * factor == pytest.approx(value, rel=1e-3)
    assert len(number.replace(".", "")) <= 4


def test_one_thing_is_no_plural() -> None:
    assert [counted(number, "job") for number in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]
