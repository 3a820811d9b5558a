"""A record with ops as a trace: what stands where, what belongs together, and what goes wrong."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import UNIX_EPOCH, end, header, iterations, write_lines
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_checker import Event, Trace, checked

from dlbench.analysis.timeline import Shown, ranks_text, write_timeline
from dlbench.errors import OptionError, RecordError

Entry = dict[str, Any]
Times = list[list[tuple[float, float]]]
"""Enter and leave of every op, in milliseconds after the first begin; a list per rank."""

START = 100.0
"""Global time at which the first iteration of every record begins."""
PIPELINE = {"pipeline": {"size": 2, "stride": 1}}


def compute(name: str = "forward", seconds: float = 0.001) -> Entry:
    return {"op": "compute", "name": name, "seconds": seconds}


def send(peer: int, scope: str = "pipeline") -> Entry:
    return {"op": "send", "scope": scope, "name": "out", "elements": 100, "peer": peer}


def receive(peer: int, scope: str = "pipeline") -> Entry:
    return {"op": "recv", "scope": scope, "name": "in", "elements": 100, "peer": peer}


def allreduce(name: str, blocking: bool = True, scope: str = "world") -> Entry:
    return {"op": "allreduce", "scope": scope, "name": name, "elements": 1000, "blocking": blocking}


def wait(*requests: str) -> Entry:
    return {"op": "wait", "requests": list(requests)}


def write_ops(path: Path, arrays: list[Times], start: float = START) -> None:
    """The ops arrays beside a record."""
    longest = max(len(rank) for rank in arrays[0])
    with path.with_suffix(".ops.npy").open("wb") as file:
        for times in arrays:
            array = np.full((len(times), longest, 2), np.nan)
            for rank, ops in enumerate(times):
                if ops:
                    array[rank, : len(ops)] = np.array(ops) * 1e-3 + start
            np.save(file, array)


def recorded(
    folder: Path,
    programs: list[list[Entry]],
    arrays: list[Times],
    *,
    runtime: float = 0.01,
    skew: list[float] | None = None,
    warmups: int = 0,
    **changes: Any,
) -> Path:
    """A record of one program a rank; iteration i begins i × `runtime` after `START`."""
    ranks = len(programs)
    tables = [{"ranks": [rank], "ops": program} for rank, program in enumerate(programs)]
    times = [[runtime] * ranks for _ in arrays]
    lines = iterations(times, [[0.002] * ranks] * len(arrays), start=START, warmups=warmups)
    for line in lines:
        line["start"] = START + line["index"] * runtime
        line["skew"] = skew or [0.0] * ranks
    head = header("run", ranks, **({"op_tables": tables, "groups": PIPELINE} | changes))
    path = write_lines(folder / "run.jsonl", head, *lines, end(len(arrays)))
    write_ops(path, arrays)
    return path


def traced(record: Path, **chosen: Any) -> tuple[Trace, Shown]:
    """The trace of a record, checked, and what was said of it."""
    output = record.with_name("trace.json")
    shown = write_timeline(record, output, **chosen)
    return checked(output), shown


def span(event: Event) -> tuple[str, float, float]:
    """Name, begin and duration in microseconds."""
    return event["name"], event["ts"], event["dur"]


ONE_OP = [[compute()], [compute()]]
ONE_TIME: Times = [[(1, 2)], [(1.5, 2)]]


# Bars


def test_an_op_is_a_bar_in_its_iteration_on_the_track_of_its_rank(tmp_path: Path) -> None:
    trace, _ = traced(recorded(tmp_path, ONE_OP, [[[(1, 2.000001)], [(1.5, 2)]]]))
    assert [span(event) for event in trace.slices(rank=0)] == [("iteration 0", 0, 10000), ("forward", 1000, 1000.001)]
    assert [span(event) for event in trace.slices(rank=1)] == [("iteration 0", 0, 10000), ("forward", 1500, 500)]


def test_time_zero_is_the_first_begin_of_what_is_shown(tmp_path: Path) -> None:
    later: Times = [[(12, 13)], [(12.5, 13)]]
    record = recorded(tmp_path, ONE_OP, [ONE_TIME, later], skew=[0.0005, 0.001])
    trace, _ = traced(record, iterations=(1, 1), ranks=[range(1, 2)])
    # Iteration 1 begins 10 ms after the first, rank 1 joins 1 ms later.
    assert [span(event) for event in trace.slices()] == [("iteration 1", 0, 10000), ("forward", 1500, 500)]
    assert trace.other["unix_seconds_at_zero"] == pytest.approx(UNIX_EPOCH + START + 0.011, abs=1e-6)


def test_a_communication_bears_its_class_its_size_and_its_group(tmp_path: Path) -> None:
    groups = {"replica": {"size": 2, "stride": 2}}
    record = recorded(tmp_path, [[allreduce("g[3]", scope="replica")]] * 4, [[[(1, 2)]] * 4], groups=groups)
    trace, _ = traced(record)
    (bar,) = trace.ops(rank=3)
    assert (bar["name"], bar["cat"]) == ("all-reduce replica g[3]", "allreduce/replica")
    assert bar["args"] == {
        "iteration": 0,
        "op": 0,
        "elements": 1000,
        "bytes": 2000,  # bf16
        "blocking": True,
        "ranks": "1-3:2",
        "group_size": 2,
    }


@pytest.mark.parametrize(
    ("operation", "name"),
    [("allgather", "all-gather"), ("reduce_scatter", "reduce-scatter"), ("alltoall", "all-to-all")],
)
def test_operations_have_the_names_of_the_field(tmp_path: Path, operation: str, name: str) -> None:
    entry = allreduce("x") | {"op": operation}
    trace, _ = traced(recorded(tmp_path, [[entry]], [[[(1, 2)]]], groups={"world": {"size": 1, "stride": 1}}))
    assert [event["name"] for event in trace.ops()] == [f"{name} world x"]


def test_compute_bears_its_roofline_seconds(tmp_path: Path) -> None:
    trace, _ = traced(recorded(tmp_path, [[compute("mlp", 0.25)], [compute()]], [ONE_TIME]))
    (bar,) = trace.ops(rank=0)
    assert (bar["name"], bar["cat"]) == ("mlp", "compute")
    assert bar["args"] == {"iteration": 0, "op": 0, "roofline_seconds": 0.25}


def test_a_start_and_a_wait_are_told_from_a_blocking_communication_of_their_class(tmp_path: Path) -> None:
    program = [allreduce("a", blocking=False), allreduce("b", blocking=False), wait("a", "b")]
    trace, _ = traced(recorded(tmp_path, [program], [[[(1, 2), (2, 3), (3, 4)]]]))
    assert [(event["name"], event["cat"]) for event in trace.ops()] == [
        ("start all-reduce world a", "issue,allreduce/world"),
        ("start all-reduce world b", "issue,allreduce/world"),
        ("wait a … b", "wait,allreduce/world"),
    ]
    assert trace.ops()[-1]["args"] == {"iteration": 0, "op": 2, "requests": ["a", "b"]}


def test_an_iteration_bears_its_times_and_says_whether_it_is_a_warm_up(tmp_path: Path) -> None:
    later: Times = [[(11, 12)], [(11, 12)]]
    trace, _ = traced(recorded(tmp_path, ONE_OP, [ONE_TIME, later], warmups=1))
    bands = trace.slices(rank=0, cat="iteration")
    assert [span(band) for band in bands] == [("warm-up 0", 0, 10000), ("iteration 1", 10000, 10000)]
    assert bands[0]["args"] == {
        "iteration": 0,
        "warmup": True,
        "runtime_seconds": 0.01,
        "sync_time_seconds": 0.002,
        "compute_seconds": 0,
        "overrun_seconds": 0,
        "issue_seconds": 0,
        "clock_error_seconds": 0,
    }


def test_a_rank_whose_program_is_shorter_shows_its_own_ops_only(tmp_path: Path) -> None:
    trace, shown = traced(recorded(tmp_path, [[compute(), compute()], [compute()]], [[[(1, 2), (2, 3)], [(1, 2)]]]))
    assert [len(trace.ops(rank)) for rank in (0, 1)] == [2, 1]
    assert shown.ops == 3


def test_an_op_lasts_a_nanosecond_at_least(tmp_path: Path) -> None:
    trace, shown = traced(recorded(tmp_path, [[allreduce("a"), compute()]], [[[(1, 1), (1, 2)]]]))
    assert [span(event)[1:] for event in trace.ops()] == [(1000, 0.001), (1000.001, 999.999)]
    assert shown.notes == []


# Tracks


def test_a_process_is_a_host_and_a_thread_a_rank(tmp_path: Path) -> None:
    record = recorded(tmp_path, [[compute()]] * 4, [[[(1, 2)]] * 4], hosts=["b", "a", "b", "a"])
    trace, _ = traced(record)
    # Processes come in the order of their first ranks, and after all ranks: 4 and 5.
    assert trace.names("process_name") == {(4, 0): "b", (5, 1): "a"}
    assert trace.names("process_sort_index") == {(4, 0): 4, (5, 1): 5}
    assert trace.names("thread_name") == {(4, 0): "rank 0", (5, 1): "rank 1", (4, 2): "rank 2", (5, 3): "rank 3"}
    assert trace.names("thread_sort_index") == {(4, 0): 0, (5, 1): 1, (4, 2): 2, (5, 3): 3}


def test_only_the_chosen_ranks_are_shown_each_once(tmp_path: Path) -> None:
    record = recorded(tmp_path, [[compute()]] * 5, [[[(1, 2)]] * 5])
    trace, shown = traced(record, ranks=[range(4, 5), range(0, 3, 2), range(2, 3)])
    assert shown.ranks == [0, 2, 4]
    assert [event["tid"] for event in trace.ops()] == [0, 2, 4]


def test_the_trace_says_which_run_it_shows(tmp_path: Path) -> None:
    trace, _ = traced(recorded(tmp_path, ONE_OP, [ONE_TIME], scale=0.5, simulated=True))
    assert trace.other == {
        "run_id": "run",
        "created": "2026-01-02T03:04:05Z",
        "strategy": "dp",
        "model": "vit-h",
        "system": "leonardo",
        "world_size": 2,
        "simulated": True,
        "scale": 0.5,
        "time_scale": 1.0,
        "unix_seconds_at_zero": UNIX_EPOCH + START,
        "clock_error_seconds": 0,
        "notes": [],
    }


# Arrows


def test_an_arrow_leads_from_a_send_to_the_receive_of_its_message(tmp_path: Path) -> None:
    trace, shown = traced(recorded(tmp_path, [[send(peer=1)], [receive(peer=0)]], [[[(1, 4)], [(2, 4)]]]))
    ((start, arrival),) = trace.arrows("message")
    assert span(start) == ("send pipeline out", 1000, 3000)
    assert span(arrival) == ("receive pipeline in", 2000, 2000)
    assert (start["args"]["peer"], arrival["args"]["peer"]) == (1, 0)
    assert (shown.messages, shown.requests) == (1, 0)


def test_a_receive_that_waited_for_its_sender_shows_the_transfer_apart(tmp_path: Path) -> None:
    trace, _ = traced(recorded(tmp_path, [[send(peer=1)], [receive(peer=0)]], [[[(3, 4)], [(1, 5)]]]))
    ((start, arrival),) = trace.arrows("message")
    assert span(start) == ("send pipeline out", 3000, 1000)
    # It begins with the send, and a nanosecond later, as viewers want the end of an arrow.
    assert span(arrival) == ("transfer", 3000.001, 1999.999)
    assert arrival["args"] == {"late_sender_seconds": pytest.approx(0.002, abs=2e-9)}
    assert [span(event) for event in trace.ops(rank=1)] == [("receive pipeline in", 1000, 4000)]


def test_the_kth_send_is_received_by_the_kth_receive_of_the_same_pair_and_scope(tmp_path: Path) -> None:
    groups = {"pipeline": {"size": 3, "stride": 1}, "replica": {"size": 3, "stride": 1}}
    sender = [send(2), send(1), send(2, "replica"), send(2)]
    first = [receive(0)]
    second = [receive(0, "replica"), receive(0), receive(0)]
    times: Times = [
        [(1, 1.1), (2, 2.1), (3, 3.1), (4, 4.1)],
        [(5, 6)],
        [(5, 6), (6, 7), (7, 8)],
    ]
    trace, _ = traced(recorded(tmp_path, [sender, first, second], [times], groups=groups))
    routes = {
        (start["args"]["op"], arrival["tid"], arrival["args"]["op"]) for start, arrival in trace.arrows("message")
    }
    assert routes == {(0, 2, 1), (1, 1, 0), (2, 2, 0), (3, 2, 2)}


def test_peers_are_numbers_in_the_group(tmp_path: Path) -> None:
    groups = {"pipeline": {"size": 2, "stride": 2}}
    programs = [[send(1)], [send(1)], [receive(0)], [receive(0)]]
    trace, _ = traced(recorded(tmp_path, programs, [[[(1, 2)], [(1, 2)], [(1, 2)], [(1, 2)]]], groups=groups))
    assert {(start["tid"], arrival["tid"]) for start, arrival in trace.arrows("message")} == {(0, 2), (1, 3)}


def test_an_arrow_leads_from_a_start_to_the_wait_that_completes_it(tmp_path: Path) -> None:
    """A slot that is used again is waited for twice."""
    start = allreduce("slot[0]", blocking=False)
    program = [start, allreduce("slot[1]", blocking=False), wait("slot[0]"), start, wait("slot[1]", "slot[0]")]
    times: Times = [[(1, 2), (2, 3), (3, 4), (4, 5), (5, 6)]]
    trace, shown = traced(recorded(tmp_path, [program], [times]))
    ends = {(begin["args"]["op"], wait["args"]["op"]) for begin, wait in trace.arrows("request")}
    assert ends == {(0, 2), (1, 4), (3, 4)}
    assert (shown.messages, shown.requests) == (0, 3)


def test_every_iteration_has_its_own_arrows(tmp_path: Path) -> None:
    arrays: list[Times] = [[[(1, 4)], [(2, 4)]], [[(11, 14)], [(12, 14)]]]
    trace, shown = traced(recorded(tmp_path, [[send(1)], [receive(0)]], arrays))
    pairs = [(start["args"]["iteration"], arrival["args"]["iteration"]) for start, arrival in trace.arrows("message")]
    assert pairs == [(0, 0), (1, 1)]
    assert shown.messages == 2


def test_a_message_to_a_rank_that_is_not_shown_has_no_arrow(tmp_path: Path) -> None:
    record = recorded(tmp_path, [[send(1)], [receive(0)]], [[[(1, 4)], [(2, 4)]]])
    trace, shown = traced(record, ranks=[range(0, 1)])
    assert (trace.arrows("message"), shown.messages) == ([], 0)


def test_without_groups_there_are_no_arrows_between_ranks_and_that_is_said(tmp_path: Path) -> None:
    record = recorded(tmp_path, [[send(1)], [receive(0)]], [[[(1, 4)], [(2, 4)]]], groups={})
    trace, shown = traced(record)
    assert trace.arrows("message") == []
    assert shown.notes == ["the record does not say who is in a group: no arrows between ranks"]


# Clocks


def test_the_error_of_the_clocks_stands_at_each_iteration_and_in_the_trace(tmp_path: Path) -> None:
    zeros = [0.0, 0.0]
    first = {"reference": START, "offset": zeros, "drift": zeros, "unix_epoch": 0.0}
    first |= {"uncertainty": [0.0, 3e-6], "drift_uncertainty": zeros}
    second = first | {"uncertainty": [0.0, 1e-6]}
    record = recorded(tmp_path, ONE_OP, [ONE_TIME, [[(11, 12)], [(11, 12)]]], clock=first)
    head, warm, counted, last = map(json.loads, record.read_text().splitlines())
    write_lines(record, head, warm, {"kind": "clock", "index": 1, "model": second}, counted, last)
    trace, shown = traced(record)
    bands = trace.slices(rank=1, cat="iteration")
    assert [band["args"]["clock_error_seconds"] for band in bands] == [3e-6, 1e-6]
    assert trace.other["clock_error_seconds"] == shown.clock_error_seconds == 3e-6


def test_messages_that_arrive_before_they_were_sent_are_counted(tmp_path: Path) -> None:
    """Rank 1's clock is behind: its receive seems to end when the send begins."""
    trace, shown = traced(recorded(tmp_path, [[send(1)], [receive(0)]], [[[(3, 4)], [(1, 3)]]]), ranks=())
    assert shown.notes == ["messages that arrived before they were sent, by the error of the clocks: 1"]
    assert trace.other["notes"] == shown.notes
    assert shown.messages == 1


