"""Specs of one's own, as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml


@pytest.fixture
def gpu_fields() -> dict[str, Any]:
    """Content of a valid GPU file."""
    return {
        "name": "mine",
        "vendor": "nobody",
        "peak_flops": {"bf16": 1.0e12},
        "memory_bandwidth": 1.0e9,
        "memory_bytes": 10**9,
        "source": {"peak_flops": "guess", "memory_bandwidth": "guess", "memory_bytes": "guess"},
    }


@pytest.fixture
def write_yaml() -> Callable[[Path, object], None]:
    """Write a value as a YAML file."""

    def write(path: Path, content: object) -> None:
        path.write_text(yaml.safe_dump(content))

    return write
