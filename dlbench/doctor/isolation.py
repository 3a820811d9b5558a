"""Commands and probes in processes of their own: whatever these do, their asker gets an answer in time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, NamedTuple, Protocol

import msgspec

from dlbench.doctor.finding import Finding
from dlbench.doctor.text import last_line

_MOST_CHARACTERS = 65_536
_PREFIX = re.compile(r"\w+: (?:fatal|error): ")
_AFTER_KILL_SECONDS = 0.5
"""For the kernel to end a process. One that hangs inside a driver cannot be ended, and is not waited for."""


class Ended(NamedTuple):
    """How a command ended, and what it had printed."""

    out: str
    err: str
    failure: str
    """Empty where its exit code is 0."""
    absent: bool = False
    """Whether there is no such command."""

    @property
    def complaint(self) -> str:
        """How it failed, with its last words; empty where it did not."""
        words = _PREFIX.sub("", last_line(self.err) or last_line(self.out))
        return f"{self.failure}: {words}" if self.failure and words else self.failure


class Prober(Protocol):
    """The way from the probes to the machine."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of the probes."""

    async def command(self, *words: str) -> Ended:
        """Run a command."""

    async def probe(self, name: str, *arguments: str) -> Finding:
        """Call a function of `dlbench.doctor.probes` in a process that may crash or hang."""


@dataclass(frozen=True)
class Processes:
    """Probes of this machine, each within the time limit and killed behind it."""

    environment: Mapping[str, str]
    seconds: float

    async def command(self, *words: str) -> Ended:
        """Run a command; never raises."""
        return await self._run(words)

    async def probe(self, name: str, *arguments: str) -> Finding:
        """Call a probe; a crash or silence of it is a finding too."""
        with TemporaryFile() as answer:
            command = [sys.executable, "-m", "dlbench.doctor.probes", str(answer.fileno()), name, *arguments]
            ended = await self._run(command, answer.fileno())
            text = _content(answer)
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(text, type=Finding)
        return Finding(state="broken", found=f"its probe {ended.complaint or 'ends without an answer'}")

    async def _run(self, words: Sequence[str], *inherited: int) -> Ended:
        # Files and not pipes: a pipe ends only with the last process that holds it, which can outlive a killed one.
        with TemporaryFile() as out, TemporaryFile() as err:
            try:
                failure = await self._failure(words, inherited, out, err)
            except FileNotFoundError:
                return Ended("", "", "is not on the PATH", absent=True)
            except OSError as error:
                failure = f"cannot be started: {error.strerror}"
            return Ended(_content(out), _content(err), failure)

    async def _failure(self, words: Sequence[str], inherited: Sequence[int], out: IO[bytes], err: IO[bytes]) -> str:
        process = await asyncio.create_subprocess_exec(
            *words,
            env=self.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=inherited,
            process_group=0,
        )
        try:
            async with asyncio.timeout(self.seconds):
                return _ending(await process.wait())
        except TimeoutError:
            return f"gives no answer within {self.seconds:g} s"
        finally:
            if process.returncode is None:
                await _kill(process)


async def _kill(process: asyncio.subprocess.Process) -> None:
    """End a process and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_AFTER_KILL_SECONDS):
            await process.wait()


def _ending(code: int) -> str:
    if code >= 0:
        return f"ends with exit code {code}" if code else ""
    try:
        return f"crashes with {signal.Signals(-code).name}"
    except ValueError:
        return f"crashes with signal {-code}"


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_MOST_CHARACTERS).decode(errors="replace")
