"""dlbench: how distributed AI training behaves on real machines, alone, at scale and beside other jobs."""

__version__ = "0.1.0"
