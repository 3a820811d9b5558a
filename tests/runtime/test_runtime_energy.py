"""Energy of iterations: from readings of a meter to the line of the record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dlbench.accelerator.protocol import Reading
from dlbench.records.schema import Energy
from dlbench.runtime.energy import UNTOLD, EnergyReader, EnergyRow, joined_sources
from dlbench.runtime.rows import RowFormat

NAN = math.nan


class ScriptedMeter:
    """Says one reading after the other."""

    def __init__(self, *readings: Reading, source: str = "counter") -> None:
        self.source = source
        self.closed = False
        self._readings = iter(readings)

    def read(self) -> Reading:
        return next(self._readings)

    def close(self) -> None:
        self.closed = True


def reading(joules: float, **changes: float) -> Reading:
    told = {"sm_mhz": 1980.0, "memory_mhz": 2619.0, "power_limit_watts": 700.0, "throttle": 0.0}
    return Reading(joules=joules, **(told | changes))


def rows_of(*readings: Reading, times: Sequence[float] = (10.0, 10.5, 12.0, 12.25)) -> list[EnergyRow]:
    moments = iter(times)
    reader = EnergyReader(ScriptedMeter(*readings), lambda: next(moments))
    reader.begin()
    return [reader.row() for _ in readings[1:]]


def test_each_row_has_the_energy_since_the_one_before() -> None:
    rows = rows_of(reading(1000.0), reading(1150.0), reading(1700.0))
    assert [(row.joules, row.seconds) for row in rows] == [(150.0, 0.5), (550.0, 1.5)]


def test_the_rows_of_a_run_add_up_to_the_counter() -> None:
    rows = rows_of(*map(reading, (3.0, 40.5, 41.0, 99.0)))
    assert sum(row.joules for row in rows) == 96.0
    assert sum(row.seconds for row in rows) == 2.25


def test_a_counter_that_begins_anew_costs_one_interval() -> None:
    lost, next_one = rows_of(reading(1000.0), reading(2.0), reading(152.0))
    assert math.isnan(lost.joules)
    assert math.isnan(lost.seconds)
    assert lost.sm_mhz == 1980.0
    assert (next_one.joules, next_one.seconds) == (150.0, 1.5)


def test_a_counter_that_stands_still_is_no_energy_but_a_number() -> None:
    (row,) = rows_of(reading(5.0), reading(5.0))
    assert (row.joules, row.seconds) == (0.0, 0.5)


def test_a_reading_without_energy_costs_the_intervals_on_both_sides() -> None:
    rows = rows_of(reading(1.0), reading(NAN), reading(3.0), reading(4.0))
    assert [math.isnan(row.joules) for row in rows] == [True, True, False]


@pytest.mark.parametrize(
    ("before", "after", "mask"), [(0x20, 0x4, 0x24), (0x20, NAN, 0x20), (NAN, 0x4, 0x4), (0x1, 0x0, 0x1)]
)
def test_reasons_of_both_borders_hold_for_an_iteration(before: float, after: float, mask: float) -> None:
    (row,) = rows_of(reading(0.0, throttle=before), reading(1.0, throttle=after))
    assert row.throttle == mask


def test_unknown_reasons_stay_unknown() -> None:
    (row,) = rows_of(reading(0.0, throttle=NAN), reading(1.0, throttle=NAN))
    assert math.isnan(row.throttle)


def test_a_rank_without_a_meter_tells_nothing() -> None:
    reader = EnergyReader(None)
    reader.begin()
    assert reader.row() is UNTOLD
    assert reader.source is None
    reader.close()


def test_the_meter_is_closed_with_the_reader() -> None:
    meter = ScriptedMeter()
    EnergyReader(meter).close()
    assert meter.closed


@pytest.mark.parametrize(
    ("sources", "joined"),
    [
        ([None, None], None),
        ([None, "counter"], "counter"),
        (["counter", "counter"], "counter"),
        (["sampled power", "counter", ""], "counter and sampled power"),
        (["", None], ""),
    ],
)
def test_the_sources_of_all_ranks_are_one(sources: list[str | None], joined: str | None) -> None:
    assert joined_sources(sources) == joined


SECONDS = np.array([0.2, 0.0, 0.0, 0.1])
"""compute, overrun, issue, and one communication class."""
FIXED = (10.0, 0.5, 0.0, 0.0)


def test_the_columns_of_energy_are_the_fields_of_the_record() -> None:
    assert EnergyRow._fields == Energy.__struct_fields__


def test_energy_of_all_ranks_becomes_lists_with_null_for_what_is_not_told() -> None:
    rows = RowFormat(["allreduce/world"]).with_energy()
    told = EnergyRow(150.0, 0.5, 1980.0, NAN, 700.0, 36.0)
    line = rows.iteration(
        np.array([rows.pack(FIXED, SECONDS, energy=told), rows.pack(FIXED, SECONDS)]), index=0, warmup=False
    )
    assert line.energy == Energy(
        joules=[150.0, None],
        seconds=[0.5, None],
        sm_mhz=[1980.0, None],
        memory_mhz=[None, None],
        power_limit_watts=[700.0, None],
        throttle=[36, None],
    )
    assert line.energy is not None
    assert isinstance(line.energy.throttle[0], int)
    assert line.communication == {"allreduce/world": [0.1, 0.1]}


def test_without_energy_there_are_neither_columns_nor_fields() -> None:
    rows = RowFormat(["allreduce/world"])
    assert rows.width == len(FIXED) + len(SECONDS)
    line = rows.iteration(np.array([rows.pack(FIXED, SECONDS, energy=UNTOLD)]), index=0, warmup=False)
    assert line.energy is None


def test_ops_follow_the_energy() -> None:
    rows = RowFormat(["allreduce/world"], ops=2).with_energy()
    borders = np.array([[10.0, 10.2], [10.2, 10.5]])
    row: Any = rows.pack(FIXED, SECONDS, borders, EnergyRow(1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
    assert row.tolist() == [*FIXED, *SECONDS, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 10.0, 10.2, 10.2, 10.5]
    np.testing.assert_array_equal(rows.borders(np.array([row])), [borders])