def test_ops_that_overlap_after_a_correction_of_the_clock_are_shown_one_after_the_other(tmp_path: Path) -> None:
    late: Times = [[(9.5, 12)], [(11, 12)]]
    trace, shown = traced(recorded(tmp_path, ONE_OP, [ONE_TIME, late]))
    assert [span(event)[1:] for event in trace.ops(rank=0)] == [(1000, 1000), (10000, 2000)]
    assert shown.notes == ["ops of a rank overlapped and were moved by up to 500.0 µs"]


def test_an_iteration_begins_after_the_one_before_it_also_where_the_clock_was_set_back(tmp_path: Path) -> None:
    record = recorded(tmp_path, ONE_OP, [ONE_TIME, [[(11, 12)], [(11, 12)]]])
    head, first, second, last = map(json.loads, record.read_text().splitlines())
    write_lines(record, head, first, second | {"start": START + 0.009}, last)
    trace, shown = traced(record)
    assert [span(band)[1:] for band in trace.slices(rank=0, cat="iteration")] == [(0, 10000), (10000, 9000)]
    assert shown.notes == ["ops of a rank overlapped and were moved by up to 1.000 ms"]


# What is missing or wrong


def test_the_ops_of_a_killed_run_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    record = recorded(tmp_path, ONE_OP, [ONE_TIME, [[(11, 12)], [(11, 12)]], [[(21, 22)], [(21, 22)]]])
    arrays = record.with_suffix(".ops.npy")
    arrays.write_bytes(arrays.read_bytes()[:-100])
    trace, shown = traced(record)
    assert shown.iterations == range(2)
    assert shown.notes == [
        "array 2 is cut and was dropped: the run was killed while it was written",
        "2 arrays for 3 iterations: the last iterations have none",
    ]
    assert trace.other["notes"] == shown.notes
    assert len(trace.ops()) == 4
    with pytest.raises(OptionError, match=r"^iteration 2 is not in .*run\.ops\.npy; it holds 0 to 1$"):
        write_timeline(record, tmp_path / "trace.json", iterations=(1, 2))


