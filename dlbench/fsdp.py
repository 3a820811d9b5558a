"""Rank of fully sharded data parallelism: `mpirun -n 64 python -m dlbench.fsdp`."""

from __future__ import annotations

from dlbench.runtime.entry import main

if __name__ == "__main__":
    main("fsdp")
