"""Typed descriptions of models, GPUs and systems, and their YAML files.

"Raffi et al., SC26" as a source is "Characterizing the Scalability and Performance of Large-Scale AI Training Under
Multi-Tenancy".
"""

from dlbench.specs.dtypes import DTYPE_BYTES, MESSAGE_DTYPES
from dlbench.specs.gpu import GpuSpec
from dlbench.specs.load import gpu_names, load_gpu, load_model, load_system, model_names, system_names
from dlbench.specs.model import ModelSpec
from dlbench.specs.system import SystemSpec

__all__ = [
    "DTYPE_BYTES",
    "MESSAGE_DTYPES",
    "GpuSpec",
    "ModelSpec",
    "SystemSpec",
    "gpu_names",
    "load_gpu",
    "load_model",
    "load_system",
    "model_names",
    "system_names",
]
