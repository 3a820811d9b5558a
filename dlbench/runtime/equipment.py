"""What a rank runs with: its GPU where it drives one, its computation, and a communicator for every scope."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from dlbench import compute
from dlbench.comm import variants
from dlbench.comm.library import MPI
from dlbench.compute.none import NoCompute
from dlbench.roofline import Phase
from dlbench.runtime.agreement import agree
from dlbench.runtime.connections import first_messages
from dlbench.runtime.energy import EnergyReader, agreed_source
from dlbench.runtime.executor import Executor
from dlbench.runtime.hosts import Host
from dlbench.runtime.preflight import check_gpu_memory, launcher_claim
from dlbench.runtime.request import RunRequest
from dlbench.runtime.situation import Situation
from dlbench.strategies import Configuration
from dlbench.strategies.messages import memory_bytes, message_table, smallest
from dlbench.strategies.ops import COMMUNICATIONS, Communication, Compute, Op, Recv, Scope, Send, operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dlbench.accelerator.protocol import DriverLoader, Stream
    from dlbench.comm.protocol import Communicator
    from dlbench.compute.protocol import Compute as ComputeModel
    from dlbench.records.schema import Backend
    from dlbench.runtime.devices import Gpu, Place


_NCCL_SECONDS = 10.0
"""How long a rank on which NCCL fails to make a communicator gives the others: where it is the only one, they wait for
it in NCCL."""


class Equipment:
    """GPU, computation and communicators of one rank. Everything is collective, and raises like `agree`.

    `driver` takes the place of CuPy as the way to the GPUs.
    """

    compute: ComputeModel
    world: Communicator[Any, Any]
    communicators: dict[Scope, Communicator[Any, Any]]

    def __init__(  # noqa: PLR0913 - what a rank knows of its run and its place
        self,
        comm: MPI.Intracomm,
        request: RunRequest,
        configuration: Configuration,
        *,
        host: Host,
        situation: Situation,
        driver: DriverLoader | None,
    ) -> None:
        self.places: list[Place] = []
        """The GPUs of all ranks, on rank 0; empty where the ranks drive none."""
        self.energy = EnergyReader(None)
        self.energy_source: str | None = None
        """Where joules come from, the same on all ranks; None where no GPU tells them."""
        self._comm = comm
        self._options = request.run
        self._configuration = configuration
        self._host = host
        self._situation = situation
        self._driver = driver
        self._gpu: Gpu | None = None
        self._stream: Stream | None = None
        """What the GPU computes on."""
        self._opened = ExitStack()

    def prepare(self) -> None:
        """Open the GPU if the run needs one, make the computation, and check the memory of the host."""
        if self._options.uses_gpu:
            self._open_gpu()
        self._situation.enter("checking the memory")
        self.compute = self._opened.enter_context(closing(agree(self._comm, self._make_compute)))
        agree(self._comm, self._check_memory)

    def connect(self) -> None:
        """Make the communicators, and check the memory of the GPU, of which they have then taken their part."""
        self._situation.enter("splitting communicators")
        self.world = self._opened.enter_context(closing(self._make_world()))
        self.communicators = {}
        for scope in self._configuration.scopes():
            self.communicators[scope] = group = self._split(scope)
            if not self._is_world(scope):
                self._opened.enter_context(closing(group))
        if self._options.backend == "nccl":
            self._exchange_first_messages()
        agree(self._comm, self._check_gpu_memory)

    def progress(self) -> Callable[[], None] | None:
        """What drives the requests in flight during a phase of computation; None where nothing needs to."""
        asked = self._options.progress == "poll" and self.world.needs_progress
        return self.world.progress if asked else None

    def remarks(self) -> list[str]:
        """What is not carried out quite as the header describes it."""
        largest = max((row.elements for row in message_table(self._configuration)), default=0)
        remarks = [*self.world.remarks(largest), *self.compute.remarks(self._phases())]
        if self.places:
            from dlbench.runtime.devices import place_remarks  # noqa: PLC0415 - on GPUs only

            remarks += place_remarks(self.places)
        return remarks

    def backend(self) -> Backend:
        """What carries the messages, for the record."""
        from dlbench.records.schema import Backend  # noqa: PLC0415 - rank 0 only

        claim = launcher_claim(os.environ, self._comm.size)
        described = self.world.describe()
        return Backend(
            name=described["name"],
            library=described["library"],
            carrier=described[self._configuration.workload.dtype],
            persistent=self._options.persistent,
            launcher=claim.launcher if claim else "",
        )

    def close(self) -> None:
        """Close everything in the reverse order, children before parents; no request may be in flight."""
        self._opened.close()

    def _open_gpu(self) -> None:
        from dlbench.runtime.devices import join_gpus  # noqa: PLC0415 - on GPUs only

        self._situation.enter("opening the GPU")
        nccl = self._options.backend == "nccl"
        self._gpu, self.places = join_gpus(self._comm, self._host, self._driver, nccl=nccl)
        self._stream = self._gpu.device.stream()
        facts = self._gpu.device.facts
        self._situation.device = facts.label
        self.energy = self._opened.enter_context(closing(EnergyReader(self._gpu.driver.meter(facts))))
        self.energy_source = agreed_source(self._comm, self.energy.source)

    def _make_compute(self) -> ComputeModel:
        return compute.create(
            self._options.compute,
            ranks_per_core=self._host.ranks_per_core,
            seed=self._options.seed,
            device=self._gpu.device if self._gpu else None,
            stream=self._stream,
            precision=self._options.gemm_precision,
            dtype=self._configuration.workload.dtype,
        )

    def _make_world(self) -> Communicator[Any, Any]:
        nccl = self._gpu.driver.nccl() if self._gpu and self._options.backend == "nccl" else None

        def make() -> Communicator[Any, Any]:
            return variants.create(
                self._comm,
                backend=self._options.backend,
                buffers=self._options.buffers,
                persistent=self._options.persistent,
                device=self._gpu.device if self._gpu else None,
                nccl=nccl,
                stream=self._stream,
                calls={_call(op) for op in self._ops() if isinstance(op, COMMUNICATIONS)},
                groups=not all(map(self._is_world, self._configuration.scopes())),
            )

        return agree(self._comm, make, patience=_NCCL_SECONDS)

    def _split(self, scope: Scope) -> Communicator[Any, Any]:
        """Communicator of the rank's group; that of all ranks where they are one group."""
        if self._is_world(scope):
            return self.world
        group = self._configuration.layout.group(scope, self._comm.rank)
        return agree(
            self._comm,
            lambda: self.world.split(color=group.start, key=self._comm.rank),
            patience=_NCCL_SECONDS,
        )

    def _is_world(self, scope: Scope) -> bool:
        layout = self._configuration.layout
        return layout.group_size(scope) == layout.world_size

    def _exchange_first_messages(self) -> None:
        """Have NCCL connect the ranks. A failure is not agreed upon: like one in an iteration, it names rank and op."""
        layout, dtype = self._configuration.layout, self._configuration.workload.dtype
        messages = first_messages(self._ops(), layout, dtype)

        def prepare() -> Executor:
            return Executor(messages, layout=layout, communicators=self.communicators, compute=NoCompute(), dtype=dtype)

        executor = agree(self._comm, prepare)
        self._situation.enter("the first messages", executor.current_op)
        executor.reset()
        executor.iterate()
        self._situation.enter("checking the memory of the GPU")

    def _ops(self) -> Iterator[Op]:
        return self._configuration.ops(self._comm.rank)

    def _phases(self) -> list[Phase]:
        return [op.phase for op in self._ops() if isinstance(op, Compute)]

    def _needs(self, *, on_gpu: bool) -> tuple[int, int]:
        """Bytes of the rank's messages, and of the operands of its matrix products, on the GPU or on the host."""
        messages = memory_bytes(self._configuration, self._comm.rank)
        operands = self.compute.memory_bytes(self._phases())
        return messages * (self._options.gpu_messages == on_gpu), operands * (self.compute.on_device == on_gpu)

    def _check_memory(self) -> None:
        self._host.check_memory(sum(self._needs(on_gpu=False)), self._configuration.workload.scale)

    def _check_gpu_memory(self) -> None:
        if self._gpu is None:
            return
        messages, operands = self._needs(on_gpu=True)
        name, free = f"{self._situation.who()}: {self._gpu.device.facts.name}", self._gpu.device.free_bytes()
        least = memory_bytes(smallest(self._configuration), self._comm.rank)
        check_gpu_memory(name, messages, operands, free, self._configuration.workload.scale, least=least)


def _call(op: Communication) -> str:
    """Name of the communicator's operation that carries an op out."""
    return operation(op) if isinstance(op, Send | Recv) or op.blocking else f"i{operation(op)}"
