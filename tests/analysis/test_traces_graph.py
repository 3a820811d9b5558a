"""The dependency graph of a trace: exclusive slices, nodes in an order without circles, and who waited for what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import shared_file

from dlbench.analysis.traces.communication import Codes
from dlbench.analysis.traces.dependencies import critical_parents
from dlbench.analysis.traces.events import Events, events
from dlbench.analysis.traces.graph import Graph
from dlbench.analysis.traces.nodes import nodes_of
from dlbench.analysis.traces.slices import exclusive_slices

BASE = 1_000_000
"""Microseconds at which everything begins: 0 stands for an unknown time."""


def event(name: str, start: int, dur: int, tid: int = 1, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    """A slice of a CPU thread, times in microseconds."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": BASE + start, "dur": dur, "args": args}


def kernel(name: str, start: int, dur: int, stream: int = 7, cat: str = "kernel", **args: Any) -> dict[str, Any]:
    return event(name, start, dur, stream, cat, **args) | {"pid": 0}


def call(name: str, start: int, dur: int, correlation: int, tid: int = 1) -> dict[str, Any]:
    return event(name, start, dur, tid, "cuda_runtime", correlation=correlation)


def read(folder: Path, *written: dict[str, Any]) -> Events:
    path = folder / "rank0.json"
    path.write_text(json.dumps({"traceEvents": list(written)}))
    return events(path)


def way(folder: Path, *written: dict[str, Any]) -> list[str]:
    """Names on the critical path to the last event that is written, from there on back."""
    found = read(folder, *written)
    nodes = nodes_of(found)
    parents = critical_parents(found, nodes).parent
    last = written[-1]
    rows = np.flatnonzero(found.start == (last["ts"]) * 1000)
    row = next(row for row in rows.tolist() if found.names[found.name[row]] == last["name"])
    node, names = int(nodes.of_row[row]), []
    while node != -1:
        names.append(found.names[found.name[nodes.row[node]]])
        node = int(parents[node])
    return names


def test_nested_events_are_cut_into_slices_that_exclude_each_other() -> None:
    # a [0, 10] holds b [2, 5], which holds c [3, 4], and d without length at 7.
    start = np.array([0, 2, 3, 7])
    end = np.array([10, 5, 4, 7])
    found = exclusive_slices(np.arange(4), np.zeros(4, dtype=np.int32), start, end)
    assert list(zip(found.row.tolist(), found.start.tolist(), found.end.tolist(), strict=True)) == [
        *((0, 0, 2), (1, 2, 3), (2, 3, 4), (1, 4, 5)),
        *((0, 5, 7), (3, 7, 7), (0, 7, 10)),
    ]
    assert found.first.tolist() == [True, True, True, False, False, True, False]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), min_size=0, max_size=25))
def test_slices_cover_what_events_cover_and_no_moment_twice(drawn: list[tuple[int, int, int]]) -> None:
    drawn.sort(key=lambda each: (each[1], -each[2]))
    thread, start, length = (np.array([each[place] for each in drawn], dtype=np.int64) for place in range(3))
    found = exclusive_slices(np.arange(len(drawn)), thread.astype(np.int32), start, start + length)
    assert sorted(found.row[found.first].tolist()) == list(range(len(drawn)))
    assert (found.end >= found.start).all()
    for number in range(3):
        covered = [moment for each in drawn if each[0] == number for moment in range(each[1], each[1] + each[2])]
        own = thread[found.row] == number
        sliced = [
            moment
            for begin, end in zip(found.start[own].tolist(), found.end[own].tolist(), strict=True)
            for moment in range(begin, end)
        ]
        assert sorted(set(covered)) == sorted(sliced)


def test_a_kernel_waits_for_its_launch_where_the_gpu_was_idle(tmp_path: Path) -> None:
    found = way(
        tmp_path, kernel("first", 0, 10), call("cudaLaunchKernel", 50, 5, 3), kernel("second", 60, 9, correlation=3)
    )
    assert found == ["second", "cudaLaunchKernel"]


def test_a_kernel_waits_for_the_one_before_on_its_stream(tmp_path: Path) -> None:
    launch = call("cudaLaunchKernel", 10, 5, 3)
    assert way(tmp_path, launch, kernel("first", 0, 100), kernel("second", 101, 9, correlation=3)) == [
        "second",
        "first",
    ]


def test_less_than_3_microseconds_do_not_part_a_kernel_from_the_one_before(tmp_path: Path) -> None:
    other = kernel("other", 0, 102, stream=8)
    assert way(tmp_path, other, kernel("first", 0, 99), kernel("second", 103, 9)) == ["second", "first"]
    assert way(tmp_path, other, kernel("first", 0, 98), kernel("second", 103, 9)) == ["second", "other"]


