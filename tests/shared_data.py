"""Real outputs of real machines, which lie beside a checkout and not in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[2] / "shared" / "data"


def shared_file(name: str) -> Path:
    """The file `name` of the folder `DLBENCH_SHARED_DATA`, by default ../shared/data; or a skip of the test."""
    path = Path(os.environ.get("DLBENCH_SHARED_DATA", BESIDE)) / name
    if not path.exists():
        pytest.skip(f"{path} is not there; DLBENCH_SHARED_DATA names the folder of the shared data")
    return path
