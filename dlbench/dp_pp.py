"""Rank of data and pipeline parallelism: `mpirun -n 64 python -m dlbench.dp_pp`."""

from __future__ import annotations

from dlbench.runtime.entry import main

if __name__ == "__main__":
    main("dp_pp")