def test_a_run_killed_in_its_first_iteration_has_nothing_to_show(tmp_path: Path) -> None:
    record = recorded(tmp_path, ONE_OP, [ONE_TIME])
    record.with_suffix(".ops.npy").write_bytes(b"")
    assert refused(record) == f"{tmp_path}/run.ops.npy: holds no whole array: the run was killed in its first iteration"


def refused(record: Path, **chosen: Any) -> str:
    """The one line with which a record is refused; no trace is left behind."""
    before = set(record.parent.iterdir())
    with pytest.raises((RecordError, OptionError)) as caught:
        write_timeline(record, record.with_name("trace.json"), **chosen)
    assert set(record.parent.iterdir()) == before
    return str(caught.value)


def test_a_run_without_ops_is_refused(tmp_path: Path) -> None:
    record = write_lines(tmp_path / "run.jsonl", header("run", 2), *iterations([[1, 1]], [[0, 0]]), end(1))
    assert refused(record) == f"{record}: the run recorded no ops; record them with --record-ops"


def test_a_rank_that_the_run_does_not_have_is_refused(tmp_path: Path) -> None:
    record = recorded(tmp_path, ONE_OP, [ONE_TIME])
    assert refused(record, ranks=[range(0, 9)]) == "rank 8 is not in the run; it has ranks 0 to 1"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"hosts": ["a"]}, "hosts is a list of 1, but world_size = 2"),
        ({"dtype": "int4"}, "dtype 'int4' is unknown; use fp64, fp32, bf16, fp16, fp8"),
        ({"op_tables": [{"ranks": [0, 0], "ops": [compute()]}]}, "op_tables must name each of the 2 ranks once"),
        ({"op_tables": [{"ranks": [0], "ops": [compute()]}]}, "op_tables must name each of the 2 ranks once"),
    ],
)
def test_a_damaged_header_is_refused(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    record = recorded(tmp_path, ONE_OP, [ONE_TIME], **changes)
    assert refused(record) == f"{record}: {complaint}"


@pytest.mark.parametrize("key", ["skew", "runtime", "sync_time", "compute", "overrun", "issue"])
def test_a_damaged_iteration_is_refused(tmp_path: Path, key: str) -> None:
    record = recorded(tmp_path, ONE_OP, [ONE_TIME])
    head, line, last = map(json.loads, record.read_text().splitlines())
    write_lines(record, head, line | {key: [0.5]}, last)
    assert refused(record) == f"{record}: {key} is a list of 1, but world_size = 2"


@pytest.mark.parametrize("key", ["offset", "drift", "uncertainty", "drift_uncertainty"])
def test_a_damaged_clock_is_refused(tmp_path: Path, key: str) -> None:
    record = recorded(tmp_path, ONE_OP, [ONE_TIME])
    head, *lines = map(json.loads, record.read_text().splitlines())
    head["clock"][key] = [0.0]
    write_lines(record, head, *lines)
    assert refused(record) == f"{record}: {key} is a list of 1, but world_size = 2"


@pytest.mark.parametrize("moment", [np.nan, 1e13, -1e13])
def test_times_that_cannot_be_are_refused(tmp_path: Path, moment: float) -> None:
    record = recorded(tmp_path, ONE_OP, [[[(1, 2)], [(1, moment)]]])
    expected = "iteration 0: the ops of rank 1 have no times, or times months from the others'"
    assert refused(record) == f"{record}: {expected}"


@pytest.mark.parametrize("name", ["run.jsonl", "run.ops.npy"])
def test_the_record_itself_is_never_overwritten(tmp_path: Path, name: str) -> None:
    record = recorded(tmp_path, ONE_OP, [ONE_TIME])
    (tmp_path / "link.json").symlink_to(tmp_path / name)
    for output in (tmp_path / name, tmp_path / "link.json"):
        with pytest.raises(OptionError, match="belongs to the record; name another file for the trace$"):
            write_timeline(record, output)
    assert len(traced(record)[0].ops()) == 2


def test_a_trace_that_was_there_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    record = recorded(tmp_path, ONE_OP, [ONE_TIME, [[(11, 12)], [(11, np.nan)]]])
    (tmp_path / "trace.json").write_text("old")
    refused(record)
    assert (tmp_path / "trace.json").read_text() == "old"
    write_timeline(record, tmp_path / "trace.json", iterations=(0, 0))
    assert len(checked(tmp_path / "trace.json").ops()) == 2


@pytest.mark.parametrize(
    ("output", "reason"), [("none/trace.json", "No such file or directory"), ("run.jsonl/t.json", "Not a directory")]
)
def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, output: str, reason: str) -> None:
    record = recorded(tmp_path, ONE_OP, [ONE_TIME])
    with pytest.raises(OptionError) as caught:
        write_timeline(record, tmp_path / output)
    assert str(caught.value) == f"{tmp_path / output} cannot be written: {reason}"


