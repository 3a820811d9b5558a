"""The NCCL backend: which calls it makes, in which order, and what it makes of errors; and its data, over the stand-in.

Fakes write down the calls. A count is what NCCL takes: of one rank in an all-gather and a reduce-scatter.
"""

from __future__ import annotations

import gc
import importlib
import threading
import time
import weakref
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest
from launch import Mpi
from logging_device import LibraryError, Log, LoggingDevice, LoggingMpi, LoggingNccl
from stand_in import StandIn, calls

from dlbench.errors import PreflightError, RunError

HERE = Path(__file__).parent
BF16, UINT8, FLOAT16, FLOAT32, FLOAT64, SUM = 9, 1, 6, 7, 8, 0
A_START, B_START = 2**20, 2**20 + 64 + 2 * 6
"""Addresses of two buffers of six bf16, the second one behind the guard of the first."""


LAUNCH_ORDER = "NCCL_LAUNCH_ORDER_IMPLICIT"


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv(LAUNCH_ORDER, "")  # so that what the code sets is taken back
    monkeypatch.delenv(LAUNCH_ORDER)
    return importlib.import_module("dlbench.comm.nccl")  # not above: importing it starts MPI


class World:
    """Rank 1 of 3 on logging fakes."""

    def __init__(  # what a communicator depends on
        self,
        nccl: ModuleType,
        *,
        rank: int = 1,
        size: int = 3,
        version: int = 22602,
        groups: bool = True,
        **device: Any,
    ) -> None:
        self.device = LoggingDevice(**device)
        self.log: Log = self.device.log
        self.library = LoggingNccl(self.log, version)
        self.comm = nccl.nccl_communicator(LoggingMpi(self.log, rank, size), self.device, self.library, groups=groups)

    def buffers(self, elements: int = 6, dtype: str = "bf16") -> tuple[Any, Any]:
        return self.comm.allocate(elements, dtype), self.comm.allocate(elements, dtype)


@pytest.mark.parametrize(
    ("operation", "received", "call"),
    [
        ("iallreduce", 6, ("allReduce", A_START, B_START, 6, BF16, SUM, 701)),
        ("iallgather", 18, ("allGather", A_START, B_START, 6, BF16, 701)),
        ("ireduce_scatter", 2, ("reduceScatter", A_START, B_START, 2, BF16, SUM, 701)),
    ],
)
def test_an_event_is_recorded_behind_the_collective_on_the_stream_of_the_communicator(
    nccl: ModuleType, operation: str, received: int, call: tuple[Any, ...]
) -> None:
    world = World(nccl)

    getattr(world.comm, operation)(world.comm.allocate(6, "bf16"), world.comm.allocate(received, "bf16"))

    assert world.log == [call, ("record", 1, 701)]


@pytest.mark.parametrize("operation", ["allreduce", "allgather", "reduce_scatter", "alltoall"])
def test_a_blocking_collective_returns_when_its_event_is_reached(nccl: ModuleType, operation: str) -> None:
    answers = iter([False, False, True])
    world = World(nccl, is_done=lambda: next(answers))

    getattr(world.comm, operation)(*world.buffers())

    polled = [entry for entry in world.log if entry[0] in ("record", "not done", "done")]
    assert polled == [("record", 1, 701), ("not done", 1), ("not done", 1), ("done", 1)]


def test_an_all_to_all_is_one_group_of_a_send_and_a_receive_for_every_rank_itself_included(nccl: ModuleType) -> None:
    world = World(nccl)

    world.comm.ialltoall(*world.buffers())

    assert world.log == [
        ("groupStart",),
        ("send", A_START, 2, BF16, 0, 701),
        ("recv", B_START, 2, BF16, 0, 701),
        ("send", A_START + 4, 2, BF16, 1, 701),
        ("recv", B_START + 4, 2, BF16, 1, 701),
        ("send", A_START + 8, 2, BF16, 2, 701),
        ("recv", B_START + 8, 2, BF16, 2, 701),
        ("groupEnd",),
        ("record", 1, 701),
    ]


def test_nothing_is_sent_or_received_where_there_is_nothing(nccl: ModuleType) -> None:
    world = World(nccl)
    send, receive = world.buffers(0)

    world.comm.send(send, 0)
    world.comm.recv(receive, 0)
    world.comm.alltoall(send, receive)

    assert not [entry for entry in world.log if entry[0] in ("send", "recv")]


