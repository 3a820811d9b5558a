"""SLURM and its PMI, from what its commands print or fail to print."""

from __future__ import annotations

import asyncio
from importlib.metadata import PackageNotFoundError
from typing import NoReturn

import pytest

from dlbench.doctor import site
from dlbench.doctor.finding import Finding
from dlbench.doctor.isolation import Ended

ABSENT = Ended("", "", "is not on the PATH", absent=True)
NO_CONFIGURATION = Ended("", "sinfo: fatal: Could not establish a configuration source\n", "ends with exit code 1")
UP = Ended("Slurmctld(primary) at head is UP\n", "", "")
VERSION = Ended("slurm-wlm 22.05.8\n", "", "")
PARTITIONS = Ended("boost*\nlong\nboost*\n", "", "")
MPICH = Finding(state="ok", found="MPICH 5.0.2", facts={"family": "MPICH"})
OPEN_MPI = Finding(state="ok", found="Open MPI 5.0.11", facts={"family": "Open MPI"})
NO_MPI = Finding(state="missing", found="mpi4py finds none")
OF_22_05 = (
    "MPI plugin types are...\n\tpmix\n\tnone\n\tcray_shasta\n\tpmi2\nspecific pmix plugin versions available: pmix_v4\n"
)
OF_20_02 = "srun: MPI types are...\nsrun: none\nsrun: pmi2\nsrun: pmix\n"
OF_17_02 = "srun: MPI types are...\nsrun: mpi/none\nsrun: mpi/pmi2\n"


class Cluster:
    """Commands of SLURM that print what a test says."""

    def __init__(
        self, *, version: Ended = VERSION, ping: Ended = UP, partitions: Ended = PARTITIONS, pmi: Ended = ABSENT
    ) -> None:
        self.environment: dict[str, str] = {}
        self._answers = {
            "sinfo --version": version,
            "scontrol ping": ping,
            "sinfo -h -o %P": partitions,
            "srun --mpi=list": pmi,
        }

    async def command(self, *words: str) -> Ended:
        return self._answers[" ".join(words)]

    async def probe(self, name: str, *arguments: str) -> NoReturn:
        raise AssertionError(f"{name} {arguments}")


def slurm(**answers: Ended) -> Finding:
    return asyncio.run(site.slurm(Cluster(**answers)))


def pmi(mpi: Finding, listed: Ended | str, **environment: str) -> Finding:
    cluster = Cluster(pmi=Ended(listed, "", "") if isinstance(listed, str) else listed)
    cluster.environment = environment
    return asyncio.run(site.pmi(cluster, mpi))


def test_a_cluster_has_a_version_a_controller_and_partitions() -> None:
    found = slurm()
    assert (found.state, found.found) == ("ok", "22.05.8, Slurmctld(primary) at head is UP, 2 partitions")
    assert found.facts == {
        "version": "22.05.8",
        "controller": "Slurmctld(primary) at head is UP",
        "partitions": ["boost", "long"],
    }


def test_a_machine_without_slurm_lacks_it() -> None:
    found = slurm(version=ABSENT, ping=ABSENT, partitions=ABSENT)
    assert (found.state, found.found) == ("missing", "no sinfo on the PATH")
    assert "--system local" in found.remedy


def test_commands_without_a_configuration_are_told_from_a_cluster() -> None:
    found = slurm(version=NO_CONFIGURATION, ping=NO_CONFIGURATION, partitions=NO_CONFIGURATION)
    assert found.state == "broken"
    assert found.found == (
        "its commands, but no controller: scontrol ends with exit code 1: Could not establish a configuration source"
    )
    assert "SLURM_CONF" in found.remedy


@pytest.mark.parametrize(
    ("ping", "why"),
    [
        (
            Ended("Slurmctld(primary) at head is DOWN\n", "", "ends with exit code 1"),
            "scontrol ends with exit code 1: Slurmctld(primary) at head is DOWN",
        ),
        (Ended("", "", "gives no answer within 10 s"), "scontrol gives no answer within 10 s"),
        (Ended("\x00\x01garbage\n", "", ""), "scontrol names none that is up"),
        (ABSENT, "scontrol is not on the PATH"),
    ],
)
def test_a_controller_that_is_not_up_is_named_with_the_reason(ping: Ended, why: str) -> None:
    found = slurm(ping=ping)
    assert (found.state, found.found) == ("broken", f"22.05.8, but no controller: {why}")


