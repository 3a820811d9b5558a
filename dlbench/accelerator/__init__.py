"""GPUs, as far as a rank drives one: a small protocol, and CuPy, cuBLAS, NVML behind it.

Nothing else in dlbench imports CuPy, but for the collectives of `cupy.cuda.nccl`, which the communicator calls as they
are. Nothing here is loaded by a run on CPUs.
"""
