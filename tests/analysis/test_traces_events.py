"""Events of a rank as columns, which kernels communicate, and times to the last digit."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_writer import EPOCH, FORMS, Collective, Form, Group, Kernel, Writing, run, trace
from msgspec import Raw
from shared_data import shared_file

from dlbench.analysis.traces.communication import ranks_of
from dlbench.analysis.traces.events import GPU_CATEGORIES, Events, Track, events
from dlbench.analysis.traces.format import NO_TIME, UNKNOWN, Args, Event, integer, nanoseconds
from dlbench.analysis.traces.kernels import CommunicationKernels, message_bytes, operation
from dlbench.errors import OptionError

WORLD = Group("0", (0, 1), "default_pg")
KERNELS = run([Collective("allreduce", WORLD)] * 5, [{0: 200_000, 1: 300_000}] * 5)[0]
PLAIN = Writing()
RECORD = {"pid": 1, "ts": EPOCH + 1_000_000, "dur": 5_000}


def written(folder: Path, kernels: list[Kernel], writing: Writing = PLAIN) -> Events:
    path = folder / "rank0.json"
    path.write_bytes(trace(0, 2, kernels, writing))
    return events(path)


def slice_of(**changes: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": "aten::add", "tid": 1, **RECORD, **changes}


@pytest.mark.parametrize("form", FORMS)
def test_all_slices_are_there_with_the_new_categories(tmp_path: Path, form: Form) -> None:
    found = written(tmp_path, KERNELS, Writing(form=form))
    counts = {name: len(found.of(name)) for name in found.categories}
    assert counts == {
        "cpu_op": 5,
        "user_annotation": 5,
        "cuda_runtime": 5,
        "kernel": 10,
        "gpu_user_annotation": 5,
    }
    assert len(found.of(*GPU_CATEGORIES)) == 10


def test_communication_kernels_are_rows_of_the_events(tmp_path: Path) -> None:
    found = written(tmp_path, KERNELS)
    rows = found.communication_events
    assert found.start[rows].tolist() == [kernel.start for kernel in KERNELS] == found.communication.start.tolist()
    assert found.end[rows].tolist() == [kernel.end for kernel in KERNELS]
    assert {found.names[code][:23] for code in found.name[rows]} == {"ncclDevKernel_AllReduce"}
    assert {found.tracks[code] for code in found.track[rows]} == {Track(0, 84)}


def test_a_gpu_event_shares_its_correlation_with_its_launch(tmp_path: Path) -> None:
    found = written(tmp_path, KERNELS)
    launches = found.of("cuda_runtime")
    assert found.correlation[launches].tolist() == found.correlation[found.communication_events].tolist()
    assert found.correlation[found.of("user_annotation")].tolist() == [UNKNOWN] * 5
    assert found.external_id[launches].tolist() == found.external_id[found.of("cpu_op")].tolist()


def test_what_encloses_stands_before_what_is_enclosed(tmp_path: Path) -> None:
    inner = slice_of(name="inner", dur=1_000)
    outer = slice_of(name="outer", dur=9_000)
    later = slice_of(name="later", ts=RECORD["ts"] + 2_000)
    found = written(tmp_path, [], Writing(more_events=[later, inner, outer]))
    assert [found.names[code] for code in found.name] == ["outer", "inner", "later"]
    assert found.duration.tolist() == [9_000, 1_000, 5_000]


def test_arrows_and_waits_of_streams_are_kept(tmp_path: Path) -> None:
    forward = {**RECORD, "ph": "s", "id": 9, "cat": "fwdbwd", "name": "fwdbwd", "tid": 2}
    backward = {**forward, "ph": "f", "tid": "autograd", "ts": RECORD["ts"] + 7, "bp": "e"}
    nameless = {**forward, "id": "?"}
    args = {"stream": 20, "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 312}
    wait = slice_of(cat="cuda_sync", name="Stream Wait Event", ts=RECORD["ts"] + 10, args=args)
    more = [wait, forward, backward, nameless, slice_of()]
    found = written(tmp_path, [], Writing(more_events=more))
    flows, waits = found.flows, found.waits
    assert flows.id.tolist() == [9, 9]
    assert flows.begins.tolist() == [True, False]
    assert [found.categories[code] for code in flows.category] == ["fwdbwd", "fwdbwd"]
    assert [found.tracks[code] for code in flows.track] == [Track(1, 2), Track(1, "autograd")]
    assert flows.time.tolist() == [RECORD["ts"], RECORD["ts"] + 7]
    assert waits.event.tolist() == [1]
    assert found.names[found.name[waits.event[0]]] == "Stream Wait Event"
    assert (waits.stream.tolist(), waits.correlation.tolist()) == ([7], [312])


def test_events_without_a_valid_time_are_dropped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    text = trace(0, 2, KERNELS).replace(b'"ph": "X"', b'"ph": "X", "dur": null', 1)
    path.write_bytes(text.replace(b', "dur": 9.000', b"", 1))
    found = events(path)
    assert found.notes == [f"{path}: 1 event without a valid ts and dur dropped"]
    assert len(found) == 29
    assert found.start[found.communication_events].tolist() == [kernel.start for kernel in KERNELS]


def test_the_real_trace_has_its_events() -> None:
    found = events(shared_file("traces/dlrm8/rank3.pt.trace.json.gz"))
    assert found.notes == []
    assert found.communication.rank == 3
    assert {found.tracks[code] for code in found.track[found.communication_events]} == {Track(3, 84)}
    launches = found.correlation[found.of("cuda_runtime")]
    assert np.isin(found.correlation[found.communication_events], launches).all()


def kernel(name: str, **args: Any) -> Event:
    return Event(ph="X", cat="kernel", name=name, args=Args(**args))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "allreduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "allgather"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "sendrecv"),
        ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_bf16", "allreduce"),
        ("NCCL_AllToAll", "alltoall"),
        ("void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)", "allreduce"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(RankData*)", "allreduce"),
        ("mscclKernel_Sum_half_Simple_false", "collective"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "collective"),
    ],
)
def test_communication_kernels_are_recognised_by_their_names(name: str, expected: str) -> None:
    assert CommunicationKernels()(kernel(name))
    assert operation(kernel(name)) == expected


@pytest.mark.parametrize(
    ("collective", "expected"),
    [
        ("allreduce_coalesced", "allreduce"),
        ("_allgather_base", "allgather"),
        ("allgather_into_tensor_coalesced", "allgather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_allv", "alltoall"),
        ("broadcast", "broadcast"),
        ("barrier", "barrier"),
        ("gather", "gather"),
        ("scatter", "scatter"),
        ("send", "send"),
        ("recv", "recv"),
        ("_coalesced", "coalesced"),
    ],
)
def test_the_argument_tells_the_operation_whatever_the_name(collective: str, expected: str) -> None:
    generic = kernel("some_generic_kernel", collective=collective)
    assert CommunicationKernels()(generic)
    assert operation(generic) == expected


def test_computation_and_annotations_are_no_communication() -> None:
    recognise = CommunicationKernels()
    assert not recognise(kernel("void cutlass::gemm_reduce<float>()"))
    for category in ("gpu_user_annotation", "user_annotation", "cpu_op", None):
        assert not recognise(Event(ph="X", cat=category, name="nccl:all_reduce"))


def test_the_user_extends_the_list() -> None:
    mine = kernel("my_ring_AllGather_kernel")
    assert not CommunicationKernels()(mine)
    assert CommunicationKernels(["^my_ring"])(mine)
    assert operation(mine) == "allgather"
    with pytest.raises(OptionError, match=r"kernel pattern '\(' is no regular expression: "):
        CommunicationKernels(["("])


def test_the_size_of_a_message_is_that_of_the_larger_side() -> None:
    assert message_bytes(Args(elements_in=10, elements_out="80", dtype="BFloat16")) == 160
    assert message_bytes(Args(elements_in=10, dtype="Float")) == 40
    assert message_bytes(Args(elements_in=10, dtype="Unheard")) == UNKNOWN
    assert message_bytes(Args(dtype="Float")) == UNKNOWN


def test_ranks_are_read_from_lists_and_texts_but_not_from_a_cut_one() -> None:
    assert ranks_of([0, 2, "4"]) == (0, 2, 4)
    assert ranks_of("[0, 2, 4]") == (0, 2, 4)
    assert ranks_of("[0, 1, ..., 511]") == ()
    assert ranks_of(["a"]) == ranks_of(None) == ranks_of("[]") == ()


def test_integers_are_taken_from_numbers_and_texts_within_64_bits() -> None:
    assert [integer(value) for value in (7, "7", 7.0)] == [7, 7, 7]
    others: list[Any] = [-1, "x", 7.5, None, [], True, 1 << 62, "9" * 40]
    assert [integer(value) for value in others] == [UNKNOWN] * 8


@given(st.lists(st.integers(0, 1_999_999_999_999_999_999), min_size=1, max_size=20))
def test_times_are_exact_beyond_the_precision_of_a_float(times: list[int]) -> None:
    decimals = [Raw(f"{time // 1000}.{time % 1000:03d}".encode()) for time in times]
    assert nanoseconds(decimals).tolist() == times
    assert nanoseconds([Raw(f"{time // 1000}".encode()) for time in times]).tolist() == [
        time // 1000 * 1000 for time in times
    ]
    assert nanoseconds([*decimals, Raw(b"")]).tolist() == [*times, NO_TIME]


@given(st.decimals(-(10**14), 10**14, places=5))
def test_times_with_more_digits_are_rounded_to_the_nearest_nanosecond(time: Decimal) -> None:
    (found,) = nanoseconds([Raw(str(time).encode())]).tolist()
    assert abs(Decimal(found) - time * 1000) <= Decimal("0.5")


def test_what_is_no_time_is_none() -> None:
    texts = ["", "null", '"soon"', "1e400", "1" + "0" * 30, "[1]", "NaN", "1.5", '"2"', "-3", "1e3"]
    assert nanoseconds([Raw(text.encode()) for text in texts]).tolist() == [NO_TIME] * 7 + [1500, 2000, -3000, 10**6]
