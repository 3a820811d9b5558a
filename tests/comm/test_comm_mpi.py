"""Communication over a real MPI: what arrives is what was sent, and nothing else is touched."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import Mpi
from stand_in import IMPORTS

HERE = Path(__file__).parent

REFUSED_PERSISTENCE = """
from dlbench.comm.library import MPI
from dlbench.comm.mpi import PersistentMpiCommunicator
from dlbench.errors import PreflightError


class OldLibrary(MPI.Intracomm):
    def Allreduce_init(self, *_):
        raise NotImplementedError


world = PersistentMpiCommunicator(OldLibrary(MPI.COMM_WORLD))
buffer, other = world.allocate(4, "fp32"), world.allocate(4, "fp32")
try:
    world.iallreduce(buffer, other)
except PreflightError as error:
    print(error)
"""

NO_MEMORY = """
from dlbench.comm.library import MPI
from dlbench.comm.variants import mpi_communicator
from dlbench.errors import PreflightError

try:
    mpi_communicator(MPI.COMM_WORLD).allocate(2**52, "fp32")
except PreflightError as error:
    print(error)
"""


def available_gigabytes() -> float:
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(meminfo["MemAvailable"].split()[0]) / 1e6


@pytest.mark.patient
@pytest.mark.parametrize("variant", ["plain", "persistent", "pieces", "gpu", "persistent gpu"])
def test_every_operation_delivers_its_payload_in_every_dtype_on_groups_of_1_to_4(mpi: Mpi, variant: str) -> None:
    stdout = mpi.run_ranks(HERE / "collective_ranks.py", 4, variant, env=IMPORTS, timeout=120).stdout

    assert stdout.count("verified") == 4


def test_values_guard_errors_groups_and_description_are_as_promised(mpi: Mpi) -> None:
    mpi.run_ranks(HERE / "behaviour_ranks.py", 2)


@pytest.mark.large
@pytest.mark.alone
def test_counts_beyond_two_to_the_31_arrive_or_are_refused(mpi: Mpi) -> None:
    if available_gigabytes() < 12:
        pytest.skip(f"needs 12 GB of memory, {available_gigabytes():.1f} GB are available")

    mpi.run_ranks(HERE / "large_ranks.py", 2, timeout=300)


def test_a_library_without_persistent_collectives_is_named_with_the_option_to_leave_out(mpi: Mpi) -> None:
    stdout = mpi.run_ranks(REFUSED_PERSISTENCE, 1).stdout

    assert "refuses the persistent collective MPI_Allreduce_init" in stdout
    assert "leave --persistent out" in stdout


def test_a_buffer_beyond_the_memory_is_refused_with_its_size_and_the_option_that_shrinks_it(mpi: Mpi) -> None:
    stdout = mpi.run_ranks(NO_MEMORY, 1).stdout

    assert stdout.startswith("no memory for a buffer of 4503599627370496 fp32 elements (16777216.0 GiB)")
    assert "--scale" in stdout
