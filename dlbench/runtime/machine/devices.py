"""Which GPU each rank would drive, from the variables that choose among those of a host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dlbench.runtime.machine.survey import DeviceFacts, Host

_NONE = {"", "-1", "NoDevFiles"}
"""Values by which users and SLURM give a process no GPU."""


class Visible(NamedTuple):
    """The GPUs that a rank sees."""

    devices: tuple[str, ...]
    """Names that tell the GPUs of a host apart, e.g. `cuda:3`."""
    chosen: bool
    """By a variable, and not just all that are there."""
    problem: str
    """What is wrong with the variables; empty where nothing is."""

    def of(self, local_rank: int) -> str:
        """The GPU of the rank with this number on its host; empty where it sees none."""
        return self.devices[local_rank % len(self.devices)] if self.devices else ""


def visible(facts: DeviceFacts) -> Visible:
    """The GPUs that are left when each variable has chosen from what the one before it has left.

    HIP counts within what ROCR_VISIBLE_DEVICES leaves, and takes CUDA_VISIBLE_DEVICES for its own variable. Numbers
    count the GPUs that the process may open: in a control group with one GPU that is number 0, whichever it is.
    """
    vendor, names = _vendor(facts)
    known = [f"{vendor}:{number}" for number in facts.accessible] if facts.vendor else None
    for name in names:
        text = facts.variables[name]
        chosen, stray = _choose(text, known, vendor)
        if stray:
            count = 0 if known is None else len(known)
            return Visible(tuple(chosen), True, f"{name}={text} names GPU {stray}, but the rank can open {count}")
        known = chosen
    devices = tuple(known or ())
    return Visible(devices, bool(names), _beyond_step(devices, facts.variables.get("SLURM_STEP_GPUS")))


def devices_of(host: Host) -> list[str]:
    """The GPU of each rank of a host; empty where it sees none."""
    return [visible(facts.devices).of(index) for index, facts in enumerate(host.ranks)]


def _vendor(facts: DeviceFacts) -> tuple[str, list[str]]:
    """How GPUs are named, and the variables that choose them, in the order in which they do."""
    given = facts.variables
    inner = [name for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if name in given][:1]
    outer = [name for name in ("ROCR_VISIBLE_DEVICES",) if name in given]
    hip = facts.vendor == "hip" or (not facts.vendor and (outer or inner == ["HIP_VISIBLE_DEVICES"]))
    if hip:
        return "hip", outer + inner
    cuda = [name for name in ("CUDA_VISIBLE_DEVICES",) if name in given]
    if cuda or facts.vendor:
        return "cuda", cuda
    return "gpu", [name for name in ("SLURM_STEP_GPUS",) if name in given]


def _choose(text: str, known: Sequence[str] | None, vendor: str) -> tuple[list[str], str]:
    """What a variable chooses from the GPUs (None: not known), up to the first that is not there, and that one."""
    if text.strip() in _NONE:
        return [], ""
    chosen: list[str] = []
    for token in map(str.strip, text.split(",")):
        if not token.isdecimal():  # a UUID, or a part of a GPU by its own
            chosen.append(token)
        elif known is None:
            chosen.append(f"{vendor}:{token}")
        elif int(token) < len(known):
            chosen.append(known[int(token)])
        else:
            return chosen, token
    return chosen, ""


def _beyond_step(devices: Sequence[str], step: str | None) -> str:
    if step is None or step.strip() in _NONE or len(devices) <= len(step.split(",")):
        return ""
    return f"it sees {len(devices)} GPUs, but SLURM gave its step only SLURM_STEP_GPUS={step}"
