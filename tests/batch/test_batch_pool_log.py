"""The log of a job pool: every event is there at once, and a cut one is no error."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dlbench.errors import PreflightError, RecordError
from dlbench.slurm.pool_log import (
    Ended,
    Event,
    GivenUp,
    JobTally,
    PoolEnded,
    PoolLog,
    Running,
    Started,
    read_pool_log,
    unended,
)

STARTED = Started(time=10.0, job="a", attempt=1, run="a-1-f00", command=["srun", "-n", "2"])
ENDED = Ended(
    time=12.5, job="a", attempt=1, exit_code=0, status="completed", reason="10 iterations measured", iterations=10
)
POOL_ENDED = PoolEnded(
    time=13.0,
    reason="timeout of 3 s",
    exit_code=0,
    jobs=[JobTally(job="a", starts=1, completed=1, failed=0, iterations=10, given_up="")],
    left=[],
)


def test_an_event_is_read_as_it_was_written_while_the_log_is_open(tmp_path: Path) -> None:
    log = PoolLog(tmp_path / "pool.log")
    events: list[Event] = [STARTED, ENDED, POOL_ENDED]
    for count, event in enumerate(events, start=1):
        log.write(event)
        assert read_pool_log(tmp_path / "pool.log") == events[:count]
    log.close()


def test_a_line_is_json_with_the_kind_of_event_and_the_unix_time(tmp_path: Path) -> None:
    path = tmp_path / "pool.log"
    PoolLog(path).write(Running(time=10.25, job="a", attempt=2))
    assert json.loads(path.read_text()) == {"event": "running", "time": 10.25, "job": "a", "attempt": 2}


def test_an_event_happens_now(tmp_path: Path) -> None:
    first, second = GivenUp(job="a", reason=""), GivenUp(job="a", reason="")
    assert 1.7e9 < first.time <= second.time


def test_a_second_pool_appends(tmp_path: Path) -> None:
    for event in (STARTED, ENDED):
        PoolLog(tmp_path / "pool.log").write(event)
    assert read_pool_log(tmp_path / "pool.log") == [STARTED, ENDED]


def test_two_pools_do_not_run_one_experiment_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "pool.log"
    first = PoolLog(path)
    with pytest.raises(PreflightError, match=f"{path}: another pool runs this experiment; wait for its end"):
        PoolLog(path)
    first.close()
    PoolLog(path).close()


def test_a_pool_that_has_not_begun_has_no_events(tmp_path: Path) -> None:
    assert read_pool_log(tmp_path / "pool.log") == []


def test_a_last_line_that_is_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "pool.log"
    PoolLog(path).write(STARTED)
    with path.open("ab") as file:
        file.write(b'{"event":"ended","ti')
    assert read_pool_log(path) == [STARTED]
    PoolLog(path).write(ENDED)
    assert read_pool_log(path) == [STARTED, ENDED]


def test_runs_without_an_end_are_those_that_may_still_be_there() -> None:
    again = Started(job="a", attempt=2, run="a-2-f00", command=[])
    other = Started(job="b", attempt=1, run="b-1-f00", command=[])
    assert unended([STARTED, other, ENDED, again]) == {"a-2-f00", "b-1-f00"}
    assert unended([STARTED, ENDED, POOL_ENDED]) == set()


@pytest.mark.parametrize(
    "line", ['{"event":"ended"}', "nonsense", '{"event":"began","time":1.0}', '{"event":"\udcff"}']
)
def test_a_line_that_is_no_event_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "pool.log"
    PoolLog(path).write(STARTED)
    with path.open("ab") as file:
        file.write(line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(RecordError, match=re.escape(f"{path}: line 2: no event of a job pool: ")):
        read_pool_log(path)


def test_a_folder_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=f"{tmp_path}: is a directory"):
        read_pool_log(tmp_path)
