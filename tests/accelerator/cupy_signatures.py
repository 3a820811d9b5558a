"""The signatures of every call of CuPy that dlbench makes, as CuPy 14.2 tells them."""

from __future__ import annotations

GEMM_EX = (
    "gemmEx(intptr_t handle, int transa, int transb, int m, int n, int k, size_t alpha, size_t A, int Atype, int lda, "
    "size_t B, int Btype, int ldb, size_t beta, size_t C, int Ctype, int ldc, int computeType, int algo)"
)

DOCUMENTED = {
    "cupy.cuda.nccl.NcclCommunicator": "NcclCommunicator(int ndev, bytes commId, int rank, NcclConfig config=None)",
    "cupy.cuda.nccl.NcclCommunicator.allReduce": (
        "NcclCommunicator.allReduce(self, intptr_t sendbuf, intptr_t recvbuf, size_t count, int datatype, int op, "
        "intptr_t stream)"
    ),
    "cupy.cuda.nccl.NcclCommunicator.reduceScatter": (
        "NcclCommunicator.reduceScatter(self, intptr_t sendbuf, intptr_t recvbuf, size_t recvcount, int datatype, "
        "int op, intptr_t stream)"
    ),
    "cupy.cuda.nccl.NcclCommunicator.allGather": (
        "NcclCommunicator.allGather(self, intptr_t sendbuf, intptr_t recvbuf, size_t count, int datatype, "
        "intptr_t stream)"
    ),
    "cupy.cuda.nccl.NcclCommunicator.send": (
        "NcclCommunicator.send(self, intptr_t sendbuf, size_t count, int datatype, int peer, intptr_t stream)"
    ),
    "cupy.cuda.nccl.NcclCommunicator.recv": (
        "NcclCommunicator.recv(self, intptr_t recvbuf, size_t count, int datatype, int peer, intptr_t stream)"
    ),
    "cupy.cuda.nccl.NcclCommunicator.commSplit": (
        "NcclCommunicator.commSplit(self, int color, int key, NcclConfig config=None)"
    ),
    "cupy.cuda.nccl.NcclCommunicator.check_async_error": "NcclCommunicator.check_async_error(self)",
    "cupy.cuda.nccl.NcclCommunicator.abort": "NcclCommunicator.abort(self)",
    "cupy.cuda.nccl.NcclCommunicator.destroy": "NcclCommunicator.destroy(self)",
    "cupy.cuda.nccl.groupStart": "groupStart()",
    "cupy.cuda.nccl.groupEnd": "groupEnd()",
    "cupy.cuda.nccl.get_unique_id": "get_unique_id()",
    "cupy.cuda.nccl.get_version": "get_version()",
    "cupy.cuda.nccl.get_build_version": "get_build_version()",
    "cupy.cuda.runtime.getDeviceCount": "getDeviceCount() -> int",
    "cupy.cuda.runtime.getDeviceProperties": "getDeviceProperties(int device)",
    "cupy.cuda.runtime.deviceGetPCIBusId": "deviceGetPCIBusId(int device) -> str",
    "cupy.cuda.runtime.deviceGetAttribute": "deviceGetAttribute(int attrib, int device) -> int",
    "cupy.cuda.runtime.driverGetVersion": "driverGetVersion() -> int",
    "cupy.cuda.runtime.runtimeGetVersion": "runtimeGetVersion() -> int",
    "cupy.cuda.runtime.memGetInfo": "memGetInfo()",
    "cupy.cuda.runtime.memcpy": "memcpy(intptr_t dst, intptr_t src, size_t size, int kind)",
    "cupy.cuda.runtime.memcpyAsync": (
        "memcpyAsync(intptr_t dst, intptr_t src, size_t size, int kind, intptr_t stream)"
    ),
    "cupy.cuda.runtime.streamSynchronize": "streamSynchronize(intptr_t stream)",
    "cupy.cuda.runtime.eventQuery": "eventQuery(intptr_t event)",
    "cupy.cuda.runtime.CUDARuntimeError.__init__": "CUDARuntimeError.__init__(self, status)",
    "cupy.cuda.Device": "Device(device=None)",
    "cupy.cuda.Device.use": "Device.use(self)",
    "cupy.cuda.Memory": "Memory(size_t size)",
    "cupy.cuda.get_elapsed_time": "get_elapsed_time(start_event, end_event)",
    "cupy.cuda.nvrtc.getVersion": "getVersion() -> tuple",
    "cupy.RawKernel": (
        "RawKernel(str code, str name, tuple options=(), str backend='nvrtc', bool translate_cucomplex=False, *, "
        "bool enable_cooperative_groups=False, jitify=None)"
    ),
    "cupy.RawKernel.__call__": "RawKernel.__call__(self, grid, block, args, **kwargs)",
    "cupy.RawKernel.compile": "RawKernel.compile(self, log_stream=None)",
}
"""First lines of docstrings: what compiled functions tell of themselves."""

INSPECTED = {
    "cupy.cuda.Stream": "(null=False, non_blocking=False, ptds=False, priority=None)",
    "cupy.cuda.Stream.use": "(self)",
    "cupy.cuda.Stream.synchronize": "(self)",
    "cupy.cuda.Event": "(block=False, disable_timing=False, interprocess=False)",
    "cupy.cuda.Event.record": "(self, stream=None)",
    "cupy.cuda.Event.synchronize": "(self)",
}
"""What `inspect` tells of functions in Python."""

CONSTANTS = {
    "cupy.cuda.runtime.memcpyHostToDevice": 1,
    "cupy.cuda.runtime.memcpyDeviceToHost": 2,
    "cupy.cuda.runtime.memcpyDeviceToDevice": 3,
    "cupy.cuda.nccl.NCCL_UINT8": 1,
    "cupy.cuda.nccl.NCCL_FLOAT16": 6,
    "cupy.cuda.nccl.NCCL_FLOAT32": 7,
    "cupy.cuda.nccl.NCCL_FLOAT64": 8,
    "cupy.cuda.nccl.NCCL_BFLOAT16": 9,
    "cupy.cuda.nccl.NCCL_SUM": 0,
}
