"""Which launcher belongs to which MPI library, and what it is told."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dlbench.errors import PreflightError
from dlbench.slurm import launchers
from dlbench.slurm.launchers import FAMILIES, Allocation, Family, Launch, Library, family_of, find_launcher, plan_launch

FAMILY = {family.name: family for family in FAMILIES}
MPICH = "MPICH Version: 5.0.2 MPICH Release date: Fri Sep 25 20:45:26 UTC 2026"
OPEN_MPI = "Open MPI v5.0.8, package: Open MPI mpi@builder Distribution, ident: 5.0.8"
INTEL = "Intel(R) MPI Library 2021.13 for Linux* OS"
CRAY = "MPI VERSION    : CRAY MPICH version 8.1.30.2 (ANL base 3.4a2)"
MVAPICH = "MVAPICH2 Version      : 2.3.7"
MPICH_VARIABLES = {
    "MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM",
    "MPIR_CVAR_BARRIER_POSIX_INTRA_ALGORITHM",
    "MPIR_CVAR_BCAST_POSIX_INTRA_ALGORITHM",
    "MPIR_CVAR_REDUCE_POSIX_INTRA_ALGORITHM",
}


@pytest.fixture(autouse=True)
def no_launcher_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing on the PATH, no environment of this Python."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))


def executable(path: Path, version: str) -> str:
    """A program that prints its version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)
    return str(path)


def library(tmp_path: Path, version: str, folder: str = "mpi/lib") -> Library:
    return Library(version, tmp_path / folder / "libmpi.so.12")


def allocation(ranks: int = 4, *, crowded: bool = False, loopback: bool = True) -> Allocation:
    return Allocation(ranks=ranks, executable="/opt/bin/mpiexec", crowded=crowded, loopback=loopback)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (MPICH, "MPICH"),
        (OPEN_MPI, "Open MPI"),
        (INTEL, "Intel MPI"),
        (CRAY, "Cray MPICH"),
        (MVAPICH, "MVAPICH"),
        ("MVAPICH Version: 3.0", "MVAPICH"),
    ],
)
def test_a_library_is_known_by_its_version_string(version: str, name: str) -> None:
    assert family_of(Library(version, None)).name == name


def test_an_unknown_library_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PreflightError, match="unknown MPI library 'HAL MPI 9000'; known are .*MPICH.*Open MPI"):
        family_of(Library("HAL MPI 9000", None))


def test_the_library_of_this_python_is_found_where_it_is_loaded_from() -> None:
    found = launchers.loaded_library()
    assert found.path is not None
    assert found.path.is_file()
    assert "libmpi" in found.path.name
    assert family_of(found).name in FAMILY


def test_the_path_of_a_library_may_hold_blanks(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r--p 00000000 08:01 11   /usr/lib/libc.so.6\n7f02-7f03 r-xp 00000000 00:00 0 \n"
        "7f04-7f05 r--p 00000000 08:01 12   /opt/my mpi/lib/libmpi.so.40\n"
    )
    assert launchers._mapped_library(maps) == Path("/opt/my mpi/lib/libmpi.so.40")
    assert launchers._mapped_library(tmp_path / "none") is None


@pytest.mark.parametrize("folder", ["mpi/lib", "mpi/lib64", "mpi/lib/release"])
def test_the_launcher_beside_the_library_is_taken_before_that_on_the_path(tmp_path: Path, folder: str) -> None:
    beside = executable(tmp_path / "mpi/bin/mpiexec", "HYDRA build details: Version: 5.0.2")
    executable(tmp_path / "path/mpiexec", "HYDRA build details: Version: 4.0")
    assert find_launcher(library(tmp_path, MPICH, folder), FAMILY["MPICH"]) == beside


def test_the_launcher_of_the_environment_is_taken_before_that_on_the_path(tmp_path: Path) -> None:
    own = executable(tmp_path / "environment/bin/mpiexec", "mpiexec (Open MPI) 5.0.8")
    executable(tmp_path / "path/mpiexec", "mpiexec (Open MPI) 4.1")
    assert find_launcher(library(tmp_path, OPEN_MPI), FAMILY["Open MPI"]) == own


