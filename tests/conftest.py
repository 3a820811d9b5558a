"""Fixtures of all tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from launch import IMPLEMENTATIONS, Mpi, find_mpi, scratch, scratch_variables
from stand_in import StandIn, compile_stand_in, without_cupy

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("dlbench", deadline=None)
settings.load_profile("dlbench")


@pytest.fixture(scope="session", params=IMPLEMENTATIONS)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    """Each MPI implementation found; a missing one is a skip, and with `DLBENCH_REQUIRE_MPI=1` a failure."""
    found = find_mpi(request.param)
    if isinstance(found, Mpi):
        return found
    if os.environ.get("DLBENCH_REQUIRE_MPI") == "1":
        pytest.fail(found)
    pytest.skip(found)


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    """The stand-in for NCCL; a skip where cc or CuPy is missing."""
    compiled = compile_stand_in(tmp_path_factory.mktemp("stand_in"))
    return compiled if isinstance(compiled, StandIn) else pytest.skip(compiled)


@pytest.fixture
def cupy_mpi(mpi: Mpi) -> Mpi:
    """Each MPI implementation whose Python has CuPy."""
    return pytest.skip(reason) if (reason := without_cupy(mpi)) else mpi


def pytest_configure(config: pytest.Config) -> None:
    """Launchers that the product starts leave nothing on the host either, nor meet what others left there."""
    directory = scratch("dlbench-tests-")
    config.add_cleanup(directory.cleanup)
    os.environ.update(scratch_variables(directory.name))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses the fixture `mpi` or `testbed`.

    The former keep the cores busy: they run after the others unless they are `patient`, and one at a time where they
    are `alone`. The latter mostly wait: they run beside the others, all in one process, since there is one cluster, and
    from the start, since they take longest.
    """
    for item in items:
        for fixture, marker in (("mpi", "mpi"), ("testbed", "slurm")):
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(marker)
        if item.get_closest_marker("slurm"):
            item.add_marker(pytest.mark.xdist_group("slurm"))
    items.sort(key=lambda item: [item.get_closest_marker(marker) is None for marker in ("slurm", "patient")])
