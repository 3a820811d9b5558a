"""Whether a run is worth starting: the launcher's ranks and the memory of the hosts."""

from __future__ import annotations

import itertools
import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlbench.errors import PreflightError
from dlbench.runtime.preflight import (
    GPU_RESERVE,
    LauncherClaim,
    available_memory,
    check_gpu_memory,
    check_memory,
    check_world_size,
    launcher_claim,
    start_limit,
)
from dlbench.specs import load_gpu, load_model
from dlbench.strategies import Configuration, configure
from dlbench.strategies.messages import memory_bytes, smallest

OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}
PMI = {"PMI_SIZE": "5", "PMI_RANK": "2"}
STEP = {"SLURM_STEP_NUM_TASKS": "6", "SLURM_PROCID": "1"}
BATCH = {"SLURM_NTASKS": "7"}
CLAIMS = [
    (OPEN_MPI, LauncherClaim(4, 3, "OMPI_COMM_WORLD_SIZE")),
    (PMI, LauncherClaim(5, 2, "PMI_SIZE")),
    (STEP, LauncherClaim(6, 1, "SLURM_STEP_NUM_TASKS")),
    (BATCH, LauncherClaim(7, 0, "SLURM_NTASKS")),
]


@pytest.mark.parametrize(("environment", "claim"), CLAIMS)
def test_each_launcher_says_how_many_ranks_it_started(environment: dict[str, str], claim: LauncherClaim) -> None:
    assert launcher_claim({**environment, "PATH": "/bin"}) == claim


@pytest.mark.parametrize(("inner", "outer"), [*itertools.combinations(range(4), 2)])
def test_the_innermost_launcher_counts(inner: int, outer: int) -> None:
    assert launcher_claim({**CLAIMS[outer][0], **CLAIMS[inner][0]}) == CLAIMS[inner][1]


def test_of_several_launchers_the_one_that_agrees_with_a_world_of_several_ranks_counts() -> None:
    inherited = {**OPEN_MPI, **PMI}  # 4 and 5 ranks
    assert launcher_claim(inherited, 5) == CLAIMS[1][1]
    assert launcher_claim(inherited, 3) == CLAIMS[0][1]  # none agrees: the innermost


def test_a_world_of_one_agrees_with_no_inherited_size() -> None:
    allocation_of_one = {**OPEN_MPI, "SLURM_NTASKS": "1"}
    assert launcher_claim(allocation_of_one, 1) == CLAIMS[0][1]


@pytest.mark.parametrize(("environment", "seconds"), [({}, 300.0), ({"DLBENCH_START_TIMEOUT": "7.5"}, 7.5)])
def test_the_start_of_a_rank_has_its_limit(environment: dict[str, str], seconds: float) -> None:
    assert start_limit(environment) == seconds


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", ""])
def test_a_limit_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(PreflightError, match=f"DLBENCH_START_TIMEOUT={text}: expected seconds above 0"):
        start_limit({"DLBENCH_START_TIMEOUT": text})


@pytest.mark.parametrize("value", ["", "many", "-1", "²"])
def test_a_size_that_is_no_number_is_no_claim(value: str) -> None:
    assert launcher_claim({"PMI_SIZE": value}) is None


def test_a_rank_that_is_no_number_counts_as_the_first() -> None:
    assert launcher_claim({"PMI_SIZE": "2", "PMI_RANK": "?"}) == LauncherClaim(2, 0, "PMI_SIZE")


def test_a_process_that_no_launcher_started_may_be_a_world_of_one() -> None:
    check_world_size(1, "MPICH 5", launcher_claim({}))


def test_a_world_as_large_as_the_launcher_says_is_fine() -> None:
    check_world_size(4, "Open MPI v5", launcher_claim(OPEN_MPI))


@pytest.mark.parametrize(
    ("environment", "remedy"),
    [
        (OPEN_MPI, "use the mpiexec that belongs to this MPI"),
        (PMI, "`dlbench run` finds it"),
        (STEP, "srun --mpi=list"),
        (BATCH, "srun --mpi=pmi2"),
    ],
)
def test_singletons_are_refused_with_the_variable_and_the_remedy(environment: dict[str, str], remedy: str) -> None:
    claim = launcher_claim(environment)
    assert claim is not None
    with pytest.raises(PreflightError) as error:
        check_world_size(1, "MPICH 5.0.2", claim)
    message = str(error.value)
    assert message.startswith(f"MPI sees a world of 1 rank, but {claim.variable}={claim.size}: ")
    assert "MPICH 5.0.2" in message
    assert remedy in message
    assert error.value.exit_code == 2


MIB = 2**20


