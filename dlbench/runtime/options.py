"""The options of a run: one declaration for the ranks' entry points, `dlbench run` and configuration files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from dlbench.arguments import ArgumentParser, at_least, more_than, path, text
from dlbench.compute import COMPUTE_MODELS
from dlbench.compute.precision import GEMM_PRECISIONS, gpu_precision, require_cpu_precision, require_no_precision
from dlbench.errors import OptionError, UserError
from dlbench.runtime.config_file import config_arguments
from dlbench.runtime.request import DEFAULT_CEILING, Delay, RunOptions, RunRequest
from dlbench.specs import load_gpu, load_model, load_system
from dlbench.strategies import get_strategy
from dlbench.strategies.configuration import DEFAULT_DTYPE
from dlbench.strategies.options import DEFAULT_GPU, add_workload_arguments, workload_options

BACKENDS = ("mpi", "nccl")
BUFFERS = ("host", "gpu")
SYNC_MODES = ("barrier", "window", "none")
PROGRESS_MODES = ("poll", "none")
DEFAULT_RECORD = "results"
_LONGEST_DELAY = 86_400_000
"""Milliseconds: a day."""

_EXAMPLES = """examples:
  mpirun -n 64 python -m dlbench.{strategy} --gpu h100 --record results --label fabric=ndr
  srun --mpi=pmi2 -N 16 --ntasks-per-node=4 python -m dlbench.{strategy} --system leonardo --until-ci 0.02
  dlbench run {strategy} -n 4 --scale 0.001 --time-scale 0.01 --check

exit codes: 0 OK, 1 the run failed, 2 wrong option or machine, 128 + N ended by signal N"""


def _delay(value: str) -> Delay:
    try:
        rank, op, milliseconds = value.split(":")
        delay = Delay(int(rank), int(op), float(milliseconds))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected RANK:OP:MILLISECONDS such as 3:12:5, found {value!r}") from None
    if delay.rank < 0 or delay.op < 0 or not 0 < delay.milliseconds < float("inf"):
        raise argparse.ArgumentTypeError(f"rank and op count from 0 and the delay is positive, found {value!r}")
    if delay.milliseconds > _LONGEST_DELAY:
        raise argparse.ArgumentTypeError(f"expected a delay of at most {_LONGEST_DELAY} ms, a day, found {value!r}")
    return delay


def _label(value: str) -> tuple[str, str]:
    key, equals, content = value.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE such as fabric=ndr, found {value!r}")
    return key, content


_FLAG = argparse.BooleanOptionalAction


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare every option of `RunOptions`, and `--config`."""
    _add_length(parser)
    _add_method(parser)
    _add_output(parser)


def _add_length(parser: argparse.ArgumentParser) -> None:
    length = parser.add_argument_group("how long to measure")
    length.add_argument(
        "--iterations", type=at_least(1), default=10, metavar="N", help="measured iterations (default 10)"
    )
    length.add_argument(
        "--warmup", type=at_least(0), default=1, metavar="N", help="iterations before that, not counted (default 1)"
    )
    length.add_argument(
        "--min-seconds", type=at_least(0.0), default=0.0, metavar="S", help="go on until S seconds are measured"
    )
    length.add_argument("--max-seconds", type=more_than(0.0), metavar="S", help="stop once S seconds are measured")
    length.add_argument(
        "--until-ci",
        type=more_than(0.0),
        metavar="F",
        help="go on until the 95%% interval of the median iteration time lies within ±F of it, e.g. 0.02",
    )
    length.add_argument(
        "--max-iterations",
        type=at_least(1),
        metavar="N",
        help=f"ceiling for --min-seconds and --until-ci (default {DEFAULT_CEILING} with --until-ci)",
    )