def test_a_launcher_on_the_path_serves_a_library_without_one(tmp_path: Path) -> None:
    on_path = executable(tmp_path / "path/mpiexec", "Intel(R) MPI Library for Linux* OS, Version 2021.13")
    assert find_launcher(Library(INTEL, None), FAMILY["Intel MPI"]) == on_path


def test_a_foreign_launcher_is_passed_over(tmp_path: Path) -> None:
    executable(tmp_path / "mpi/bin/mpiexec", "mpiexec (Open MPI) 5.0.8")
    hydra = executable(tmp_path / "path/mpiexec", "HYDRA build details: Version: 5.0.2")
    assert find_launcher(library(tmp_path, MPICH), FAMILY["MPICH"]) == hydra


def test_a_foreign_launcher_alone_is_refused(tmp_path: Path) -> None:
    foreign = executable(tmp_path / "path/mpiexec", "mpiexec (Open MPI) 5.0.8")
    with pytest.raises(PreflightError) as error:
        find_launcher(library(tmp_path, MPICH), FAMILY["MPICH"])
    assert "no mpiexec of MPICH" in str(error.value)
    assert f"(found: {foreign}: mpiexec (Open MPI) 5.0.8)" in str(error.value)


def test_no_launcher_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="found: none"):
        find_launcher(library(tmp_path, MPICH), FAMILY["MPICH"])


def test_a_launcher_that_cannot_run_is_no_launcher(tmp_path: Path) -> None:
    broken = tmp_path / "path/mpiexec"
    broken.parent.mkdir()
    broken.write_bytes(b"\x7fELF nothing")
    broken.chmod(0o755)
    with pytest.raises(PreflightError, match=f"found: {broken}: cannot be started: Exec format error"):
        find_launcher(library(tmp_path, MPICH), FAMILY["MPICH"])


def test_mpich_is_told_to_keep_to_its_general_algorithms_only_where_ranks_outnumber_cores() -> None:
    crowded = FAMILY["MPICH"].launch(allocation(crowded=True))
    roomy = FAMILY["MPICH"].launch(allocation())
    assert crowded.command == roomy.command == ["/opt/bin/mpiexec", "-n", "4"]
    assert set(crowded.environment) == MPICH_VARIABLES | {"HYDRA_IFACE"}
    assert roomy.environment == {"HYDRA_IFACE": "lo"}


def test_hydra_keeps_to_the_loopback_only_where_there_is_no_other_host() -> None:
    assert FAMILY["MPICH"].launch(allocation(loopback=False)).environment == {}


def test_open_mpi_may_oversubscribe_only_where_ranks_outnumber_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    crowded = FAMILY["Open MPI"].launch(allocation(crowded=True))
    roomy = FAMILY["Open MPI"].launch(allocation())
    assert crowded.command == ["/opt/bin/mpiexec", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "-n", "4"]
    assert crowded.environment == {"OMPI_MCA_mpi_yield_when_idle": "1"}
    assert (roomy.command, roomy.environment) == (["/opt/bin/mpiexec", "-n", "4"], {})


