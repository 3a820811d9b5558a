"""A strategy with all its options settled: what `configure` returns and everything else takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby, islice
from typing import NamedTuple

import msgspec

from dlbench.errors import LayoutError, OptionError
from dlbench.specs import MESSAGE_DTYPES, GpuSpec, ModelSpec
from dlbench.strategies.degrees import choose_degrees, inner_option
from dlbench.strategies.layout import Coordinates, Layout
from dlbench.strategies.ops import COLLECTIVES, COMMUNICATIONS, Op, Scope, Wait
from dlbench.strategies.pipeline import Stage
from dlbench.strategies.registry import get_strategy
from dlbench.strategies.strategy import Strategy, Workload

DEFAULT_DTYPE = "bf16"
DEFAULT_LOCAL_BATCH = 16
FACTOR_RANGE = (1e-12, 1e12)
"""Scales beyond it would turn sizes and times into 0 or infinity."""
MOST_OPS = 100_000
"""Ops of one rank in one iteration; the paper's longest program has 1345."""
_PARTS = ("buckets", "units", "microbatches")
"""Options that cut the work into parts, each at least an op; every strategy has one of them."""
_SHOWN_DIVISORS = 8


class Role(NamedTuple):
    """Ranks that run the same program, apart from whom they send to."""

    name: str
    """`every rank`, `stage 0`, `stages 1-6`."""
    rank: int
    """The first of them."""
    ranks: int
    """How many they are."""


class Configuration(msgspec.Struct, frozen=True):
    """A strategy, its work, its layout, and in words every departure from the paper's defaults."""

    strategy: Strategy
    workload: Workload
    layout: Layout
    notes: tuple[str, ...] = ()

    def ops(self, rank: int) -> Iterator[Op]:
        """The ops of one rank, one by one. A group of one exchanges nothing, so its communication is left out.

        Raises `OptionError` where there is no such rank.
        """
        if not 0 <= rank < self.layout.world_size:
            raise OptionError(f"there is no rank {rank}; ranks are 0 to {self.layout.world_size - 1}")
        return self._exchanged(self.strategy.program(self.workload, self.layout, rank))

    def program(self, rank: int) -> tuple[Op, ...]:
        """The ops of one rank, all at once; see `ops`."""
        return tuple(self.ops(rank))

    def _exchanged(self, ops: Iterator[Op]) -> Iterator[Op]:
        alone: set[str] = set()
        for op in ops:
            match op:
                case Wait(requests):
                    started = tuple(request for request in requests if request not in alone)
                    if started:
                        yield Wait(started)
                case _ if isinstance(op, COMMUNICATIONS) and self.layout.group_size(op.group) == 1:
                    alone.add(op.buffer.name)
                case _:
                    yield op

    def degrees(self) -> dict[str, int]:
        """Degrees of parallelism that the strategy has: pp, tp, ep, sharding."""
        return {name: degree for name, degree in self.layout.factors() if name in self.strategy.defaults}

    def scopes(self) -> tuple[Scope, ...]:
        """Scopes in which the ranks communicate, the same on every rank."""
        used = {op.group for role in self.roles() for op in self.ops(role.rank) if isinstance(op, COMMUNICATIONS)}
        return tuple(scope for scope in Scope if scope in used)

    def roles(self) -> tuple[Role, ...]:
        """Every distinct program, by its first rank: stages differ by their place and by what they hold."""
        pp = self.layout.pp
        if pp == 1:
            return (Role("every rank", 0, self.layout.world_size),)

        def kind(stage: int) -> tuple[bool, bool, Stage]:
            return stage == 0, stage == pp - 1, Stage.at(self.workload, self.layout, stage)

        stages = [tuple(same) for _, same in groupby(range(pp), kind)]
        return tuple(
            Role(
                f"stage {same[0]}" if len(same) == 1 else f"stages {same[0]}-{same[-1]}",
                self.layout.rank(Coordinates(inner=0, stage=same[0], replica=0)),
                len(same) * self.layout.world_size // pp,
            )
            for same in stages
        )


