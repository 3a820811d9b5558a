"""`dlbench plan`: design a set of experiments, show what it covers and costs, and write it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dlbench.analysis.screen import fitted
from dlbench.arguments import ArgumentParser, path, text
from dlbench.cli.forwarding import add_command
from dlbench.cli.plan_options import add_plan_arguments, design_plan, options_of_runs, plan_request, run_options
from dlbench.cli.specs import print_table
from dlbench.errors import one_line
from dlbench.quantities import significant

if TYPE_CHECKING:
    from dlbench.allocators.experiment import Experiment, Plan

HELP = "Design a set of experiments: which jobs run together, how large, and on which nodes."
EPILOG = """Every pair of mixture entropy and locality that the machine allows is covered alike; the others are named.
Node-hours are those until the timeout of every experiment: by the roofline four minutes, or longer for slow jobs.

{options}

examples:
  dlbench plan --system leonardo --pattern tier --gpus 2040 -o plan.yaml
  dlbench plan --system lumi --pattern uniform --sizes 16,64 --patterns 8 --experiments 25
  dlbench plan --system local --pattern tier --experiments 3

with the nodes of a cluster, from files that were written there:
  scontrol show topology > topology.conf
  dlbench plan --system leonardo --topology topology.conf --nodes 'lrdn[0001-0510]' --pattern tier -o plan.json"""

_NONE = "-"
_MARGIN = f"# {'':<11}"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "plan", HELP, plan)


def plan(argv: Sequence[str]) -> None:
    """Design, print and, with `--output`, write. Raises `UserError`."""
    from dlbench.slurm.job_arguments import check_plan  # noqa: PLC0415 - it loads what runs are checked with
    from dlbench.specs import load_system  # noqa: PLC0415 - YAML

    parser = _parser()
    arguments, others = parser.parse_known_args(argv)
    system = load_system(arguments.system)
    request = plan_request(arguments, system, run_options(others, parser))
    found = design_plan(request, system, arguments.partition)
    check_plan(found, Path())
    if arguments.output is not None:  # before the table, whose reader may have enough of it
        from dlbench.allocators.experiment import write_plan  # noqa: PLC0415

        write_plan(found, arguments.output)
    _print(found)
    if arguments.output is not None:
        print(f"# written    {one_line(str(arguments.output))}")


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="dlbench plan", description=HELP)
    add_plan_arguments(parser)
    parser.add_argument("--partition", type=text, metavar="NAME", help="of a live cluster (default: the system's)")
    parser.add_argument("-o", "--output", type=_file, metavar="FILE", help="write the plan: .yaml or .json")
    parser.set_defaults(launcher="auto")
    parser.epilog = EPILOG.format(options=options_of_runs(parser))
    return parser


def _file(value: str) -> Path:
    from dlbench.allocators.experiment import check_suffix  # noqa: PLC0415

    check_suffix(file := Path(path(value)))
    return file


def _print(found: Plan) -> None:
    from dlbench.allocators.estimate import node_hours  # noqa: PLC0415

    hours = [node_hours(found, experiment) for experiment in found.experiments]
    for name, value in _summary(found, hours):
        print(fitted(f"# {name:<11}{one_line(value)}", _MARGIN))
    pairs = zip(found.experiments, hours, strict=True)
    print_table([_row(found, experiment, cost) for experiment, cost in pairs])


def _summary(found: Plan, hours: Sequence[float]) -> Iterator[tuple[str, str]]:
    together = [experiment for experiment in found.experiments if experiment.kind == "concurrent"]
    yield "plan", f"{found.content()}; mode {found.mode}, seed {found.seed}"
    yield "entropy", _counts(experiment.entropy_bin for experiment in together)
    if found.mode == "reserved":
        yield "locality", _counts(experiment.locality_bin for experiment in together)
        pairs = {(experiment.entropy_bin, experiment.locality_bin) for experiment in together}
        yield "covered", f"{len(pairs)} of 9 pairs of entropy and locality"
    for note in found.notes:
        yield "note", note
    concurrent = sum(hours[: len(together)])
    total, beside, alone = (significant(value, digits=3) for value in (sum(hours), concurrent, sum(hours) - concurrent))
    yield "node-hours", f"{total} = {beside} concurrent + {alone} baselines"


def _counts(bins: Iterator[str | None]) -> str:
    from dlbench.allocators.mixture import BINS  # noqa: PLC0415

    counts = Counter(bins)
    return ", ".join(f"{counts[name]} {name}" for name in BINS)


def _row(found: Plan, experiment: Experiment, hours: float) -> dict[str, str]:
    gpus = sum(experiment.pattern)
    return {
        "experiment": experiment.name,
        "jobs": _jobs(experiment),
        "gpus": str(gpus),
        "nodes": str(experiment.nodes(found.gpus_per_node)),
        "used": f"{gpus / found.gpus:.1%}",
        "entropy": _measure(experiment.entropy, experiment.entropy_bin),
        "locality": _measure(experiment.locality, experiment.locality_bin),
        "seconds": str(experiment.timeout_seconds),
        "node hours": f"{hours:.2f}",
    }


def _jobs(experiment: Experiment) -> str:
    """How many jobs of how many GPUs, or of a baseline what it is."""
    if experiment.kind == "baseline":
        (job,) = experiment.jobs
        return " ".join(filter(None, (job.strategy, f"{job.gpus} GPUs", job.placement)))
    counts = sorted(Counter(experiment.pattern).items())
    return f"{len(experiment.jobs)}: " + ", ".join(f"{count} × {size}" for size, count in counts)


def _measure(value: float | None, name: str | None) -> str:
    if value is None:
        return _NONE
    return f"{value:.2f} {name or ''}".rstrip()
