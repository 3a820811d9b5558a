"""The streams of a rank: what it prints, and what libraries print into the same descriptors."""

from __future__ import annotations

import subprocess
import sys

import pytest

RANK = """
import os, sys
from dlbench.runtime.streams import keep_stdout_for_results, prepare_streams, say

prepare_streams()
keep_stdout_for_results()
os.write(1, b"NCCL version 2.23.4\\n")
print("result µ")
sys.stdout.flush()
say("a word")
os.write(1, b"bye\\n")
"""


def printed(shell: str) -> tuple[int, str, str]:
    """Exit code and streams of a rank that a shell starts with `$0 -c "$1"`."""
    command = ["sh", "-c", shell, sys.executable, RANK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def test_what_a_library_prints_goes_to_standard_error_in_the_order_in_which_it_comes() -> None:
    assert printed('"$0" -c "$1"') == (0, "result µ\n", "NCCL version 2.23.4\ndlbench: a word\nbye\n")


@pytest.mark.parametrize(
    ("closed", "out", "err"),
    [
        ("2>&-", "result µ\n", ""),
        ("2>/dev/null", "result µ\n", ""),
        (">/dev/null", "", "NCCL version 2.23.4\ndlbench: a word\nbye\n"),
    ],
)
def test_streams_that_are_closed_or_thrown_away_are_no_trouble(closed: str, out: str, err: str) -> None:
    assert printed(f'"$0" -c "$1" {closed}') == (0, out, err)
