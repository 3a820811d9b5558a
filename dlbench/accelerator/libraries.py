"""Libraries of a GPU that can hang while they are loaded or started: here Python's other threads go on meanwhile.

`ctypes.CDLL` and `import` keep Python's lock while a library's constructors run, and CuPy keeps it while a driver
starts, so that neither the watchdog nor signals would get their turn. A function that ctypes calls does not keep it. So
the loader itself is called in that way, and the driver started, before anybody asks for what is then there already.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

CUDA = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"
_CUPY_RUNTIME = "cupy_backends.cuda.api.runtime"

Load = Callable[[str], Any]
"""Loads a library by its name or path; raises `OSError` where that cannot be."""


def load(name: str) -> ctypes.CDLL:
    """The library of this name or path, as `ctypes.CDLL` gives it. Raises `OSError` where it does not load."""
    loader = ctypes.CDLL(None)
    loader.dlopen.restype = ctypes.c_void_p
    loader.dlerror.restype = ctypes.c_char_p
    handle = loader.dlopen(os.fsencode(name), os.RTLD_NOW)
    if not handle:
        raise OSError((loader.dlerror() or name.encode()).decode(errors="replace"))
    return ctypes.CDLL(name, handle=handle)


def start_driver(load: Load = load) -> None:
    """Start the driver, NVIDIA's or AMD's. Never raises: what is wrong with it is found, and said, when CuPy uses it.

    AMD's runtime is loaded with CuPy's own extension, whose file says which version of it.
    """
    with suppress(OSError, AttributeError):
        load(CUDA).cuInit(0)
        return
    with suppress(OSError, AttributeError, ImportError, ValueError):
        extension = find_spec(_CUPY_RUNTIME)
        if extension and extension.origin:
            load(extension.origin).hipInit(0)


def retain_cuda(index: int, load: Load = load) -> ctypes.c_void_p | None:
    """The primary context of a GPU of the started driver, which CUDA's runtime and so CuPy use too; kept to the end.

    None where there is no such driver or GPU, or where it refuses.
    """
    device, context = ctypes.c_int(), ctypes.c_void_p()
    with suppress(OSError, AttributeError):  # no driver, or one without these functions
        cuda = load(CUDA)
        if cuda.cuDeviceGet(ctypes.byref(device), index) == 0:
            refused = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
            return None if refused else context
    return None
