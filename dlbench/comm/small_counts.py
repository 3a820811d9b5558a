"""MPI libraries before MPI-4, Open MPI 5 among them: their counts end at 2^31 − 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dlbench.comm.library import MPI, version
from dlbench.comm.mpi import LARGEST_SMALL_COUNT, MpiCommunicator, MpiMessage, MpiRequest, Spec
from dlbench.errors import PreflightError

PIECE = 2**30


class PiecewiseRequest(MpiRequest):
    """Non-blocking operations that make up one message: this one, and `others`."""

    __slots__ = ("others",)
    others: list[MPI.Request]

    def wait(self, status: MPI.Status | None = None) -> None:
        """Return when every piece is complete."""
        MPI.Request.Waitall(self.others)
        super().wait(status)

    def test(self, status: MPI.Status | None = None) -> bool:  # type: ignore[override]
        """Whether every piece is complete; drives them forward."""
        return MPI.Request.Testall(self.others) and super().test(status)


class SmallCountMpiCommunicator(MpiCommunicator):
    """Passes a message beyond the largest count in another form.

    An all-reduce becomes several, one for every 2^30 elements, since sums take no derived datatype. A message that
    only moves becomes one element of a derived datatype. A reduce-scatter has no such form and is refused.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        super().__init__(comm)
        self._blocks: dict[tuple[str, int], MPI.Datatype] = {}

    def remarks(self, largest_count: int) -> list[str]:
        """Says so where messages travel in another form."""
        if largest_count <= LARGEST_SMALL_COUNT:
            return []
        return [f"messages above 2^31 - 1 elements travel in pieces: {version()} counts no further"]

    def allreduce(self, send: MpiMessage, receive: MpiMessage) -> None:
        """Sum `send` over the group into `receive`."""
        for send_spec, receive_spec in _pieces(send, receive):
            self._comm.Allreduce(send_spec, receive_spec)

    def allgather(self, send: MpiMessage, receive: MpiMessage) -> None:
        """Concatenate every rank's `send` in rank order into `receive`."""
        count = send.elements
        self._comm.Allgather(self._spec(send, count), self._spec(receive, count))

    def reduce_scatter(self, send: MpiMessage, receive: MpiMessage) -> None:
        """Sum `send` over the group; this rank's block of the sum goes to `receive`."""
        _require_small_count(receive)
        super().reduce_scatter(send, receive)

    def alltoall(self, send: MpiMessage, receive: MpiMessage) -> None:
        """Exchange blocks: block i of `send` goes to rank i."""
        count = send.elements // self.size
        self._comm.Alltoall(self._spec(send, count), self._spec(receive, count))

    def send(self, send: MpiMessage, peer: int) -> None:
        """Send the buffer to `peer`."""
        self._comm.Send(self._spec(send, send.elements), peer)

    def recv(self, receive: MpiMessage, peer: int) -> None:
        """Receive the buffer from `peer`."""
        self._comm.Recv(self._spec(receive, receive.elements), peer)

    def iallreduce(self, send: MpiMessage, receive: MpiMessage) -> MpiRequest:
        """Start `allreduce`."""
        if send.elements <= LARGEST_SMALL_COUNT:
            return MpiRequest(self._comm.Iallreduce(send.spec, receive.spec))
        others = [self._comm.Iallreduce(*specs) for specs in _pieces(send, receive)]
        request = PiecewiseRequest(others.pop())
        request.others = others
        return request

    def iallgather(self, send: MpiMessage, receive: MpiMessage) -> MpiRequest:
        """Start `allgather`."""
        count = send.elements
        return MpiRequest(self._comm.Iallgather(self._spec(send, count), self._spec(receive, count)))

    def ireduce_scatter(self, send: MpiMessage, receive: MpiMessage) -> MpiRequest:
        """Start `reduce_scatter`."""
        _require_small_count(receive)
        return super().ireduce_scatter(send, receive)

    def ialltoall(self, send: MpiMessage, receive: MpiMessage) -> MpiRequest:
        """Start `alltoall`."""
        count = send.elements // self.size
        return MpiRequest(self._comm.Ialltoall(self._spec(send, count), self._spec(receive, count)))

    def wait_all(self, requests: Sequence[MpiRequest]) -> None:
        """Return when every request is complete."""
        for request in requests:
            if isinstance(request, PiecewiseRequest):
                request.wait()
        super().wait_all(requests)

    def close(self) -> None:
        """Free the derived datatypes, then the communicator."""
        for datatype in self._blocks.values():
            datatype.Free()
        self._blocks.clear()
        super().close()

    def _spec(self, buffer: MpiMessage, count: int) -> Spec:
        """Descriptor of a buffer that consists of blocks of `count` elements."""
        if count <= LARGEST_SMALL_COUNT:
            return buffer.spec
        memory, datatype = buffer.spec
        key = buffer.carrier.name, count
        if key not in self._blocks:
            self._blocks[key] = _block_datatype(datatype, count)
        return memory, self._blocks[key]


def _block_datatype(datatype: MPI.Datatype, count: int) -> MPI.Datatype:
    """Datatype of `count` contiguous elements, by way of pieces that a small count can count."""
    pieces, rest = divmod(count, PIECE)
    piece = datatype.Create_contiguous(PIECE)
    block = MPI.Datatype.Create_struct([pieces, rest], [0, pieces * PIECE * datatype.Get_size()], [piece, datatype])
    piece.Free()
    return block.Commit()


def _pieces(send: MpiMessage, receive: MpiMessage) -> Iterator[tuple[Spec, Spec]]:
    if send.elements <= LARGEST_SMALL_COUNT:
        yield send.spec, receive.spec
        return
    (source, datatype), (target, _) = send.spec, receive.spec
    size = PIECE * datatype.Get_size()
    for start in range(0, len(source), size):
        piece = slice(start, start + size)
        yield (source[piece], datatype), (target[piece], datatype)


def _require_small_count(receive: MpiMessage) -> None:
    if receive.elements > LARGEST_SMALL_COUNT:
        raise PreflightError(
            f"{version()} cannot reduce-scatter {receive.elements} elements a rank: "
            f"its counts end at {LARGEST_SMALL_COUNT}; shrink the messages with --scale, or use an MPI-4 library"
        )