def test_a_send_and_a_receive_end_when_their_event_is_reached(nccl: ModuleType) -> None:
    world = World(nccl)
    send, receive = world.buffers()

    world.comm.send(send, 2)
    world.comm.recv(receive, 0)

    assert world.log == [
        ("send", A_START, 6, BF16, 2, 701),
        ("record", 1, 701),
        ("done", 1),
        ("recv", B_START, 6, BF16, 0, 701),
        ("record", 1, 701),
        ("done", 1),
    ]


@pytest.mark.parametrize(
    ("dtype", "number", "size"),
    [("bf16", BF16, 2), ("fp16", FLOAT16, 2), ("fp8", UINT8, 1), ("fp32", FLOAT32, 4), ("fp64", FLOAT64, 8)],
)
def test_counts_have_64_bits_in_every_dtype(nccl: ModuleType, dtype: str, number: int, size: int) -> None:
    world = World(nccl, size=2)
    send, receive = world.buffers(2_200_000_000, dtype)
    start, block = 2**20, 1_100_000_000 * size
    other = start + 2 * block + 64

    world.comm.iallreduce(send, receive)
    world.comm.ialltoall(send, receive)

    assert world.log[0] == ("allReduce", start, other, 2_200_000_000, number, SUM, 701)
    assert ("recv", other + block, 1_100_000_000, number, 1, 701) in world.log
    assert all(type(argument) is int for entry in world.log for argument in entry[1:])


def test_a_count_that_is_no_integer_is_an_error_in_the_program(nccl: ModuleType) -> None:
    with pytest.raises(TypeError, match="float"):
        World(nccl).comm.allocate(1e9, "bf16")


def test_a_request_keeps_its_buffers_until_it_is_complete(nccl: ModuleType) -> None:
    done = False
    world = World(nccl, is_done=lambda: done)
    send, receive = world.buffers()
    memory = [weakref.ref(send._memory), weakref.ref(receive._memory)]

    request = world.comm.iallreduce(send, receive)
    del send, receive
    gc.collect()
    assert not request.test()
    assert all(reference() for reference in memory)

    done = True
    request.wait()
    gc.collect()
    assert not any(reference() for reference in memory)


def test_events_are_used_again_once_their_request_is_complete(nccl: ModuleType) -> None:
    world = World(nccl)
    send, receive = world.buffers()

    first, second = world.comm.iallreduce(send, receive), world.comm.iallreduce(send, receive)
    world.comm.wait_all([second, first])
    first.wait()
    for _ in range(3):
        world.comm.allreduce(send, receive)

    assert world.device.events == 2


def test_a_communicator_waits_for_its_stream_before_it_is_destroyed(nccl: ModuleType) -> None:
    answers = iter([False, True])
    world = World(nccl, is_done=lambda: next(answers))
    world.comm.iallreduce(*world.buffers())
    world.log.clear()

    world.comm.close()

    quiet = [entry for entry in world.log if entry[0] != "check_async_error"]
    assert quiet == [
        ("record", 2, 701), ("not done", 2), ("done", 2), ("synchronize", 701), ("destroy",), ("Free",)
    ]  # fmt: skip


def test_an_error_that_comes_while_waiting_says_what_where_and_how_to_learn_more(nccl: ModuleType) -> None:
    world = World(nccl, is_done=lambda: False)
    world.library.failing.add("check_async_error")
    request = world.comm.iallreduce(*world.buffers())

    with pytest.raises(RunError) as caught:
        request.wait()

    assert str(caught.value) == (
        "NCCL_ERROR_REMOTE_ERROR: remote process exited (NCCL, rank 1 of a group of 3 on cuda:3); "
        "NCCL_DEBUG=WARN says more"
    )


@pytest.mark.parametrize("wait", ["test", "wait_all", "close"])
def test_every_way_to_wait_sees_an_error(nccl: ModuleType, wait: str) -> None:
    world = World(nccl, is_done=lambda: False)
    world.library.failing.add("check_async_error")
    request = world.comm.iallreduce(*world.buffers())

    with pytest.raises(RunError, match="REMOTE_ERROR"):
        {"test": request.test, "wait_all": lambda: world.comm.wait_all([request]), "close": world.comm.close}[wait]()


