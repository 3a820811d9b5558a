"""The row of numbers in which a rank hands in an iteration."""

from __future__ import annotations

BEGIN, RUNTIME, LATE, SIGNAL = range(4)
"""First columns: global begin in seconds, runtime in seconds, late for the window, stop signal."""
FIXED_COLUMNS = 4


def columns(classes: int, ops: int = 0) -> int:
    """Numbers in a row: the fixed columns, compute, issue, each class, and enter and leave of every recorded op."""
    return FIXED_COLUMNS + 2 + classes + 2 * ops
