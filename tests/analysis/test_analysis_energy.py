"""Energy per configuration, worked out by hand, and who was throttled."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builder import write_run

from dlbench.analysis.energy import ENERGY, energy
from dlbench.analysis.export import document, frames
from dlbench.analysis.load import load
from dlbench.analysis.results import evaluate
from dlbench.records.validator import validate

RUNTIME = [[9.0, 9.0], [2.0, 2.0], [2.0, 2.0], [4.0, 4.0]]
"""A warm-up of 9 s, then iterations of 2, 2 and 4 s."""
JOULES = [[9e3, 9e3], [600.0, 1000.0], [0.0, 0.0], [1600.0, 1600.0]]
"""A counter that did not move in the second measured iteration."""


def write_metered(folder: Path, run_id: str, *, joules: Any = None, throttle: Any = None, **changes: Any) -> Path:
    measured_as = {"warmups": 1, "joules": joules or JOULES, "throttle": throttle}
    return write_run(folder, run_id, RUNTIME, measured_as=measured_as, **({"energy_source": "counter"} | changes))


def rows(folder: Path) -> pd.DataFrame:
    return energy(load([folder]), seed=0)


def test_energy_is_that_of_all_gpus_in_measured_iterations(tmp_path: Path) -> None:
    write_metered(tmp_path, "run")
    (row,) = rows(tmp_path).to_dict("records")
    assert (row["runs"], row["iterations"], row["energy_source"]) == (1, 3, "counter")
    assert row["joules"] == 1600.0  # (1600 + 0 + 3200) / 3
    assert row["samples_per_joule"] == 0.02  # 16 × 2 samples in 1600 J
    assert row["watts"] == 300.0  # 4800 J in 2 × 8 s
    assert all(math.isnan(row[f"{name}_low"]) for name in ("joules", "samples_per_joule", "watts"))


def test_six_iterations_have_intervals_and_the_rate_turns_that_of_the_energy_round(tmp_path: Path) -> None:
    moving = [JOULES[0], [300.0, 500.0], [400.0, 400.0], [1600.0, 1600.0]]
    write_metered(tmp_path, "first", joules=moving)
    write_metered(tmp_path, "second", joules=moving)
    (row,) = rows(tmp_path).to_dict("records")
    assert (row["runs"], row["iterations"], row["joules"]) == (2, 6, 1600.0)  # (800 + 800 + 3200) / 3
    assert row["joules_low"] < 1600 < row["joules_high"]
    assert row["samples_per_joule_low"] == pytest.approx(32 / row["joules_high"])
    assert row["samples_per_joule_high"] == pytest.approx(32 / row["joules_low"])
    assert row["watts_low"] < 300 < row["watts_high"]


def test_energy_that_may_be_nothing_bounds_no_rate(tmp_path: Path) -> None:
    write_metered(tmp_path, "run", joules=[JOULES[0]] + [[0.0, 0.0]] * 2 + [[800.0, 800.0]])
    write_metered(tmp_path, "other", joules=[JOULES[0]] + [[0.0, 0.0]] * 3)
    (row,) = rows(tmp_path).to_dict("records")
    assert row["joules_low"] == 0, "some resamples have no iteration in which the counter moved"
    assert row["samples_per_joule"] == pytest.approx(32 / (1600 / 6))
    assert math.isnan(row["samples_per_joule_low"])
    assert math.isnan(row["samples_per_joule_high"])


def test_counters_are_not_pooled_with_sampled_power(tmp_path: Path) -> None:
    write_metered(tmp_path, "first")
    write_metered(tmp_path, "second", energy_source="sampled power")
    assert rows(tmp_path)["energy_source"].to_list() == ["counter", "sampled power"]


def test_runs_beside_other_jobs_stand_in_rows_of_their_own(tmp_path: Path) -> None:
    write_metered(tmp_path, "alone")
    write_metered(tmp_path, "beside", experiment="e", job="1", concurrent_jobs=2)
    assert rows(tmp_path)["concurrent"].to_list() == [False, True]


def test_an_iteration_in_which_a_gpu_does_not_tell_does_not_count(tmp_path: Path) -> None:
    write_metered(tmp_path, "run", joules=[*JOULES[:3], [1600.0, None]])
    (row,) = rows(tmp_path).to_dict("records")
    assert (row["iterations"], row["joules"], row["watts"]) == (2, 800.0, 200.0)  # 1600 J in 2 × 4 s


def test_counters_that_never_moved_give_no_rate(tmp_path: Path) -> None:
    write_metered(tmp_path, "run", joules=[[0.0, 0.0]] * 4)
    (row,) = rows(tmp_path).to_dict("records")
    assert (row["joules"], row["watts"]) == (0.0, 0.0)
    assert math.isnan(row["samples_per_joule"])


def test_without_energy_there_is_no_table_of_it(tmp_path: Path) -> None:
    write_run(tmp_path, "plain", RUNTIME)
    results = evaluate(load([tmp_path]), seed=0, min_overlap=0.8)
    assert list(results.energy.columns) == list(ENERGY)
    assert "energy" not in results.frames()
    assert "energy" not in [table.layout.name for table in results.tables()]
    assert load([tmp_path]).iterations["joules"].isna().all()


def test_where_a_run_has_energy_it_is_in_every_output(tmp_path: Path) -> None:
    write_metered(tmp_path, "metered")
    write_run(tmp_path, "plain", RUNTIME)
    results = evaluate(load([tmp_path]), seed=0, min_overlap=0.8)
    (shown,) = [table for table in results.tables() if table.layout.name == "energy"]
    texts = {strip.heading: (strip.unit, strip.cells[0].text) for strip in map(shown.strip, shown.measures)}
    assert texts["energy"] == ("J", "1600.0")
    assert texts["efficiency"] == ("samples/J", "0.020000")
    assert texts["per GPU"] == ("W", "300.00")
    assert json.loads(json.dumps(document(results)["energy"]))[0]["joules"] == 1600.0
    assert frames(results)["energy"]["joules"].to_list() == [1600.0]
    assert frames(results)["iterations"]["gpu_seconds"].dropna().to_list() == [18.0, 4.0, 4.0, 8.0]


def test_runs_can_be_chosen_by_where_their_energy_comes_from(tmp_path: Path) -> None:
    write_metered(tmp_path, "metered")
    write_run(tmp_path, "plain", RUNTIME)
    chosen = load([tmp_path]).select(where="energy_source == 'counter'")
    assert chosen.runs["run_id"].to_list() == ["metered"]


def test_throttled_ranks_are_named_in_a_note_without_the_warm_ups(tmp_path: Path) -> None:
    path = write_metered(tmp_path, "hot", throttle=[[0x40, 0x40], [0, 0x20], [0, 0x21], [1, 0]])
    assert load([tmp_path]).notes == [f"{path}: rank 1 (node0) was throttled: SW thermal slowdown in 2 of 3 iterations"]


def test_gpus_that_were_not_throttled_need_no_note(tmp_path: Path) -> None:
    write_metered(tmp_path, "cool")
    assert load([tmp_path]).notes == []


def damaged(path: Path, line: int, **changes: Any) -> Path:
    """Change fields of the header, which is line 0, or of the energy of another line."""
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    (lines[line]["energy"] if line else lines[line]).update(changes)
    path.write_text("".join(json.dumps(content) + "\n" for content in lines))
    return path


def verdicts(path: Path) -> tuple[list[str], list[str]]:
    """Why `analyze` leaves a record out, and what `validate` says of it."""
    reasons = load([path]).excluded["reason"].to_list()
    return reasons, [problem.text for problem in validate(path) if problem.severity == "error"]


@pytest.mark.parametrize(
    ("key", "values", "fault"),
    [
        ("joules", [1.0], "energy.joules is a list of 1, but world_size = 2"),
        ("throttle", [], "energy.throttle is a list of 0, but world_size = 2"),
        ("seconds", [2.0, 0.0], "rank 1: energy.joules = 1000.0 need energy.seconds above 0"),
        ("seconds", [None, 2.0], "rank 0: energy.joules = 600.0 need energy.seconds above 0"),
    ],
)
def test_energy_that_contradicts_itself_excludes_a_run(tmp_path: Path, key: str, values: list[Any], fault: str) -> None:
    path = damaged(write_metered(tmp_path, "damaged"), 2, **{key: values})
    assert verdicts(path) == ([f"iteration 1: {fault}"], [fault])


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        (2, {"joules": [1e308, 1.0]}),
        (2, {"joules": [-1.0, 1.0]}),
        (2, {"seconds": [1.0, 1e10]}),
        (2, {"throttle": [2**70, 0]}),
        (0, {"energy_source": "zzz"}),
    ],
)
def test_energy_that_no_gpu_tells_excludes_a_run(tmp_path: Path, line: int, changes: dict[str, Any]) -> None:
    reasons, faults = verdicts(damaged(write_metered(tmp_path, "damaged"), line, **changes))
    assert len(faults) == 1
    assert reasons == [f"line {line + 1}: {faults[0]}"]


def test_joules_from_nowhere_exclude_a_run(tmp_path: Path) -> None:
    reasons, faults = verdicts(write_metered(tmp_path, "damaged", energy_source=""))
    fault = "energy.joules are there, but the header's energy_source is empty"
    assert reasons == [f"iteration 0: {fault}"]
    assert faults == [fault] * 4, "one an iteration"


def test_gpus_that_are_not_one_a_rank_exclude_a_run(tmp_path: Path) -> None:
    gpu = {"name": "H100", "driver": "12.8", "runtime": "12.6", "cupy": "14.2.0", "memory_bytes": 1}
    path = damaged(write_metered(tmp_path, "damaged"), 0, accelerators=[gpu])
    fault = "accelerators is a list of 1, but world_size = 2"
    assert verdicts(path) == ([fault], [fault])


def test_sound_energy_is_neither_refused_nor_left_out(tmp_path: Path) -> None:
    assert verdicts(write_metered(tmp_path, "sound", joules=[*JOULES[:3], [1600.0, None]])) == ([], [])
