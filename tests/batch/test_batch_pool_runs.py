"""What a run leaves behind, as the pool reads it: the iterations that count, and the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from builder import end, header, iterations, write_lines

from dlbench.records.reader import iterate
from dlbench.slurm.pool_runs import Records
from dlbench.slurm.processes import MARK_VARIABLE

RUNTIME = [[0.3, 0.3], [0.1, 0.1], [0.1, 0.2], [0.1, 0.1]]


def lines_of(warmups: int) -> list[dict[str, Any]]:
    """A run of four iterations, the first of which are warm-ups."""
    lines = iterations(RUNTIME, RUNTIME)
    for index, line in enumerate(lines):
        line["warmup"] = index < warmups
    return [header("r", 2, environment={MARK_VARIABLE: "a-1-f00"}), *lines, end(len(lines))]


def as_recorded(folder: Path, *lines: dict[str, Any]) -> Path:
    """A record of these lines, in the bytes that a run writes."""
    path = write_lines(folder / "r.jsonl", *lines)
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in list(iterate(path))))
    return path


def test_warm_ups_are_no_iterations_of_a_run(tmp_path: Path) -> None:
    as_recorded(tmp_path, *lines_of(warmups=1))
    found = Records(tmp_path).of("a-1-f00")
    assert (found.name, found.iterations) == ("r.jsonl", 3)
    assert found.end is not None
    assert found.end.iterations == 4


def test_a_run_that_has_only_warmed_up_has_no_iteration(tmp_path: Path) -> None:
    as_recorded(tmp_path, *lines_of(warmups=4)[:-1])
    found = Records(tmp_path).of("a-1-f00")
    assert (found.iterations, found.end) == (0, None)


def test_a_line_that_is_cut_is_no_iteration(tmp_path: Path) -> None:
    path = as_recorded(tmp_path, *lines_of(warmups=0)[:-1])
    path.write_bytes(path.read_bytes()[:-1])
    assert Records(tmp_path).of("a-1-f00").iterations == 3


def test_a_run_without_a_record_has_none(tmp_path: Path) -> None:
    assert Records(tmp_path).of("b-1-f00").iterations == 0