def test_a_call_that_nccl_refuses_is_a_run_error(nccl: ModuleType) -> None:
    world = World(nccl)
    world.library.failing.add("reduceScatter")

    with pytest.raises(RunError, match=r"^NCCL_ERROR_REMOTE_ERROR.*rank 1 of a group of 3") as caught:
        world.comm.reduce_scatter(*world.buffers())

    assert isinstance(caught.value.__cause__, LibraryError)


def test_nccl_is_asked_for_errors_once_a_millisecond_at_most_and_not_where_nothing_waits(
    nccl: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 5_000_000
    world = World(nccl, is_done=lambda: now > 7_400_000)
    request = world.comm.iallreduce(*world.buffers())

    def clock() -> int:  # a look takes 0.2 ms: those at 5.2, 6.2 and 7.2 ms ask
        nonlocal now
        now += 200_000
        return now

    monkeypatch.setattr(nccl, "perf_counter_ns", clock)
    request.wait()
    assert world.log.count(("check_async_error",)) == 3

    world.comm.allreduce(*world.buffers())
    assert world.log.count(("check_async_error",)) == 3


def test_other_threads_run_while_one_waits(nccl: ModuleType) -> None:
    reached = threading.Event()
    deadline = time.monotonic() + 20
    world = World(nccl, is_done=lambda: reached.is_set() or time.monotonic() > deadline)
    request = world.comm.iallreduce(*world.buffers())
    other = threading.Timer(0.02, reached.set)

    other.start()
    request.wait()

    assert reached.is_set()
    other.join()


@pytest.mark.parametrize(
    ("version", "built", "kind", "how"),
    [
        (22304, 22304, "cuda", "commSplit 4 7"),
        (22304, 21801, "cuda", "commSplit 4 7"),
        (21801, 22304, "host", "commSplit 4 7"),
        (21705, 22304, "cuda", "id blue rank 0 of 2"),
        (22304, 21705, "cuda", "id blue rank 0 of 2"),
        (22304, 22304, "hip", "id blue rank 0 of 2"),
    ],
)
def test_a_group_is_split_by_nccl_where_it_and_cupy_can_and_by_a_new_id_elsewhere(
    nccl: ModuleType, version: int, built: int, kind: Any, how: str
) -> None:
    world = World(nccl, kind=kind, version=version)
    world.library.built = built

    part = world.comm.split(4, 7)

    assert (part.rank, part.size, part._handle.how) == (0, 2, how)


@pytest.mark.parametrize(
    ("version", "kind", "streams", "remarks"),
    [
        (22600, "cuda", [702, 703], []),
        (22600, "host", [702, 703], []),
        (22505, "cuda", [701, 701], ["this is NCCL 2.25.5"]),
        (22703, "hip", [701, 701], ["this is RCCL 2.27.3"]),
    ],
)
def test_groups_have_a_stream_each_where_nccl_keeps_them_in_order_and_share_one_elsewhere(
    nccl: ModuleType, version: int, kind: Any, streams: list[int], remarks: list[str]
) -> None:
    world = World(nccl, version=version, kind=kind)
    parts = [world.comm.split(0, 0), world.comm.split(1, 0)]

    for part in parts:
        part.iallreduce(part.allocate(1, "fp32"), part.allocate(1, "fp32"))

    assert [call[-1] for call in world.log if call[0] == "allReduce"] == streams
    assert [record[-1] for record in world.log if record[0] == "record"] == streams
    assert world.comm.remarks(1) == [
        "operations of different groups run one after the other, on one stream: NCCL keeps several streams in order "
        f"from 2.26 on where NCCL_LAUNCH_ORDER_IMPLICIT is 1, and {why}"
        for why in remarks
    ]


def test_without_groups_there_is_nothing_to_remark_of_an_old_nccl(nccl: ModuleType) -> None:
    assert World(nccl, version=22304).comm.remarks(2**40) == []


def test_on_a_shared_stream_a_call_waits_for_its_own_event_and_not_for_those_of_other_groups(nccl: ModuleType) -> None:
    world = World(nccl, version=22304, unreached={1, 3})
    part = world.comm.split(0, 0)
    gradients = world.comm.iallreduce(*world.buffers())

    part.reduce_scatter(*world.buffers())
    behind = world.comm.iallreduce(*world.buffers())

    assert (gradients.test(), behind.test()) == (False, False)
    polled = [entry[:2] for entry in world.log if entry[0] in ("record", "done", "not done")]
    assert polled == [("record", 1), ("record", 2), ("done", 2), ("record", 3), ("not done", 1), ("not done", 3)]


def test_a_root_without_a_unique_id_fails_with_the_reason(nccl: ModuleType) -> None:
    library = LoggingNccl([], failing={"get_unique_id"})

    with pytest.raises(PreflightError, match=r"rank 0 of 3 has no unique id \(LibraryError: NCCL_ERROR_SYSTEM_ERROR"):
        nccl.nccl_communicator(LoggingMpi([], rank=0), LoggingDevice(), library)


def test_the_other_ranks_hear_of_it_and_do_not_wait(nccl: ModuleType) -> None:
    comm = LoggingMpi([], rank=2, from_root=(b"", "LibraryError: no network"))

    with pytest.raises(PreflightError, match=r"no unique id \(LibraryError: no network\); NCCL_DEBUG=INFO says why"):
        nccl.nccl_communicator(comm, LoggingDevice(), LoggingNccl([]))


def test_a_rank_on_which_nccl_does_not_start_is_named(nccl: ModuleType) -> None:
    library = LoggingNccl([], failing={"NcclCommunicator"})

    with pytest.raises(PreflightError, match=r"^NCCL does not start on rank 1 of 3 \(NCCL_ERROR_SYSTEM_ERROR"):
        nccl.nccl_communicator(LoggingMpi([]), LoggingDevice(), library)


@pytest.mark.parametrize(
    ("chosen", "version", "groups", "seen"),
    [(None, 22600, True, "1"), ("0", 22600, True, "0"), (None, 22505, True, None), (None, 22600, False, None)],
)
def test_nccl_knows_that_it_shall_order_launches_when_the_first_communicator_is_made(
    nccl: ModuleType, monkeypatch: pytest.MonkeyPatch, chosen: str | None, version: int, groups: bool, seen: str | None
) -> None:
    if chosen is not None:
        monkeypatch.setenv(LAUNCH_ORDER, chosen)

    world = World(nccl, version=version, groups=groups)

    assert world.library.launch_orders == [seen]


@pytest.mark.parametrize(("chosen", "why"), [("0", "is 0"), (None, "is not set")])
def test_groups_share_a_stream_where_nccl_was_not_asked_to_order_launches(
    nccl: ModuleType, monkeypatch: pytest.MonkeyPatch, chosen: str | None, why: str
) -> None:
    if chosen is not None:
        monkeypatch.setenv(LAUNCH_ORDER, chosen)
    world = World(nccl, groups=chosen is not None)

    part = world.comm.split(0, 0)
    part.iallreduce(part.allocate(1, "fp32"), part.allocate(1, "fp32"))

    assert [call[-1] for call in world.log if call[0] == "allReduce"] == [701]
    (remark,) = world.comm.remarks(1)
    assert remark.endswith(f"and NCCL_LAUNCH_ORDER_IMPLICIT {why}")


@pytest.mark.parametrize("failing", ["send", "recv", "groupEnd"])
def test_a_group_of_calls_is_ended_where_one_of_them_fails(nccl: ModuleType, failing: str) -> None:
    world = World(nccl)
    world.library.failing.add(failing)

    with pytest.raises(RunError, match="REMOTE_ERROR"):
        world.comm.alltoall(*world.buffers())

    assert [entry[0] for entry in world.log].count("groupStart") == 1
    assert world.log[-1] == ("groupEnd",)


def test_a_failure_to_end_a_group_does_not_hide_the_one_in_it(nccl: ModuleType) -> None:
    world = World(nccl)
    world.library.failing |= {"recv", "groupEnd"}

    with pytest.raises(RunError) as caught:
        world.comm.alltoall(*world.buffers())

    assert [entry[0] for entry in world.log] == ["groupStart", "send", "recv", "groupEnd"]
    assert isinstance(caught.value.__cause__, LibraryError)
    assert caught.value.__cause__.call == "recv"


def test_the_exchanges_of_an_all_to_all_do_not_keep_its_buffers(nccl: ModuleType) -> None:
    world = World(nccl)
    send, receive = world.buffers()
    memory = [weakref.ref(send._memory), weakref.ref(receive._memory)]
    world.comm.alltoall(send, receive)
    world.comm.alltoall(send, receive)

    del send, receive

    assert not any(reference() for reference in memory)


@pytest.mark.parametrize("act", ["iallreduce", "ialltoall", "close"])
def test_a_status_that_cupy_has_no_name_for_is_told_as_a_number(nccl: ModuleType, act: str) -> None:
    world = World(nccl)
    arguments = () if act == "close" else world.buffers()
    world.library.unknown_status = 8

    with pytest.raises(RunError, match=r"^NCCL status 8 \(NCCL, rank 1 of a group of 3 on cuda:3\)"):
        getattr(world.comm, act)(*arguments)


def test_cupy_has_no_name_for_the_statuses_that_came_last(stand_in: StandIn) -> None:
    program = """
        from cupy.cuda import nccl as cupy
        from dlbench.comm import nccl
        try:
            raise cupy.NcclError(8)
        except nccl.failures(cupy) as error:
            print(nccl.reason(error))
        """
    assert stand_in.run(dedent(program)) == "NCCL status 8\n"


def test_a_split_that_fails_is_one_line_with_the_rank_and_the_advice(nccl: ModuleType) -> None:
    world = World(nccl)
    world.library.failing.add("commSplit")

    with pytest.raises(
        PreflightError,
        match=r"^NCCL does not split its communicator on rank 1 of 3 \(NCCL_ERROR_REMOTE_ERROR.*\); NCCL_DEBUG=INFO",
    ):
        world.comm.split(0, 0)


@pytest.mark.parametrize(("kind", "library"), [("cuda", "NCCL 2.26.2"), ("hip", "RCCL 2.26.2")])
def test_it_describes_itself_for_the_record(nccl: ModuleType, kind: Any, library: str) -> None:
    assert World(nccl, kind=kind).comm.describe() == {
        "name": "nccl",
        "library": library,
        "bf16": "ncclBfloat16",
        "fp16": "ncclFloat16",
        "fp8": "ncclUint8",
        "fp32": "ncclFloat32",
        "fp64": "ncclFloat64",
    }


def test_no_message_is_too_large_and_nothing_needs_to_be_driven_forward(nccl: ModuleType) -> None:
    world = World(nccl)

    world.comm.progress()

    assert world.comm.remarks(2**40) == []
    assert not world.comm.needs_progress
    assert world.log == []


def test_the_numbers_of_datatypes_are_those_of_cupy(nccl: ModuleType, stand_in: StandIn) -> None:
    names = ("BFLOAT16", "FLOAT16", "UINT8", "FLOAT32", "FLOAT64", "SUM")
    program = f"from cupy.cuda import nccl; print(*(int(getattr(nccl, 'NCCL_' + name)) for name in {names}))"
    carriers = [nccl.CARRIERS[dtype].number for dtype in ("bf16", "fp16", "fp8", "fp32", "fp64")]

    assert stand_in.run(program).split() == [str(number) for number in (*carriers, nccl.SUM)]


def test_every_operation_delivers_its_payload_in_every_dtype_on_groups_of_1_to_4(
    cupy_mpi: Mpi, stand_in: StandIn
) -> None:
    program = HERE / "collective_ranks.py"

    stdout = cupy_mpi.run_ranks(program, 4, "nccl", env=stand_in.environment(), timeout=120).stdout

    assert stdout.count("verified") == 4


def test_values_waiting_faults_and_destruction_are_as_promised(
    cupy_mpi: Mpi, stand_in: StandIn, tmp_path: Path
) -> None:
    log = tmp_path / "calls.jsonl"

    stdout = cupy_mpi.run_ranks(HERE / "nccl_ranks.py", 2, env=stand_in.environment(log=log)).stdout

    assert stdout.count("as promised") == 2
    for rank in (0, 1):
        made = [call for call in calls(log) if call["world_rank"] == rank]
        reduced = [call for call in made if call.get("call") == "ncclAllReduce"]
        assert {call["op"] for call in reduced} == {SUM}
        assert {call["datatype"] for call in reduced} == {BF16, UINT8, FLOAT16, FLOAT32, FLOAT64}
        assert max(call["count"] for call in reduced) == 2_200_000_000
        assert all(call["stream"] > 0 for call in made if "stream" in call)
        destroyed = [call for call in made if call.get("call") == "ncclCommDestroy"]
        assert not any(call["in_flight"] for call in destroyed)
        assert [call["comm"] for call in destroyed][:2] == [1, 0], "the child goes before its parent"