class Machine:
    """A /proc and a /sys/fs/cgroup in a temporary folder."""

    def __init__(self, folder: Path, group: str = "/", version: int = 2) -> None:
        self.proc, self.cgroup = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        entry = f"0::{group}" if version == 2 else f"4:memory:{group}"
        (self.proc / "self" / "cgroup").write_text(f"1:name=systemd:/x\n{entry}\n")

    def meminfo(self, kib: int) -> Machine:
        (self.proc / "meminfo").write_text(f"MemTotal: 999 kB\nMemFree: 1 kB\nMemAvailable:   {kib} kB\nCached: 5 kB\n")
        return self

    def limit(self, group: str, most: str, used: int, cached: int = 0) -> Machine:
        folder = self.cgroup / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 1\nactive_file 7\ninactive_file {cached}\nslab 3\n")
        return self

    def available(self) -> int | None:
        return available_memory(str(self.proc), str(self.cgroup))


def test_without_a_limit_a_host_can_give_what_the_kernel_says(tmp_path: Path) -> None:
    assert Machine(tmp_path).meminfo(2048).available() == 2 * MIB


def test_a_control_group_gives_its_limit_less_what_it_uses(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "/job").meminfo(10**9).limit("job", str(10 * MIB), 4 * MIB)
    assert machine.available() == 6 * MIB


def test_cached_files_in_a_control_group_can_be_given_up(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "/job").meminfo(10**9).limit("job", str(10 * MIB), 9 * MIB, cached=5 * MIB)
    assert machine.available() == 6 * MIB


def test_the_tightest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "/slurm/job/step").meminfo(10**9)
    machine.limit("slurm/job/step", "max", 1).limit("slurm/job", str(8 * MIB), 5 * MIB).limit("slurm", str(99 * MIB), 9)
    assert machine.available() == 3 * MIB


def test_a_limit_of_another_group_does_not_count(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "/mine").meminfo(1024).limit("other", "1", 0).limit("mine", "max", 0)
    assert machine.available() == MIB


def test_the_limit_at_the_root_of_a_container_counts(tmp_path: Path) -> None:
    assert Machine(tmp_path, "/").meminfo(10**9).limit("", str(3 * MIB), MIB).available() == 2 * MIB


def test_a_group_above_its_limit_has_nothing_left(tmp_path: Path) -> None:
    assert Machine(tmp_path, "/job").meminfo(10**9).limit("job", "100", 200).available() == 0


def test_the_kernel_counts_where_it_has_less_than_the_limit(tmp_path: Path) -> None:
    assert Machine(tmp_path, "/job").meminfo(1024).limit("job", str(99 * MIB), 0).available() == MIB


def test_version_1_groups_are_left_to_the_kernel(tmp_path: Path) -> None:
    assert Machine(tmp_path, "/job", version=1).meminfo(1024).limit("job", "1", 0).available() == MIB


def test_a_system_that_says_nothing_is_unknown(tmp_path: Path) -> None:
    assert available_memory(str(tmp_path / "proc"), str(tmp_path / "cgroup")) is None


def test_this_machine_has_memory() -> None:
    available = available_memory()
    assert available is not None
    assert available > MIB


def test_what_fits_or_cannot_be_known_is_not_refused() -> None:
    check_memory("node1", 1000, 1000, 1.0)
    check_memory("node1", 10**18, None, 1.0)


def refusal(needed: int, available: int, scale: float) -> str:
    with pytest.raises(PreflightError) as error:
        check_memory("node1", needed, available, scale)
    return str(error.value)


def test_a_refusal_names_host_available_needed_and_a_scale() -> None:
    # 0.99 × 0.5 × 1 / 3 = 0.165, rounded down to two digits.
    assert refusal(3 * 10**9, 10**9, 0.5) == (
        "host node1 has 1.000 GB of memory available, but the message buffers of its ranks need 3.000 GB; "
        "--scale 0.16 would fit"
    )


def test_a_host_without_any_memory_left_is_not_offered_a_scale() -> None:
    assert refusal(10**9, 0, 1.0).endswith("; free some, or run fewer ranks on it")


def gpu_refusal(messages: int, operands: int, free: int, scale: float = 1.0, least: int = 0) -> str:
    with pytest.raises(PreflightError) as error:
        check_gpu_memory("rank 3 (nid1, cuda:3): NVIDIA H100", messages, operands, free, scale, least=least)
    return str(error.value)


def test_a_refusal_of_a_gpu_names_the_rank_what_it_needs_and_a_scale() -> None:
    # 512 MiB of 3 GB are left free: 0.99 × 0.5 × 2.463 / 4 = 0.3048, rounded down to two digits.
    assert gpu_refusal(4 * 10**9, 0, 3 * 10**9, 0.5) == (
        "rank 3 (nid1, cuda:3): NVIDIA H100 has 3.000 GB of memory free, 536.9 MB must stay so, and its rank needs "
        "4.000 GB for messages; --scale 0.3 would fit"
    )


def test_the_scale_for_a_gpu_leaves_the_operands_of_its_products_as_they_are() -> None:
    # 2.463 GB are left for 4 GB of messages: 0.99 × 2.463 / 4 = 0.6096.
    assert gpu_refusal(4 * 10**9, 2 * 10**9, 5 * 10**9) == (
        "rank 3 (nid1, cuda:3): NVIDIA H100 has 5.000 GB of memory free, 536.9 MB must stay so, and its rank needs "
        "4.000 GB for messages and 2.000 GB for matrix products; --scale 0.6 would fit"
    )


