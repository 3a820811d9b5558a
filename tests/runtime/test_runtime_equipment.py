"""What a rank runs with: whose memory is counted, what drives requests, and the order in which all of it is closed."""

from __future__ import annotations

from typing import Any

import pytest
from host_device import HostDriver

from dlbench.accelerator.protocol import GpuFacts, Reading
from dlbench.comm.library import MPI
from dlbench.comm.variants import mpi_communicator
from dlbench.runtime.agreement import AgreedExit
from dlbench.runtime.equipment import Equipment
from dlbench.runtime.hosts import Host
from dlbench.runtime.options import parse_request, run_parser
from dlbench.runtime.situation import Situation
from dlbench.strategies.ops import Scope

# ViT-H has 632 404 480 parameters of 2 bytes, which an all-reduce sends from one buffer and receives into another.
MESSAGES = 4 * 632_404_480


class Counted(Host):
    """Host that writes down how many bytes its rank needs."""

    needed: list[int] = []  # noqa: RUF012

    def check_memory(self, needed: int, scale: float) -> None:
        self.needed.append(needed)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setattr(Counted, "needed", [])
    return Counted("nid1", MPI.COMM_SELF, cores=1)


def equipment(
    host: Host,
    *argv: str,
    driver: Any = None,
    strategy: str = "dp",
    world_size: int = 2,
    model: str = "vit-h",
    **own: int,
) -> Equipment:
    """Equipment of a single rank that runs a strategy with those options.

    Its configuration is that of more ranks: a world of one has no messages.
    """
    options = [f"--{name}={value}" for name, value in own.items()]
    request = parse_request(strategy, run_parser(strategy, strategy), [f"--model={model}", *options, *argv])
    return Equipment(
        MPI.COMM_SELF,
        request,
        request.configuration(world_size),
        host=host,
        situation=Situation(0, host.name),
        driver=driver,
    )


def test_messages_and_products_of_a_run_without_gpus_are_counted_on_the_host(host: Counted) -> None:
    slept = equipment(host)
    slept.prepare()
    multiplied = equipment(host, "--compute=gemm")
    multiplied.prepare()

    assert host.needed[0] == MESSAGES
    assert 0 < host.needed[1] - MESSAGES <= 3 * 80 * 2**20  # three pools
    assert (slept.places, slept.energy_source) == ([], None)


@pytest.mark.parametrize("compute", ["sleep", "gemm"])
def test_what_lies_on_the_gpu_is_not_counted_on_the_host(host: Counted, compute: str) -> None:
    equipment(host, "--buffers=gpu", f"--compute={compute}", driver=HostDriver).prepare()
    assert host.needed == [0]


def test_a_gpu_that_spins_leaves_the_messages_on_the_host(host: Counted) -> None:
    spinning = equipment(host, "--compute=spin", driver=HostDriver)
    spinning.prepare()
    assert host.needed == [MESSAGES]
    assert [place.facts.uuid for place in spinning.places] == ["HOST-0"]


def test_what_does_not_fit_the_gpu_is_refused_when_the_communicators_have_taken_theirs(host: Counted) -> None:
    tight = equipment(host, "--buffers=gpu", driver=lambda: HostDriver(memory_bytes=10**9))
    tight.prepare()
    with pytest.raises(AgreedExit) as leave:
        tight.connect()
    tight.close()

    # 512 MiB of 1 GB stay free: 0.99 × 0.463 / 2.5296 = 0.181.
    assert leave.value.exit_code == 2
    assert leave.value.message == (
        "rank 0 (nid1, host:0): host memory has 1.000 GB of memory free, 536.9 MB must stay so, and its rank "
        "needs 2.530 GB for messages; --scale 0.18 would fit"
    )


@pytest.mark.parametrize(("progress", "driven"), [("poll", True), ("none", False)])
def test_requests_in_flight_are_driven_where_that_is_asked_for(host: Counted, progress: str, driven: bool) -> None:
    equipped = equipment(host, f"--progress={progress}")
    equipped.prepare()
    equipped.connect()
    assert (equipped.progress() is not None) == driven
    equipped.close()