def _add_method(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("how to run")
    _add_machine(how)
    how.add_argument(
        "--progress",
        choices=PROGRESS_MODES,
        default="poll",
        help="drive outstanding requests while computing (default poll)",
    )
    how.add_argument(
        "--sync",
        choices=SYNC_MODES,
        default="barrier",
        help="between iterations: a barrier, a start at an agreed time, or nothing (default barrier)",
    )
    how.add_argument("--check", action=_FLAG, default=False, help="verify every message of one iteration first")
    how.add_argument(
        "--delay",
        action="append",
        type=_delay,
        default=[],
        metavar="RANK:OP:MS",
        help="sleep MS milliseconds before op OP of rank RANK; may be repeated",
    )
    how.add_argument(
        "--seed", type=at_least(0), default=0, metavar="N", help="seed of the operands of --compute gemm (default 0)"
    )
    how.add_argument(
        "--timeout",
        type=more_than(0.0),
        default=600.0,
        metavar="S",
        help="longest time for one iteration or set-up step before the run counts as hung (default 600)",
    )
    how.add_argument(
        "--grace",
        type=at_least(0.0),
        default=20.0,
        metavar="S",
        help="longest time for a signalled run to finish its iteration (default 20)",
    )


def _add_machine(how: argparse._ArgumentGroup) -> None:
    how.add_argument(
        "--compute",
        choices=COMPUTE_MODELS,
        default="sleep",
        help="what computation is: sleep (default), gemm: matrix products where the buffers are, "
        "spin: a kernel that keeps the GPU busy as long, none",
    )
    how.add_argument(
        "--gemm-precision",
        choices=GEMM_PRECISIONS,
        default="auto",
        help="operands of --compute gemm on a GPU (default auto: the run's dtype)",
    )
    how.add_argument(
        "--backend", choices=BACKENDS, default="mpi", help="what carries messages: mpi (default), or nccl (also RCCL)"
    )
    how.add_argument(
        "--buffers",
        choices=BUFFERS,
        help="where messages are: host (default of mpi), or gpu (of nccl; with mpi it needs a GPU-aware library)",
    )
    how.add_argument("--persistent", action=_FLAG, default=False, help="persistent collectives of MPI 4")


def _add_output(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("what to write")
    output.add_argument(
        "--record",
        type=path,
        default=DEFAULT_RECORD,
        metavar="DIR",
        help=f"folder for the record (default {DEFAULT_RECORD})",
    )
    output.add_argument("--no-record", dest="record", action="store_const", const=None, help="write no record")
    output.add_argument("--record-ops", action=_FLAG, default=False, help="record enter and leave of every op")
    output.add_argument("--json", action=_FLAG, default=False, help="the summary as JSON on stdout, the rest on stderr")
    output.add_argument(
        "--label", action="append", type=_label, default=[], metavar="KEY=VALUE", help="free label; may be repeated"
    )
    output.add_argument("--system", type=text, metavar="NAME", help="system spec; sets --gpu where that is not given")
    output.add_argument("--placement", default="", metavar="CLASS", help="placement class, e.g. intra-group")
    output.add_argument("--experiment", default="", metavar="ID", help="experiment that this run belongs to")
    output.add_argument("--job", default="", metavar="ID", help="job within the experiment")
    output.add_argument(
        "--concurrent-jobs",
        type=at_least(0),
        default=0,
        metavar="N",
        help="jobs that the experiment runs side by side; 1 for a baseline (default 0: not known)",
    )
    output.add_argument(
        "--config", type=path, metavar="FILE", help="YAML file with the same names; the command line wins"
    )


def run_parser(prog: str, strategy: str) -> ArgumentParser:
    """Parser with every option of a run of the strategy."""
    described = get_strategy(strategy)
    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} [options]",
        description=f"{described.title}: {described.summary}.",
        epilog=_EXAMPLES.format(strategy=strategy),
    )
    add_workload_arguments(parser, described)
    add_run_arguments(parser)
    return parser


