"""What a run knows of its surroundings: variables, packages, hosts, and where each rank is."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec
import pytest
from handmade_run import CLOCK_MODEL
from hypothesis import given
from hypothesis import strategies as st

import dlbench
from dlbench.errors import PreflightError
from dlbench.records.schema import Backend, Group, Header, OpEntry
from dlbench.roofline import Phase
from dlbench.runtime import hosts
from dlbench.runtime.environment import package_versions, relevant_environment
from dlbench.runtime.header import build_header
from dlbench.runtime.hosts import Host, crowding
from dlbench.runtime.options import parse_request, run_parser
from dlbench.runtime.situation import Situation
from dlbench.strategies.facts import op_tables
from dlbench.strategies.ops import AllReduce, Buffer, Compute, Op, Recv, Scope, Wait, op_row


def test_variables_of_mpi_network_gpu_and_scheduler_are_recorded_in_order() -> None:
    kept = {
        "CUDA_VISIBLE_DEVICES": "0",
        "FI_PROVIDER": "cxi",
        "LD_LIBRARY_PATH": "/opt/lib",
        "MPIR_CVAR_X": "1",
        "MV2_USE_CUDA": "1",
        "NCCL_IB_SL": "1",
        "OMPI_MCA_btl": "self",
        "OMP_NUM_THREADS": "8",
        "SLURM_JOB_ID": "42",
        "UCX_TLS": "rc",
    }
    others = {"HOME": "/root", "PATH": "/bin", "USER": "me", "MY_NCCL_NOTE": "x", "EDITOR": "vi", "FIRE": "x"}
    found = relevant_environment({**others, **dict(reversed(kept.items()))})
    assert list(found.items()) == list(kept.items())


@pytest.mark.parametrize(
    "name",
    [
        "SLURM_JWT",
        "SLURM_AUTH_TOKEN",
        "OMPI_MCA_orte_precondition_transports",
        "PMIX_SECRET",
        "DLBENCH_API_KEY",
        "NCCL_password",
        "HYDRA_COOKIE",
        "FLUX_CREDENTIAL",
    ],
)
def test_what_could_be_a_credential_is_left_out(name: str) -> None:
    assert relevant_environment({name: "hunter2"}) == {}


FAMILIES = ("MPI_", "FI_", "NCCL_", "SLURM_", "UCX_", "LD_LIBRARY_PATH", "LD_PRELOAD")
NAMES = st.builds("".join, st.lists(st.sampled_from([*FAMILIES, "X", "x_", "_", " "]), min_size=1, max_size=3))


@given(st.dictionaries(NAMES, st.text(max_size=5)))
def test_only_names_of_the_known_families_are_recorded(environment: dict[str, str]) -> None:
    assert all(name.startswith(FAMILIES) for name in relevant_environment(environment))


def test_versions_are_those_of_what_is_installed() -> None:
    found = package_versions()
    assert found["dlbench"] == dlbench.__version__
    assert found["numpy"] == version("numpy")
    assert found["mpi4py"] == version("mpi4py")
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "cupy-rocm-7-0" not in found


def test_a_rank_names_itself_and_what_it_is_doing() -> None:
    situation = Situation(rank=3, host="node017", device="cuda:3")
    assert situation.who() == "rank 3 (node017, cuda:3)"
    assert situation.where() == "starting up"
    situation.enter("iteration 7", lambda: "op 12 (allreduce/world gradient)")
    assert situation.where() == "op 12 (allreduce/world gradient) of iteration 7"


def test_a_step_without_ops_forgets_those_of_the_step_before() -> None:
    situation = Situation(rank=0, host="node")
    situation.enter("iteration 7", lambda: "op 1")
    before = situation.since
    situation.enter("closing")
    assert situation.where() == "closing"
    assert situation.since >= before


class LocalRanks:
    """A communicator of the ranks on one host."""

    def __init__(self, cores: list[set[int]], needs: list[int]) -> None:
        self.rank, self.size = 0, len(cores)
        self._cores, self._needs = cores, needs

    def Split_type(self, kind: int) -> LocalRanks:  # noqa: N802
        return self

    def allgather(self, own: set[int]) -> list[set[int]]:
        return self._cores

    def allreduce(self, own: int) -> int:
        return sum(self._needs)

    def bcast(self, value: int) -> int:
        return value


def host(cores: list[set[int]], needs: list[int] | None = None) -> Any:
    return hosts.find_host(LocalRanks(cores, needs or []))  # type: ignore[arg-type]


def test_cores_are_those_that_any_rank_of_the_host_may_use() -> None:
    assert host([{0, 1}, {1, 2}]).cores == 3
    assert host([{0}, {1}]).ranks_per_core == 1.0
    assert host([{0}, {0}, {0}]).ranks_per_core == 3.0


def test_the_host_bears_the_name_of_this_machine() -> None:
    assert host([{0}]).name == os.uname().nodename


def test_the_memory_of_all_ranks_of_a_host_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "available_memory", lambda: 100)
    host([{0}, {1}], needs=[60, 40]).check_memory(60, 1.0)
    with pytest.raises(PreflightError, match="available"):
        host([{0}, {1}], needs=[60, 41]).check_memory(60, 1.0)


@pytest.mark.parametrize(
    ("op", "entry"),
    [
        (
            Compute(Phase("forward", 1.0, 1.0, 0.25)),
            OpEntry(op="compute", name="forward", seconds=0.25),
        ),
        (Wait(("a", "b")), OpEntry(op="wait", requests=["a", "b"])),
        (
            Recv(Scope.PIPELINE, 2, Buffer("in", 5)),
            OpEntry(op="recv", scope="pipeline", name="in", elements=5, peer=2),
        ),
        (
            AllReduce(Scope.WORLD, Buffer("g", 9), blocking=False),
            OpEntry(op="allreduce", scope="world", name="g", elements=9, blocking=False),
        ),
    ],
)
def test_an_op_becomes_a_row_of_the_op_table(op: Op, entry: OpEntry) -> None:
    assert msgspec.convert(op_row(op), OpEntry) == entry


def test_every_rank_is_in_exactly_one_op_table_and_it_is_its_program() -> None:
    request = parse_request("dp_pp", run_parser("prog", "dp_pp"), ["--pp=3"])
    configuration = request.configuration(6)
    tables = op_tables(configuration)
    assert [table["ranks"] for table in tables] == [[0, 3], [1, 4], [2, 5]]
    for table in tables:
        for rank in table["ranks"]:
            assert table["ops"] == [op_row(op) for op in configuration.program(rank)]


def built_header(*argv: str, strategy: str = "dp", ranks: int = 2, hosts: Sequence[str] = ("a",)) -> Header:
    request = parse_request(strategy, run_parser("prog", strategy), argv)
    return build_header(
        request,
        request.configuration(ranks),
        created="2026-01-02T03:04:05Z",
        remarks=["as the backend says"],
        hosts=[hosts[rank % len(hosts)] for rank in range(ranks)],
        devices=["cpu"] * ranks,
        places=[],
        backend=Backend(name="mpi", library="MPICH", carrier="MPI_UINT16_T"),
        compute={"spin": "50 us"},
        clock=CLOCK_MODEL,
        environment={"SLURM_JOB_ID": "1", "SLURM_JWT": "hunter2"},
        command=["python", "-m", "dlbench.dp"],
    )


def test_the_header_holds_what_the_reference_says_of_data_parallelism() -> None:
    made = built_header("--label=a=b", "--seed=7", "--experiment=e", "--job=j", "--placement=p", "--system=local")
    assert made.run_id.startswith("dp-2-20260102T030405Z-")
    assert (made.model["name"], made.model["parameters"]) == ("vit-h", 632_404_480)
    assert (made.replicas, made.local_batch, made.buckets, made.units, made.microbatches) == (2, 16, 50, 0, 1)
    message = made.messages[0]
    # P / 50 = 12 648 089.6: some buckets have one element more than others.
    assert {entry.elements for entry in made.messages} == {12_648_089, 12_648_090}
    assert sum(entry.count for entry in made.messages) == 50
    assert (message.operation, message.scope, message.group_size, message.blocking) == ("allreduce", "world", 2, False)
    assert made.memory_bytes == 2 * 2 * 632_404_480  # send and receive side, two bytes an element
    assert (made.labels, made.seed, made.experiment, made.job) == ({"a": "b"}, 7, "e", "j")
    assert (made.placement, made.system) == ("p", "local")
    assert made.environment == {"SLURM_JOB_ID": "1"}
    assert made.op_tables == []
    assert made.groups == {"world": Group(size=2, stride=1)}
    assert made.notes[-1] == "as the backend says"
    # Forward and twice as long backward: three times the reference's forward of ViT-H on a B200.
    assert made.ideal_seconds == pytest.approx(3 * 2376.55e-6, rel=1e-5)


def test_without_compute_the_header_names_no_ideal_time() -> None:
    assert built_header("--compute=none").ideal_seconds == 0


def test_the_header_repeats_every_option_and_how_compute_is_performed() -> None:
    made = built_header("--iterations=4", "--delay=1:2:3", "--until-ci=0.1")
    assert made.options["iterations"] == 4
    assert made.options["until_ci"] == 0.1
    assert made.options["delay"] == [{"rank": 1, "op": 2, "milliseconds": 3.0}]
    assert made.options["compute_spin"] == "50 us"


def test_messages_that_take_a_host_seconds_are_told_with_the_scale_that_shortens_them() -> None:
    # 2560 all-reduces of 2^25 elements and 32 sends and receives of 2^26, of 2 bytes each.
    assert 2 * (2560 * 2**25 + 32 * 2**26) == 176_093_659_136
    said = "a rank moves 176.1 GB an iteration through the memory of one host; --scale 0.001 shortens it"
    assert said in built_header(strategy="dp_pp_tp", ranks=4).notes
    # A tenth of that, 17.6 GB, takes a hundredth to be below 1 GB.
    tenth = built_header("--scale=0.1", strategy="dp_pp_tp", ranks=4).notes
    assert "a rank moves 17.61 GB an iteration through the memory of one host; --scale 0.001 shortens it" in tenth
    light = built_header("--scale=0.01", strategy="dp_pp_tp", ranks=4)
    apart = built_header(strategy="dp_pp_tp", ranks=4, hosts=["a", "b"])
    assert not [note for made in (light, apart, built_header()) for note in made.notes if "a rank moves" in note]


class Ranks:
    """The ranks of a host."""

    def __init__(self, size: int) -> None:
        self.size = size


@pytest.mark.parametrize(
    ("ranks", "cores", "said"),
    [
        (4, 2, "4 ranks share 2 cores of host a: times are also those of waiting for a core"),
        (2, 1, "2 ranks share 1 core of host a: times are also those of waiting for a core"),
        (2, 2, ""),
    ],
)
def test_a_host_with_more_ranks_than_cores_says_so(ranks: int, cores: int, said: str) -> None:
    assert Host("a", Ranks(ranks), cores).remark() == said  # type: ignore[arg-type]


def test_of_crowded_hosts_one_is_named_and_the_others_are_counted() -> None:
    assert crowding(["", ""]) == []
    assert crowding(["", "x", "x"]) == ["x"]
    assert crowding(["x", "y", "", "y", "z"]) == ["x; 2 more hosts likewise"]


def test_the_header_says_in_words_what_is_delayed() -> None:
    made = built_header("--delay=1:2:40", "--delay=0:0:2.5")
    # Two ops of a bucket: its gradients, and the all-reduce that starts then. Op 0 is the forward pass.
    assert made.notes[-3:] == [
        "delay: rank 1 sleeps 40 ms before op 2 (allreduce/world gradient[0])",
        "delay: rank 0 sleeps 2.5 ms before op 0 (compute forward)",
        "as the backend says",
    ]


def test_the_header_can_be_written_and_read_back() -> None:
    made = built_header("--record-ops", "--pp=2", strategy="dp_pp", ranks=4)
    assert msgspec.json.decode(msgspec.json.encode(made), type=Header) == made
    assert [table.ranks for table in made.op_tables] == [[0, 2], [1, 3]]
    assert made.degrees == {"pp": 2}