def test_a_driver_that_lacks_something_ends_the_run_with_the_rank_and_its_host(host: Counted) -> None:
    with pytest.raises(AgreedExit, match=r"^rank 0 \(nid1\): the host device has no GPU$") as leave:
        equipment(host, "--buffers=gpu", driver=lambda: HostDriver(0)).prepare()
    assert leave.value.exit_code == 2
    with pytest.raises(AgreedExit, match=r"^rank 0 \(nid1\): the host device has no NCCL$"):
        equipment(host, "--backend=nccl", driver=HostDriver).prepare()


def test_what_was_opened_is_closed_in_the_reverse_order(host: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Meter:
        source = "counter"

        def read(self) -> Reading:
            raise AssertionError("nothing was measured")

        def close(self) -> None:
            closed.append("meter")

    class Driver(HostDriver):
        def meter(self, facts: GpuFacts) -> Meter:
            return Meter()

    equipped = equipment(host, "--buffers=gpu", "--compute=spin", driver=Driver)
    equipped.prepare()
    equipped.connect()
    parts = (("compute", equipped.compute), ("all ranks", equipped.world))
    for name, part in parts:
        monkeypatch.setattr(part, "close", lambda name=name, close=part.close: (close(), closed.append(str(name))))
    equipped.close()

    assert equipped.energy_source == "counter"
    assert closed == ["all ranks", "compute", "meter"]


def test_a_scope_of_all_ranks_has_the_communicator_of_all_ranks(host: Counted) -> None:
    equipped = equipment(host)
    equipped.prepare()
    equipped.connect()
    assert equipped.communicators[Scope.WORLD] is equipped.world
    equipped.close()


def test_a_group_has_a_communicator_of_its_own_that_closes_before_that_of_all_ranks(
    host: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    equipped = equipment(host, strategy="fsdp", world_size=4, model="llama3-8b", sharding=2)
    equipped.prepare()
    equipped.connect()
    parts = (("all ranks", equipped.world), *equipped.communicators.items())
    for name, part in parts:
        monkeypatch.setattr(part, "close", lambda name=name, close=part.close: (close(), closed.append(str(name))))
    equipped.close()

    assert closed == ["shard", "replica", "all ranks"]


class Recorded:
    """What `variants.create` was called with."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}

    def __call__(self, comm: MPI.Comm, **options: Any) -> Any:
        self.options = options
        return mpi_communicator(comm)


@pytest.mark.parametrize(
    ("strategy", "model", "own", "calls", "groups"),
    [
        ("dp", "vit-h", {}, {"iallreduce"}, False),
        ("fsdp", "llama3-8b", {"sharding": 2}, {"allgather", "iallgather", "reduce_scatter", "iallreduce"}, True),
        ("fsdp", "llama3-8b", {"sharding": 4}, {"allgather", "iallgather", "reduce_scatter"}, False),
        ("dp_pp", "llama3-8b", {"pp": 2}, {"send", "recv", "allreduce"}, True),
    ],
)
def test_a_communicator_is_told_what_it_will_be_asked_for(
    host: Counted,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    model: str,
    own: dict[str, int],
    calls: set[str],
    groups: bool,
) -> None:
    create = Recorded()
    monkeypatch.setattr("dlbench.comm.variants.create", create)
    equipped = equipment(host, strategy=strategy, world_size=4, model=model, **own)
    equipped.prepare()
    equipped.connect()
    equipped.close()

    assert (create.options["calls"], create.options["groups"]) == (calls, groups)


@pytest.mark.parametrize("compute", ["spin", "gemm"])
def test_messages_wait_for_the_stream_on_which_the_rank_computes(
    host: Counted, monkeypatch: pytest.MonkeyPatch, compute: str
) -> None:
    create = Recorded()
    monkeypatch.setattr("dlbench.comm.variants.create", create)
    equipped = equipment(host, "--buffers=gpu", f"--compute={compute}", driver=HostDriver)
    equipped.prepare()
    equipped.connect()
    computes_on = equipped.compute._stream  # type: ignore[attr-defined]
    equipped.close()

    assert create.options["stream"] is computes_on