def configure(  # noqa: PLR0913 (the options of a run, all by keyword)
    strategy: Strategy | str,
    *,
    world_size: int,
    model: ModelSpec,
    gpu: GpuSpec,
    dtype: str = DEFAULT_DTYPE,
    local_batch: int = DEFAULT_LOCAL_BATCH,
    sequence_length: int | None = None,
    scale: float = 1.0,
    time_scale: float = 1.0,
    **own: int | None,
) -> Configuration:
    """Settle all options of a strategy.

    `own` are the strategy's own options (microbatches, buckets, units, sharding, pp, tp, ep); None, as everywhere,
    is the default. Smaller runs than the paper's use the degrees that fit, see `degrees.choose_degrees`. Sequence
    length changes compute and messages; the parameters stay the model's, learned positions included.

    Raises `OptionError` for an option that the strategy does not have or a value out of range, `LayoutError` where
    the world size does not fit, `SpecError` where the GPU has no peak for the dtype.
    """
    if isinstance(strategy, str):
        strategy = get_strategy(strategy)
    given = _own_options(strategy, own)
    length = model.sequence_length if sequence_length is None else sequence_length
    _check_positive({"local-batch": local_batch, "sequence-length": length, **given})
    _check_factor("scale", scale)
    _check_factor("time-scale", time_scale)
    _check_dtype(gpu, dtype)
    degrees, notes = choose_degrees(strategy, world_size, given)
    settled = {**strategy.defaults, **given, **degrees}
    workload = Workload(
        model=model,
        gpu=gpu,
        dtype=dtype,
        local_batch=local_batch,
        microbatches=settled.get("microbatches", 1),
        sequence_length=length,
        buckets=settled.get("buckets", 0),
        units=settled.get("units", 0),
        scale=scale,
        time_scale=time_scale,
    )
    layout = _layout(strategy, world_size, degrees, given)
    _check_parts(workload)
    _check_model(workload, degrees)
    configuration = Configuration(strategy, workload, layout)
    _check_length(configuration)
    notes = (*_workload_notes(strategy, workload, given), *notes, *_lone_groups(configuration))
    return Configuration(strategy, workload, layout, notes)


def _own_options(strategy: Strategy, options: Mapping[str, int | None]) -> dict[str, int]:
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in strategy.defaults:
            known = ", ".join(f"--{option}" for option in strategy.defaults)
            raise OptionError(f"{strategy.name} has no option --{name}; its own options are {known}")
    return given


def _check_positive(values: Mapping[str, int]) -> None:
    for name, value in values.items():
        if value < 1:
            raise OptionError(f"--{name} {value} is out of range; use 1 or more")


def _check_factor(name: str, factor: float) -> None:
    low, high = FACTOR_RANGE
    if not low <= factor <= high:
        raise OptionError(f"--{name} {factor:g} is out of range; use a number from {low:g} to {high:g}")


def _check_dtype(gpu: GpuSpec, dtype: str) -> None:
    if dtype not in MESSAGE_DTYPES:
        raise OptionError(f"unknown dtype {dtype!r}; messages can be {', '.join(MESSAGE_DTYPES)}")
    gpu.peak(dtype)


def _check_parts(workload: Workload) -> None:
    parameters, batch, microbatches = workload.model.parameters, workload.local_batch, workload.microbatches
    for name in _PARTS:
        if (parts := getattr(workload, name)) > MOST_OPS:
            raise OptionError(f"--{name} {parts} is out of range; use {MOST_OPS} or less")
        if name != "microbatches" and parts > parameters:
            raise OptionError(f"--{name} {parts} is more than the {parameters} parameters of {workload.model.name}")
    if batch % microbatches:
        raise OptionError(
            f"--microbatches {microbatches} does not divide --local-batch {batch}; use {_divisors(batch, microbatches)}"
        )