def test_a_kernel_that_began_before_its_launch_still_depends_on_it(tmp_path: Path) -> None:
    before, launch = event("aten::mm", 90, 9), call("cudaLaunchKernel", 100, 5, 3)
    assert way(tmp_path, before, launch, kernel("early", 98, 1, correlation=3)) == [
        *("early", "cudaLaunchKernel", "aten::mm"),
    ]


def test_a_kernel_without_a_launch_waits_for_what_the_gpu_did(tmp_path: Path) -> None:
    assert way(tmp_path, kernel("first", 0, 10, stream=8), kernel("second", 20, 9)) == ["second", "first"]
    assert way(tmp_path, kernel("only", 20, 9, correlation=77)) == ["only"]


def test_a_synchronization_waits_for_the_gpu_and_what_follows_for_it(tmp_path: Path) -> None:
    launch, wait = call("cudaLaunchKernel", 0, 5, 3), call("cudaStreamSynchronize", 6, 100, 4)
    work = kernel("work", 10, 90, correlation=3)
    assert way(tmp_path, launch, wait, work, event("after", 107, 5)) == [
        *("after", "cudaStreamSynchronize", "work", "cudaLaunchKernel"),
    ]


def test_a_blocking_copy_launches_what_it_waits_for_without_a_circle(tmp_path: Path) -> None:
    copy = kernel("Memcpy DtoH (Device -> Pageable)", 10, 80, cat="gpu_memcpy", correlation=3)
    for name in ("cudaMemcpy", "cudaMemcpyAsync", "hipMemcpyWithStream"):
        found = way(tmp_path, event("before", 0, 5), call(name, 6, 90, 3), copy, event("after", 97, 5))
        assert found == ["after", name, "Memcpy DtoH (Device -> Pageable)", name, "before"]


def test_a_copy_that_is_asynchronous_holds_nobody_up(tmp_path: Path) -> None:
    copy = kernel("Memcpy HtoD (Pinned -> Device)", 10, 80, cat="gpu_memcpy", correlation=3)
    assert way(tmp_path, call("cudaMemcpyAsync", 0, 5, 3), copy, event("after", 95, 5)) == ["after", "cudaMemcpyAsync"]


def test_a_synchronization_does_not_wait_for_what_is_launched_later(tmp_path: Path) -> None:
    # Another thread launches `other` during the wait, and it is over before the wait is.
    written = [
        *(call("cudaLaunchKernel", 0, 5, 3), kernel("work", 10, 60, correlation=3)),
        *(call("cudaLaunchKernel", 30, 5, 5, tid=2), kernel("other", 40, 40, stream=8, correlation=5)),
        *(call("cudaDeviceSynchronize", 6, 84, 4), event("after", 91, 5)),
    ]
    assert way(tmp_path, *written)[:3] == ["after", "cudaDeviceSynchronize", "work"]


def test_a_stream_that_is_named_is_the_one_that_is_waited_for(tmp_path: Path) -> None:
    written = [
        *(call("cudaLaunchKernel", 0, 2, 3), kernel("work", 10, 60, correlation=3)),
        *(call("cudaLaunchKernel", 3, 2, 5), kernel("other", 10, 75, stream=8, correlation=5)),
        call("cudaStreamSynchronize", 6, 84, 4),
        kernel("Stream Sync", 6, 84, cat="cuda_sync", correlation=4),
        event("after", 91, 5),
    ]
    assert way(tmp_path, *written)[:3] == ["after", "cudaStreamSynchronize", "work"]


def stream_wait(start: int, correlation: int, recorded: int) -> list[dict[str, Any]]:
    waits = {"wait_on_stream": 8, "wait_on_cuda_event_record_corr_id": recorded, "correlation": correlation}
    return [
        call("cudaStreamWaitEvent", start, 2, correlation),
        kernel("Stream Wait Event", start, 2, cat="cuda_sync", **waits),
    ]


def test_a_stream_waits_for_what_was_recorded_and_not_for_what_was_over_last(tmp_path: Path) -> None:
    written = [
        *(call("cudaLaunchKernel", 0, 2, 1), kernel("waited for", 5, 50, stream=8, correlation=1)),
        call("cudaEventRecord", 3, 2, 2),
        *(call("cudaLaunchKernel", 6, 2, 3), kernel("unrelated", 10, 80, stream=9, correlation=3)),
        *stream_wait(9, 4, recorded=2),
        *(call("cudaLaunchKernel", 12, 2, 5), kernel("waiting", 91, 5, correlation=5)),
    ]
    assert way(tmp_path, *written)[:2] == ["waiting", "waited for"]
    without = [each for each in written if each["cat"] != "cuda_sync"]
    assert way(tmp_path, *without)[:2] == ["waiting", "unrelated"]


