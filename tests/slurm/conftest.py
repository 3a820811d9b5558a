"""A SLURM cluster of virtual nodes for the tests of this folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed import Testbed, missing


@pytest.fixture(scope="session")
def testbed() -> Iterator[Testbed]:
    """The cluster; where it cannot be brought up the test is skipped, and with `DLBENCH_REQUIRE_SLURM=1` fails."""
    if reason := missing():
        if os.environ.get("DLBENCH_REQUIRE_SLURM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="dlbench-slurm-", dir="/tmp"))
    try:
        with Testbed(folder) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(testbed: Testbed) -> Iterator[Testbed]:
    """The cluster with all nodes idle, before and after the test."""
    testbed.clear()
    yield testbed
    testbed.clear()