@pytest.mark.parametrize("free", [2 * 10**9, 2 * 10**9 + GPU_RESERVE])
def test_a_gpu_with_no_memory_beside_operands_and_reserve_is_not_offered_a_scale(free: int) -> None:
    assert gpu_refusal(10**9, 2 * 10**9, free).endswith("; free some")


@pytest.mark.parametrize(("free", "text"), [(0, "0 B"), (12_345, "12.35 kB"), (4_000_000, "4.000 MB")])
def test_a_gpu_that_is_full_says_so_in_a_unit_that_has_digits(free: int, text: str) -> None:
    assert gpu_refusal(2_000_000, 0, free) == (
        f"rank 3 (nid1, cuda:3): NVIDIA H100 has {text} of memory free, 536.9 MB must stay so, and its rank needs "
        "2.000 MB for messages; free some"
    )


def test_a_scale_for_a_gpu_leaves_every_buffer_an_element_that_rounding_may_cost() -> None:
    # 1000 bytes are left, and rounding may take 400 of them: 0.99 × 600 / 10 000 = 0.0594.
    assert gpu_refusal(10_000, 0, 1000 + GPU_RESERVE, least=400).endswith("; --scale 0.059 would fit")
    assert gpu_refusal(10_000, 0, 1000 + GPU_RESERVE, least=1000).endswith("; free some")


def test_no_scale_is_offered_that_cannot_be_asked_for() -> None:
    # 0.99 × 1e-11 × 1 / 20 is below 1e-12.
    assert gpu_refusal(20, 0, 1 + GPU_RESERVE, 1e-11).endswith("; free some")


def test_a_rank_that_keeps_nothing_on_its_gpu_needs_no_reserve() -> None:
    check_gpu_memory("rank 0", 0, 0, 300 * 2**20, 1.0, least=0)


def test_products_alone_are_refused_where_no_scale_would_help() -> None:
    assert gpu_refusal(0, 2 * 10**9, 10**9).endswith("0 B for messages and 2.000 GB for matrix products; free some")


def test_what_fits_a_gpu_beside_the_reserve_is_not_refused() -> None:
    check_gpu_memory("rank 0", 3, 2, 5 + GPU_RESERVE, 1.0, least=0)
    with pytest.raises(PreflightError):
        check_gpu_memory("rank 0", 3, 2, 4 + GPU_RESERVE, 1.0, least=0)


@pytest.mark.parametrize("strategy", ["dp", "fsdp", "dp_pp", "dp_pp_tp", "dp_pp_ep"])
@given(left=st.integers(1, 10**7), scale=st.sampled_from([1.0, 1e-3]))
@settings(max_examples=15, deadline=None)
def test_a_run_on_a_nearly_full_gpu_fits_with_the_scale_that_is_offered(strategy: str, left: int, scale: float) -> None:
    model, gpu = load_model("mixtral-8x7b" if strategy == "dp_pp_ep" else "gpt2-l"), load_gpu("b200")

    def configured(factor: float) -> Configuration:
        return configure(strategy, world_size=8, model=model, gpu=gpu, scale=factor)

    def check(factor: float) -> None:
        needed, least = memory_bytes(configured(factor), 0), memory_bytes(smallest(configured(factor)), 0)
        check_gpu_memory("rank 0", needed, 0, left + GPU_RESERVE, factor, least=least)

    try:
        check(scale)
    except PreflightError as refused:
        if "would fit" in str(refused):
            check(float(suggested(str(refused))))


def suggested(message: str) -> str:
    found = re.search(r"--scale (\S+) would fit", message)
    assert found
    return found[1]


@given(
    available=st.integers(10**6, 10**13),
    excess=st.integers(1, 10**13),
    scale=st.floats(1e-4, 100, allow_subnormal=False),
)
def test_the_suggested_scale_is_rounded_down_and_not_by_much(available: int, excess: int, scale: float) -> None:
    needed = available + excess
    fitting = Fraction(suggested(refusal(needed, available, scale))) / Fraction(scale)
    assert fitting * needed <= available
    assert fitting * needed >= available * Fraction("0.89")


@given(ranks=st.integers(1, 8), available=st.integers(10**8, 10**10), scale=st.floats(0.5, 20))
def test_a_run_with_the_suggested_scale_fits(ranks: int, available: int, scale: float) -> None:
    def needed(factor: float) -> int:
        configuration = configure("dp", world_size=8, model=load_model("vit-h"), gpu=load_gpu("b200"), scale=factor)
        return ranks * memory_bytes(configuration, 0)

    if needed(scale) > available:
        fitting = float(suggested(refusal(needed(scale), available, scale)))
        check_memory("node1", needed(fitting), available, fitting)