def test_a_compressed_trace_holds_the_same_and_is_the_same_each_time(tmp_path: Path) -> None:
    record = recorded(tmp_path, ONE_OP, [ONE_TIME])
    for name in ("trace.json", "a.json.gz", "b.json.gz"):
        write_timeline(record, tmp_path / name)
    assert checked(tmp_path / "a.json.gz") == checked(tmp_path / "trace.json")
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def peak_bytes(folder: Path, count: int) -> int:
    folder.mkdir()
    arrays: list[Times] = [[[(10 * index + 1, 10 * index + 2)]] * 2 for index in range(count)]
    record = recorded(folder, ONE_OP, arrays)
    tracemalloc.start()
    write_timeline(record, folder / "trace.json")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_memory_does_not_grow_with_the_iterations(tmp_path: Path) -> None:
    peak_bytes(tmp_path / "warm", 2)  # what is imported and cached on first use
    assert peak_bytes(tmp_path / "many", 500) < peak_bytes(tmp_path / "few", 20) + 20_000


@pytest.mark.parametrize(
    ("ranks", "text"),
    [(range(5, 6), "5"), (range(0, 8), "0-7"), (range(0, 64, 8), "0-56:8"), (range(1, 4, 2), "1-3:2")],
)
def test_ranks_are_written_as_they_are_asked_for(ranks: range, text: str) -> None:
    assert ranks_text(ranks) == text


