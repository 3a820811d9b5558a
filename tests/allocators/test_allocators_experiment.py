"""Plans: written and read in both formats, byte for byte, and refused where they could not be run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from full_disk import limited_files
from hypothesis import given, settings
from hypothesis import strategies as st

from dlbench.allocators.experiment import Experiment, Job, Plan, read_plan, write_plan
from dlbench.errors import OptionError, SpecError

SUFFIXES = (".yaml", ".yml", ".json")


def job(name: str = "j000", **changes: Any) -> Job:
    fields: dict[str, Any] = {
        "name": name,
        "strategy": "dp",
        "model": "vit-h",
        "gpus": 8,
        "placement": "intra-l1",
        "nodes": ("n1", "n2"),
        "options": {"iterations": 10, "time-scale": 0.5, "dtype": "bf16"},
        "seed": 3,
        **changes,
    }
    return Job(**fields)


def experiment(*jobs: Job, **changes: Any) -> Experiment:
    fields: dict[str, Any] = {"name": "mix-000", "kind": "concurrent", "timeout_seconds": 240, **changes}
    return Experiment(jobs=jobs, **fields)


def plan(*experiments: Experiment, **changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "system": "leonardo",
        "mode": "reserved",
        "seed": 1,
        "gpus": 32,
        "gpus_per_node": 4,
        **changes,
    }
    return Plan(experiments=experiments, **fields)


WHOLE = plan(
    experiment(job(), job("j001", nodes=("n3", "n4"), placement="inter-group"), entropy=0.0, entropy_bin="low"),
    experiment(job(), name="alone-000", kind="baseline", locality=1.0),
    notes=("high entropy is out of reach: “one” strategy",),
)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_plan_is_read_as_it_was_written(tmp_path: Path, suffix: str) -> None:
    write_plan(WHOLE, tmp_path / f"plan{suffix}")
    assert read_plan(tmp_path / f"plan{suffix}") == WHOLE


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_plan_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    one, other = tmp_path / f"one{suffix}", tmp_path / f"other{suffix}"
    write_plan(WHOLE, one)
    write_plan(read_plan(one), other)
    assert one.read_bytes() == other.read_bytes()


def test_the_yaml_is_what_any_reader_of_yaml_takes_it_for(tmp_path: Path) -> None:
    write_plan(WHOLE, tmp_path / "plan.yaml")
    assert yaml.safe_load((tmp_path / "plan.yaml").read_text("utf-8")) == content()


def test_a_job_in_yaml_has_a_line_for_each_field_and_its_nodes_together(tmp_path: Path) -> None:
    write_plan(plan(experiment(job())), tmp_path / "plan.yaml")
    assert (tmp_path / "plan.yaml").read_text("utf-8").splitlines()[:22] == [
        "version: 1",
        'system: "leonardo"',
        'mode: "reserved"',
        "seed: 1",
        "gpus: 32",
        "gpus_per_node: 4",
        "notes: []",
        "experiments:",
        '- name: "mix-000"',
        '  kind: "concurrent"',
        "  timeout_seconds: 240",
        "  jobs:",
        '  - name: "j000"',
        '    strategy: "dp"',
        '    model: "vit-h"',
        "    gpus: 8",
        '    placement: "intra-l1"',
        '    nodes: ["n1", "n2"]',
        '    options: {"iterations": 10, "time-scale": 0.5, "dtype": "bf16"}',
        "    seed: 3",
        "  entropy: null",
        "  entropy_bin: null",
    ]


text = st.text(st.characters(blacklist_categories=["Cs", "Cc"], max_codepoint=0xFFFF), min_size=1, max_size=8)


@given(text, st.dictionaries(text, st.one_of(text, st.integers(-(10**6), 10**6), st.floats(-1e9, 1e9)), max_size=3))
@settings(max_examples=60, deadline=None)
def test_models_and_options_of_any_kind_survive(
    tmp_path_factory: pytest.TempPathFactory, model: str, options: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("plans")
    written = plan(experiment(msgspec.structs.replace(job(options=options), model=model)))
    for suffix in (".yaml", ".json"):
        write_plan(written, folder / f"plan{suffix}")
        assert read_plan(folder / f"plan{suffix}") == written


def test_the_pattern_of_an_experiment_is_the_gpus_of_its_jobs() -> None:
    assert experiment(job(), job("j001", gpus=16)).pattern == (8, 16)


def content(path: str = "", value: object = None) -> dict[str, Any]:
    """The whole plan as plain data, with another value (None: nothing) at a path such as `experiments.0.name`."""
    whole: dict[str, Any] = json.loads(msgspec.json.encode(WHOLE))
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place: Any = whole
    for part in parents:
        place = place[part]
    if value is None and path:
        del place[last]
    elif path:
        place[last] = value
    return whole


FAULTS = [
    *(
        (path, name, f"at {place}.name: expected a name of letters, digits and ._+-, found ")
        for path, place in (
            ("experiments.0.name", "experiments[0]"),
            ("experiments.0.jobs.1.name", "experiments[0].jobs[1]"),
        )
        for name in ("../mix", "a/b", "-a", ".a", "a b", "mix\n")
    ),
    ("system", None, "at system: missing; expected text"),
    ("version", 2, "at version: expected the version 1, found 2"),
    ("sytem", "x", "at sytem: unknown key 'sytem'; did you mean 'system'? valid: version, system, mode, seed, gpus, "),
    ("mode", "fast", 'at mode: expected one of reserved, queue, found "fast"'),
    ("experiments.0.jobs.1.node", ["n3"], "at experiments[0].jobs[1].node: unknown key 'node'; did you mean 'nodes'?"),
    ("experiments.0.jobs.1.gpus", 0, "at experiments[0].jobs[1].gpus: expected an integer >= 1, found 0"),
    (
        "experiments.0.jobs.1.placement",
        "intra-l1\n",
        "at experiments[0].jobs[1].placement: expected a placement class such as intra-l1 or inter-group-same-l1-2, ",
    ),
    (
        "experiments.0.jobs.1.placement",
        "intra-l2",
        "at experiments[0].jobs[1].placement: expected a placement class such as intra-l1 or inter-group-same-l1-2, "
        'found "intra-l2"',
    ),
    (
        "experiments.0.jobs.1.placement",
        None,
        "at experiments[0].jobs[1].placement: expected a placement class in mode reserved, found null",
    ),
    (
        "experiments.0.jobs.1.options.iterations",
        [1],
        "at experiments[0].jobs[1].options.iterations: expected text, a number, true or false, found a list",
    ),
    (
        "experiments.0.jobs.1.strategy",
        "dpp",
        "at experiments[0].jobs[1].strategy: unknown strategy 'dpp', did you mean dp?",
    ),
    (
        "experiments.0.jobs.1.nodes",
        ["n3"],
        "at experiments[0].jobs[1].nodes: expected 2 for 8 GPUs at 4 per node, found 1",
    ),
    (
        "experiments.0.jobs.1.nodes",
        ["n3", "n2"],
        "at experiments[0].jobs[1].nodes: expected every node once in an experiment, found 'n2' in jobs[0] too",
    ),
    (
        "experiments.0.jobs.1.nodes",
        ["n3", "n3"],
        "at experiments[0].jobs[1].nodes: expected every node once in an experiment, found 'n3' twice",
    ),
    ("experiments.0.jobs.1.name", "j000", "at experiments[0].jobs: expected every name once, found 'j000' 2 times"),
    ("experiments.1.name", "mix-000", "at experiments: expected every name once, found 'mix-000' 2 times"),
    ("experiments.0.jobs", [], "at experiments[0].jobs: expected at least one, found none"),
    ("experiments.0.kind", "baseline", "at experiments[0].jobs: expected one job in a baseline, found 2"),
    ("gpus", 12, "at experiments[0].jobs: expected at most 12 GPUs together, as the plan has, found 16"),
    (
        "mode",
        "queue",
        "at experiments[0].jobs[0].nodes: expected none in mode queue, where SLURM chooses them, found 2",
    ),
]


@pytest.mark.parametrize(("place", "value", "message"), FAULTS, ids=[f"{place}={value}" for place, value, _ in FAULTS])
@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_a_plan_that_cannot_be_run_is_refused_with_file_and_place(
    tmp_path: Path, suffix: str, place: str, value: object, message: str
) -> None:
    path = tmp_path / f"plan{suffix}"
    path.write_text(json.dumps(content(place, value)))
    with pytest.raises(SpecError) as error:
        read_plan(path)
    assert str(error.value).startswith(f"{path}: {message}")


def test_in_queue_mode_jobs_have_neither_class_nor_nodes(tmp_path: Path) -> None:
    queued = plan(experiment(job(placement=None, nodes=())), mode="queue")
    write_plan(queued, tmp_path / "plan.yaml")
    assert read_plan(tmp_path / "plan.yaml") == queued


def test_a_job_smaller_than_a_node_has_one_to_itself() -> None:
    assert plan(experiment(job(gpus=2, nodes=("n1",)))).experiments[0].jobs[0].nodes == ("n1",)


def test_files_that_are_no_plan_are_refused_in_a_line(tmp_path: Path) -> None:
    for name, written, message in [
        ("plan.json", b"{", "not valid JSON: Input data was truncated"),
        ("plan.json", b"[1]", "expected a mapping, found a list"),
        ("plan.json", b"\xff\xfe", "not valid JSON: "),
        ("plan.yaml", b"a: [1", "line 1, column 6: not valid YAML"),
        ("plan.yaml", b"", "is empty; expected a mapping"),
        ("plan.txt", b"", "a plan is a file that ends in .yaml, .yml or .json"),
    ]:
        path = tmp_path / name
        path.write_bytes(written)
        with pytest.raises(SpecError) as error:
            read_plan(path)
        assert str(error.value).startswith(f"{path}: {message}"), name


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_a_file_that_is_not_there_is_said_so(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(SpecError, match="no such file or directory"):
        read_plan(tmp_path / f"plan{suffix}")
    with pytest.raises(OptionError, match=r"cannot be written: No such file or directory"):
        write_plan(WHOLE, tmp_path / "nowhere" / f"plan{suffix}")


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_a_plan_that_does_not_fit_the_disk_leaves_the_one_that_is_there(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plan{suffix}"
    write_plan(WHOLE, path)
    other = msgspec.structs.replace(WHOLE, seed=WHOLE.seed + 1)
    with limited_files(100), pytest.raises(OptionError, match="cannot be written: File too large"):
        write_plan(other, path)
    assert read_plan(path) == WHOLE
    assert list(tmp_path.iterdir()) == [path]


def test_a_yaml_file_that_would_take_minutes_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_bytes(b" " * 5_000_001)
    with pytest.raises(SpecError, match=r"is larger than 5 MB, for which YAML is slow; use a \.json file"):
        read_plan(path)