def test_waits_of_the_cpu_alone_say_nothing_of_those_of_streams(tmp_path: Path) -> None:
    written = [
        *(call("cudaLaunchKernel", 0, 2, 1), kernel("other", 5, 80, stream=8, correlation=1)),
        *(call("cudaEventSynchronize", 3, 2, 2), kernel("Event Sync", 3, 2, -1, "cuda_sync", wait_on_stream=8)),
        *(call("cudaLaunchKernel", 12, 2, 5), kernel("waiting", 91, 5, correlation=5)),
    ]
    assert way(tmp_path, *written)[:2] == ["waiting", "other"]


def arrow(phase: str, tid: int, ts: int) -> dict[str, Any]:
    return {"ph": phase, "cat": "fwdbwd", "name": "fwdbwd", "id": 5, "pid": 9, "tid": tid, "ts": BASE + ts}


@pytest.mark.parametrize("arrows", [True, False])
def test_the_backward_pass_leads_to_the_thread_that_woke_it_and_back(tmp_path: Path, arrows: bool) -> None:
    written = [
        *(event("forward", 0, 10), event("loss.backward", 20, 300)),
        *(event("first gradient", 50, 100, tid=2), event("second gradient", 160, 140, tid=2)),
        *([arrow("s", 1, 5), arrow("f", 2, 50)] if arrows else []),
        event("optimizer", 321, 10),
    ]
    assert way(tmp_path, *written) == [
        *("optimizer", "loss.backward", "second gradient", "first gradient", "loss.backward", "forward"),
    ]


def test_threads_that_no_arrow_joins_do_not_wait_for_each_other(tmp_path: Path) -> None:
    # The loader is over last, and would have woken the step were it of the threads that arrows join.
    others = [event("gradient", 50, 5, tid=2), event("loader", 60, 35, tid=3)]
    arrows = [arrow("s", 1, 5), arrow("f", 2, 50)]
    assert way(tmp_path, *others, *arrows, event("step", 100, 5)) == ["step", "gradient"]
    assert way(tmp_path, *others, event("step", 100, 5))[:2] == ["step", "loader"]


NAMES = (
    "aten::mm",
    "cudaLaunchKernel",
    "cudaStreamSynchronize",
    "cudaMemcpy",
    "cudaMemcpyAsync",
    "kernel",
    "ncclAllReduce",
)
CATEGORIES = ("cpu_op", "cuda_runtime", "kernel", "gpu_memcpy", "cuda_sync", "user_annotation", "python_function")


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.builds(
            lambda name, cat, tid, start, dur, correlation, stream: (
                event(
                    name,
                    start,
                    dur,
                    tid,
                    cat,
                    correlation=correlation,
                    wait_on_stream=stream,
                    wait_on_cuda_event_record_corr_id=correlation,
                )
                | {"pid": 0 if cat in ("kernel", "gpu_memcpy", "cuda_sync") else 9}
            ),
            st.sampled_from(NAMES),
            st.sampled_from(CATEGORIES),
            st.integers(1, 3),
            st.integers(0, 60),
            st.integers(0, 20),
            st.integers(0, 8),
            st.integers(1, 3),
        ),
        max_size=40,
    ),
    st.lists(st.builds(arrow, st.sampled_from("sf"), st.integers(1, 3), st.integers(0, 60)), max_size=4),
)
def test_whatever_a_trace_holds_no_dependency_is_circular(
    tmp_path_factory: Any, written: list[dict[str, Any]], arrows: list[dict[str, Any]]
) -> None:
    found = read(tmp_path_factory.mktemp("trace"), *written, *arrows)
    nodes = nodes_of(found)
    dependencies = critical_parents(found, nodes)
    assert (dependencies.parent < np.arange(len(nodes))).all()
    assert (dependencies.reached >= nodes.start).all()
    assert (np.bincount(nodes.row[~nodes.gpu], minlength=len(found))[found.of("cpu_op", "python_function")] > 0).all()
    graph = Graph(found, Codes())
    for number in range(len(found.communication.start)):
        begin = int(found.start.min()) if len(found) else 0
        path = graph.path(number, begin, None)
        assert path.length == pytest.approx((int(found.communication.start[number]) - begin) * 1e-9)
        assert all(seconds > 0 for seconds in path.seconds.values())


def test_graphs_of_the_real_trace_set_are_walked_back_to_few_roots() -> None:
    for rank in range(8):
        found = events(shared_file(f"traces/dlrm8/rank{rank}.pt.trace.json.gz"))
        nodes = nodes_of(found)
        parents = critical_parents(found, nodes).parent
        assert (parents < np.arange(len(nodes))).all()
        assert np.count_nonzero(parents == -1) <= 2
