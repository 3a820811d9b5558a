"""Rank of the preflight: `mpirun -n 64 python -m dlbench.preflight`."""

from __future__ import annotations

from dlbench.runtime.entry import main

if __name__ == "__main__":
    main("preflight")