def _check_length(configuration: Configuration) -> None:
    """Programs are walked often, and whole: refuse those of which neither a table nor a run would ever end."""
    for role in configuration.roles():
        if any(islice(configuration.ops(role.rank), MOST_OPS, None)):
            (parts,) = (name for name in _PARTS if name in configuration.strategy.defaults)
            raise OptionError(f"a rank would have more than {MOST_OPS} ops in an iteration; use fewer --{parts}")


def _check_model(workload: Workload, degrees: Mapping[str, int]) -> None:
    model, pp, ep = workload.model, degrees.get("pp", 1), degrees.get("ep")
    if model.layers > MOST_OPS:
        raise OptionError(f"{model.name} has {model.layers} layers; a rank can have {MOST_OPS} ops in an iteration")
    if pp > model.layers:
        raise OptionError(
            f"pp = {pp} is more than the {model.layers} layers of {model.name}; set --pp to {model.layers} or less"
        )
    if ep is None:
        return
    if model.experts == 1:
        raise OptionError(f"{model.name} has no experts, which expert parallelism needs; use mixtral-8x7b or its like")
    if model.experts % ep:
        fitting = _divisors(model.experts, ep)
        raise OptionError(
            f"ep = {ep} does not divide the {model.experts} experts of {model.name}; set --ep to {fitting}"
        )


def _divisors(number: int, wanted: int) -> str:
    """The divisors that can be used, and of many those nearest to the wanted one."""
    found = [n for n in range(1, min(number, MOST_OPS) + 1) if number % n == 0]
    nearest = sorted(found, key=lambda divisor: abs(divisor - wanted))[:_SHOWN_DIVISORS]
    return ", ".join(map(str, sorted(nearest)))


def _layout(strategy: Strategy, world_size: int, degrees: Mapping[str, int], given: Mapping[str, int]) -> Layout:
    try:
        return Layout(
            world_size=world_size,
            pp=degrees.get("pp", 1),
            inner=degrees.get(inner_option(strategy), 1),
            inner_scope=strategy.inner_scope,
        )
    except LayoutError as error:
        choices = "/".join(f"--{name}" for name in degrees if name not in given)
        if not choices or world_size < 1:
            raise
        raise LayoutError(f"{error} (or set {choices})") from None


def _workload_notes(strategy: Strategy, workload: Workload, given: Mapping[str, int]) -> Iterator[str]:
    model = workload.model
    if model.name not in strategy.models:
        yield f"model {model.name}; the paper trains {' or '.join(strategy.models)}"
    if workload.dtype != DEFAULT_DTYPE:
        yield f"dtype {workload.dtype}; the paper's is {DEFAULT_DTYPE}"
    if workload.local_batch != DEFAULT_LOCAL_BATCH:
        yield f"local batch {workload.local_batch}; the paper's is {DEFAULT_LOCAL_BATCH}"
    if workload.sequence_length != model.sequence_length:
        yield (
            f"sequence length {workload.sequence_length} for compute and messages; {model.name} has "
            f"{model.sequence_length}, and its parameters stay as published"
        )
    for name, value in given.items():
        if value != strategy.defaults[name]:
            yield f"{name} = {value} as asked; the paper's is {strategy.defaults[name]}"
    if workload.scale != 1:
        yield f"messages have {workload.scale:g} times their elements"
    if workload.time_scale != 1:
        yield f"compute has {workload.time_scale:g} times its FLOPs, bytes and time"


def _lone_groups(configuration: Configuration) -> Iterator[str]:
    layout = configuration.layout
    scopes = {
        op.group: None
        for op in configuration.strategy.program(configuration.workload, layout, 0)
        if isinstance(op, COLLECTIVES) and layout.group_size(op.group) == 1
    }
    for scope in scopes:
        yield f"no {scope} communication: a group of one exchanges nothing"
