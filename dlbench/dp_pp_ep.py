"""Rank of data, pipeline and expert parallelism: `mpirun -n 64 python -m dlbench.dp_pp_ep`."""

from __future__ import annotations

from dlbench.runtime.entry import main

if __name__ == "__main__":
    main("dp_pp_ep")