def test_open_mpi_as_root_is_allowed_by_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert FAMILY["Open MPI"].launch(allocation()).environment == {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


@pytest.mark.parametrize(
    ("name", "pmi"),
    [("MPICH", "pmi2"), ("Open MPI", "pmix"), ("Intel MPI", "pmi2"), ("Cray MPICH", "cray_shasta")],
)
def test_srun_gets_the_pmi_of_the_library(name: str, pmi: str) -> None:
    assert launchers.srun(8, FAMILY[name]).command == ["srun", f"--mpi={pmi}", "-K1", "-n", "8"]


class Here:
    """A machine with a library, its launcher and two cores."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, signature: str) -> None:
        self.mpiexec = executable(tmp_path / "mpi/bin/mpiexec", signature)
        monkeypatch.setattr(launchers, "loaded_library", lambda: library(tmp_path, version))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
        self.loopback = tmp_path / "lo"
        self.loopback.touch()
        monkeypatch.setattr(launchers, "_LOOPBACK", self.loopback)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    return Here(tmp_path, monkeypatch, MPICH, "HYDRA build details")


@pytest.mark.parametrize(
    ("ranks", "environment", "crowded"),
    [
        (2, {}, False),
        (3, {}, True),
        (4, {"SLURM_JOB_NUM_NODES": "2"}, False),
        (5, {"SLURM_JOB_NUM_NODES": "2"}, True),
        (99, {"PBS_NODEFILE": "/var/spool/nodes"}, False),
        (3, {"SLURM_JOB_NUM_NODES": "²"}, True),
    ],
)
def test_ranks_outnumber_cores_by_the_cores_of_all_hosts(
    here: Here, ranks: int, environment: dict[str, str], crowded: bool
) -> None:
    launch = plan_launch("auto", ranks, environment)
    assert launch.command == [here.mpiexec, "-n", str(ranks)]
    assert (set(launch.environment) >= MPICH_VARIABLES) == crowded


@pytest.mark.parametrize(
    ("environment", "one_host"),
    [
        ({}, True),
        ({"SLURM_JOB_NUM_NODES": "1"}, True),
        ({"SLURM_JOB_NUM_NODES": "2"}, False),
        ({"PBS_NODEFILE": "/var/spool/nodes"}, False),
        ({"HYDRA_HOST_FILE": "hosts"}, False),
    ],
)
def test_several_hosts_are_recognised_by_the_allocation(
    here: Here, environment: dict[str, str], one_host: bool
) -> None:
    assert ("HYDRA_IFACE" in plan_launch("auto", 1, environment).environment) == one_host


@pytest.mark.parametrize("arguments", [["-hosts", "a,b"], ["-f", "hosts"]])
def test_the_users_own_arguments_for_the_launcher_may_name_other_hosts(here: Here, arguments: list[str]) -> None:
    assert plan_launch("auto", 99, {}, arguments) == Launch([here.mpiexec, "-n", "99"], {})
    assert plan_launch("auto", 99, {"SLURM_JOB_NUM_NODES": "2"}, arguments).environment == {}


def test_a_machine_without_the_interface_lo_is_not_told_to_use_it(here: Here) -> None:
    assert plan_launch("auto", 1, {}).environment == {"HYDRA_IFACE": "lo"}
    here.loopback.unlink()
    assert plan_launch("auto", 1, {}).environment == {}


def test_srun_can_be_asked_for(here: Here) -> None:
    assert plan_launch("srun", 4, {}).command[:2] == ["srun", "--mpi=pmi2"]


def test_cray_mpich_has_no_mpiexec_and_is_started_by_srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Here(tmp_path, monkeypatch, CRAY, "HYDRA build details")
    assert plan_launch("auto", 4, {}).command == ["srun", "--mpi=cray_shasta", "-K1", "-n", "4"]


def test_a_launcher_can_be_named_by_its_path(here: Here, tmp_path: Path) -> None:
    other = executable(tmp_path / "other/mpirun", "HYDRA build details")
    assert plan_launch(other, 2, {}).command == [other, "-n", "2"]


def test_a_named_launcher_that_is_not_there_is_refused(here: Here) -> None:
    with pytest.raises(PreflightError, match="--launcher jsrun: no such program"):
        plan_launch("jsrun", 2, {})


def test_a_named_launcher_of_another_mpi_is_refused(here: Here, tmp_path: Path) -> None:
    foreign = executable(tmp_path / "other/mpirun", "mpirun (Open MPI) 5.0.8")
    with pytest.raises(PreflightError, match="does not belong to MPICH, which mpi4py loads"):
        plan_launch(foreign, 2, {})


def test_every_family_has_a_mark_of_its_own() -> None:
    assert len({family.library_mark for family in FAMILIES}) == len(FAMILIES)
    assert all(isinstance(family, Family) and family.pmi for family in FAMILIES)