def test_the_second_controller_serves_where_the_first_is_down() -> None:
    both = "Slurmctld(primary) at head1 is DOWN\nSlurmctld(backup1) at head2 is UP\n"
    assert slurm(ping=Ended(both, "", "")).facts["controller"] == "Slurmctld(backup1) at head2 is UP"


def test_a_cluster_without_partitions_serves_nobody() -> None:
    found = slurm(partitions=Ended("", "", ""))
    assert found.state == "broken"
    assert found.found.endswith("but sinfo shows no partition")


@pytest.mark.parametrize(
    ("text", "types"),
    [
        (OF_22_05, ["pmix", "none", "cray_shasta", "pmi2", "pmix_v4"]),
        (OF_20_02, ["none", "pmi2", "pmix"]),
        (OF_17_02, ["none", "pmi2"]),
        (f"srun: loaded\n{OF_20_02}", ["none", "pmi2", "pmix"]),
        ("\x00\xff", []),
        ("k, i, w, b, o\n", []),
        ("pmi2\npmix\n", []),
        ("these types are...\npmix\n", []),
        ("", []),
    ],
)
def test_types_are_read_as_every_version_of_srun_prints_them(text: str, types: list[str]) -> None:
    assert site.mpi_types(text) == types


def test_srun_must_offer_what_the_library_needs() -> None:
    good = pmi(MPICH, OF_22_05)
    assert good.state == "ok"
    assert good.found == "srun offers pmix, none, cray_shasta, pmi2, pmix_v4; MPICH needs pmi2"
    bad = pmi(OPEN_MPI, OF_17_02)
    assert (bad.state, bad.found) == ("broken", "srun offers none, pmi2; Open MPI needs pmix")
    assert bad.remedy == "start ranks with mpiexec, or have SLURM's plugin mpi_pmix installed"
    assert bad.facts["needed"] == "pmix"


def test_a_numbered_plugin_serves_for_the_type_without_number() -> None:
    assert pmi(OPEN_MPI, "MPI plugin types are...\n\tnone\n\tpmix_v3\n").state == "ok"
    assert pmi(MPICH, "MPI plugin types are...\n\tnone\n\tpmi2x\n").state == "broken"


def test_an_old_srun_lists_on_standard_error() -> None:
    assert pmi(MPICH, Ended("", OF_20_02, "")).facts["offered"] == ["none", "pmi2", "pmix"]


def test_without_srun_mpiexec_does_it() -> None:
    found = pmi(MPICH, ABSENT)
    assert (found.state, found.found) == ("unknown", "no srun; mpiexec connects its ranks itself")


def test_an_srun_that_fails_is_broken() -> None:
    found = pmi(MPICH, NO_CONFIGURATION)
    assert found.state == "broken"
    assert found.found == "srun --mpi=list ends with exit code 1: Could not establish a configuration source"
    assert found.facts["offered"] == []
    assert found.remedy == "start ranks with mpiexec; srun can do it once 'srun --mpi=list' lists pmi2"
    assert pmi(MPICH, "").found == "srun --mpi=list lists nothing"
    assert pmi(MPICH, "").remedy == found.remedy
    assert pmi(MPICH, "k, i, w\n").found == "srun --mpi=list says nothing that dlbench understands"


def test_without_a_library_nothing_is_needed_of_srun() -> None:
    found = pmi(NO_MPI, OF_20_02)
    assert (found.state, found.found) == ("ok", "srun offers none, pmi2, pmix")


def test_what_a_launcher_has_set_is_told() -> None:
    found = pmi(MPICH, OF_20_02, PMI_SIZE="4", PMI_RANK="1")
    assert found.note == "started by PMI as rank 1 of 4, PMI_RANK=1, PMI_SIZE=4"
    assert pmi(MPICH, ABSENT, PMI_SIZE="4", PMI_RANK="1").note == found.note
    assert pmi(MPICH, OF_20_02, SLURM_NTASKS="8").note == "in a SLURM job of 8 tasks"
    assert pmi(MPICH, OF_20_02, PMIX_NAMESPACE="job.3").note == "PMIX_NAMESPACE=job.3"
    assert pmi(MPICH, OF_20_02).note == ""


def test_mpi4py_is_looked_up_and_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "version", lambda _: "4.0.1")
    assert site.mpi4py() == Finding(state="ok", found="4.0.1", facts={"version": "4.0.1"})

    def none(package: str) -> NoReturn:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(site, "version", none)
    assert site.mpi4py() == Finding(state="missing", found="not installed", remedy="pip install mpi4py")