def _request(strategy: str, values: Mapping[str, Any]) -> RunRequest:
    """Turn parsed options into a request; reads the specs; raises `SpecError` or `OptionError`."""
    system = load_system(values["system"]) if values["system"] else None
    gpu = values["gpu"] or (system.gpu if system else None) or DEFAULT_GPU
    options = {name: values[name] for name in RunOptions.__struct_fields__}
    # The last one that names a label, or an op, counts: so the command line wins over the file before it.
    delays = {(delay.rank, delay.op): delay for delay in values["delay"]}
    settled = {
        "label": dict(values["label"]),
        "delay": list(delays.values()),
        "system": system.name if system else "",
        "buffers": values["buffers"] or ("gpu" if values["backend"] == "nccl" else "host"),
    }
    run = RunOptions(**{**options, **settled})
    _reject_contradictions(run, values["dtype"] or DEFAULT_DTYPE)
    return RunRequest(
        strategy=strategy,
        model=load_model(values["model"] or get_strategy(strategy).model),
        gpu=load_gpu(gpu),
        workload=workload_options(values),
        run=run,
    )


def _reject_contradictions(run: RunOptions, dtype: str) -> None:
    if run.record_ops and run.record is None:
        raise OptionError("--record-ops needs a record; leave out --no-record")
    _reject_machine(run, dtype)
    if run.max_seconds is not None and run.max_seconds < run.min_seconds:
        raise OptionError(f"--max-seconds {run.max_seconds:g} is less than --min-seconds {run.min_seconds:g}")
    if run.persistent and not run.warmup:
        raise OptionError("--persistent sets its requests up in the first iteration; use --warmup 1 or more")
    if run.max_iterations is not None and run.until_ci is None and not run.min_seconds:
        raise OptionError("--max-iterations is the ceiling of --min-seconds or --until-ci; use --iterations")
    if run.max_iterations is not None and run.max_iterations < run.iterations:
        raise OptionError(f"--max-iterations {run.max_iterations} is less than --iterations {run.iterations}")


def _reject_machine(run: RunOptions, dtype: str) -> None:
    """Raise `OptionError` where backend, buffers and computation do not go together."""
    if run.backend == "nccl" and not run.gpu_messages:
        raise OptionError("--backend nccl: its buffers are in the memory of the GPU; leave out --buffers host")
    if run.backend == "nccl" and run.persistent:
        raise OptionError("--persistent is for collectives of MPI; leave it out with --backend nccl")
    if run.compute != "gemm":
        require_no_precision(run.gemm_precision, run.compute)
    elif run.uses_gpu:
        gpu_precision(run.gemm_precision, dtype, "cuda")  # which multiplies in all that ROCm multiplies in
    else:
        require_cpu_precision(run.gemm_precision)


def check_request(request: RunRequest, world_size: int) -> None:
    """Raise `LayoutError` or `OptionError` for what is impossible at this world size."""
    configuration = request.configuration(world_size)
    for delay in request.run.delay:
        ops = len(configuration.program(delay.rank)) if delay.rank < world_size else 0
        if delay.op >= ops:
            what = f"rank {delay.rank} has ops 0 to {ops - 1}" if ops else f"ranks are 0 to {world_size - 1}"
            raise OptionError(f"--delay {delay.rank}:{delay.op}:{delay.milliseconds:g}: {what}")


def parse_request(strategy: str, parser: ArgumentParser, argv: Sequence[str]) -> RunRequest:
    """From a command line, over the file of `--config`, to a request.

    Raises `OptionError` or `SpecError`, which names the file unless the command line alone is wrong, and SystemExit
    after `--help`.
    """
    arguments = parser.parse_args(argv)
    if arguments.config is None:
        return _request(strategy, vars(arguments))
    # A parser of its own: `dlbench run` has options beside those of a run, which no file can set.
    file = config_arguments(arguments.config, run_parser(parser.prog, strategy))
    try:
        return _request(strategy, vars(parser.parse_args([*file, *argv])))
    except UserError as error:
        if str(error) == _mistake(strategy, vars(arguments)):
            raise
        raise type(error)(f"{arguments.config}: {error}") from None


def _mistake(strategy: str, values: Mapping[str, Any]) -> str:
    """What is wrong with parsed options; empty where nothing is."""
    try:
        _request(strategy, values)
    except UserError as error:
        return str(error)
    return ""