# Any run


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[list[Entry]], list[Times]]:
    """Programs of a pipeline in which every send has its receive, and times that know no order between ranks."""
    ranks = draw(st.integers(1, 4))
    programs: list[list[Entry]] = [[] for _ in range(ranks)]
    for number in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["compute", "message", "blocking", "request"]))
        rank = draw(st.integers(0, ranks - 1))
        if kind == "message":
            peer = draw(st.integers(0, ranks - 1))
            programs[rank].append(send(peer))
            programs[peer].append(receive(rank))
        elif kind == "compute":
            programs[rank].append(compute())
        else:
            programs[rank].append(allreduce(f"b{number}", blocking=kind == "blocking"))
    for program in programs:
        program.append(wait(*(entry["name"] for entry in program if not entry.get("blocking", True))))
    moments = st.integers(0, 10_000_000).map(lambda nanoseconds: nanoseconds / 1e6)
    arrays = []
    for _ in range(draw(st.integers(1, 3))):
        borders = [sorted(draw(st.lists(moments, min_size=2 * len(p), max_size=2 * len(p)))) for p in programs]
        arrays.append([list(zip(rank[0::2], rank[1::2], strict=True)) for rank in borders])
    return programs, arrays


@settings(max_examples=60, deadline=None)
@given(runs())
def test_every_trace_keeps_the_rules_and_shows_every_op(
    tmp_path_factory: pytest.TempPathFactory, run: tuple[list[list[Entry]], list[Times]]
) -> None:
    programs, arrays = run
    groups = {"pipeline": {"size": len(programs), "stride": 1}}
    trace, shown = traced(recorded(tmp_path_factory.mktemp("run"), programs, arrays, groups=groups))
    entries = [entry for program in programs for entry in program]
    assert len(trace.ops()) == shown.ops == len(entries) * len(arrays)
    assert shown.messages == sum(entry["op"] == "send" for entry in entries) * len(arrays)
    assert shown.requests == sum(not entry.get("blocking", True) for entry in entries) * len(arrays)
    assert len(trace.slices(cat="iteration")) == len(programs) * len(arrays)


@settings(max_examples=30, deadline=None)
@given(runs())
def test_the_time_of_an_op_is_that_of_the_record_where_nothing_overlaps(
    tmp_path_factory: pytest.TempPathFactory, run: tuple[list[list[Entry]], list[Times]]
) -> None:
    programs, arrays = run
    trace, _ = traced(recorded(tmp_path_factory.mktemp("run"), programs, arrays[:1]))
    for rank, times in enumerate(arrays[0]):
        for event, (enter, leave) in zip(trace.ops(rank), times, strict=True):
            # Ops without length push those behind them by a nanosecond each.
            assert event["ts"] == pytest.approx(enter * 1e3, abs=0.001 * (len(times) + 1))
            assert event["ts"] + event["dur"] == pytest.approx(leave * 1e3, abs=0.001 * (len(times) + 1))
