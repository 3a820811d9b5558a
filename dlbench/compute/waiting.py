"""How a compute phase waits for its stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlbench.accelerator.protocol import Event


def wait(event: Event, progress: Callable[[], None] | None) -> None:
    """Return when the event is done; until then `progress` drives requests in flight, where they need it.

    A compute stream waits for no other rank, so without requests to drive there is nothing to look after: the library
    waits, which is the sharpest, and gives up Python's lock meanwhile, so that the watchdog's thread runs.
    """
    if progress is None:
        event.synchronize()
        return
    while not event.done:
        progress()
