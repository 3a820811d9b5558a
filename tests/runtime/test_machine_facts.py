"""What a rank says of its software, what it was asked to check, and how a preflight reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from handmade_survey import GB, survey

from dlbench.errors import OptionError
from dlbench.runtime.machine.facts import hash_folder, versions
from dlbench.runtime.machine.options import Asked, PreflightOptions, mismatch, parse_preflight
from dlbench.runtime.machine.output import broken_off, document, failed, report_lines
from dlbench.runtime.machine.survey import DeviceFacts
from dlbench.runtime.machine.verdict import Finding, judge


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    (folder / "part").mkdir(parents=True)
    (folder / "a.py").write_text("a = 1\n")
    (folder / "part" / "b.yaml").write_text("b: 1\n")
    return folder


def test_the_hash_of_a_package_does_not_depend_on_where_it_is(package: Path, tmp_path: Path) -> None:
    before = hash_folder(str(package))
    assert hash_folder(str(package.rename(tmp_path / "elsewhere"))) == before


def test_the_hash_of_a_package_leaves_byte_code_out(package: Path) -> None:
    before = hash_folder(str(package))
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "a.cpython-312.pyc").touch()
    (package / ".hidden").touch()
    assert hash_folder(str(package)) == before


@pytest.mark.parametrize("change", ["content", "name", "border"])
def test_the_hash_of_a_package_depends_on_contents_and_names(package: Path, change: str) -> None:
    before = hash_folder(str(package))
    match change:
        case "content":
            (package / "part" / "b.yaml").write_text("b: 2\n")
        case "name":
            (package / "a.py").rename(package / "c.py")
        case _:  # the same bytes, cut elsewhere
            (package / "a.py").write_text("a = 1\npart")
    assert hash_folder(str(package)) != before


def test_versions_name_what_a_rank_consists_of() -> None:
    assert list(versions("MPICH 5")) == ["dlbench", "Python", "NumPy", "msgspec", "mpi4py", "MPI"]
    assert versions("MPICH 5")["MPI"] == "MPICH 5"


def parsed(*argv: str) -> PreflightOptions:
    found = parse_preflight("prog", argv)
    assert isinstance(found, PreflightOptions)
    return found


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["-n", "4", "--json"],
        ["--ranks-per-node", "8", "--clock-limit", "0.25", "--hop-timeout", "1e-3"],
    ],
)
def test_options_reach_the_ranks_as_they_are(argv: list[str]) -> None:
    assert parsed(*parsed(*argv).arguments()) == parsed(*argv)


def test_help_is_a_text_for_one_rank_to_print() -> None:
    text = parse_preflight("python -m dlbench.preflight", ["--help"])
    assert isinstance(text, str)
    assert "--ranks-per-node G" in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--rank-per-node", "4"], "did you mean --ranks-per-node?"),
        (["--ranks-per-node", "0"], "--ranks-per-node: expected an integer of 1 or more, found '0'"),
        (["--hop-timeout", "nan"], "--hop-timeout: expected a number above 0, found 'nan'"),
    ],
)
def test_wrong_options_are_refused(argv: list[str], message: str) -> None:
    with pytest.raises(OptionError, match="see 'prog --help'") as error:
        parse_preflight("prog", argv)
    assert message in str(error.value)


def test_what_was_asked_for_comes_from_the_options_and_the_allocation() -> None:
    allocation = {"SLURM_NTASKS": "16", "SLURM_JOB_NUM_NODES": "4"}
    assert parsed("--ranks-per-node", "2").asked({}) == Asked(ranks_per_node=2)
    assert parsed().asked(allocation) == Asked(tasks=16, nodes=4)
    assert parsed("-n", "8").asked(allocation) == Asked(nodes=4)
    assert parsed().asked({"SLURM_NTASKS": "many"}) == Asked()


def test_another_world_than_was_asked_for_is_told_with_the_remedy() -> None:
    assert mismatch(4, None) == mismatch(4, 4) == ""
    assert mismatch(1, 4).startswith("MPI sees a world of 1 rank, but -n asks for 4; start as many, with the launcher")


def report(found: Any, *findings: Finding) -> list[str]:
    return list(report_lines(found, findings, "PMI"))


ERROR = Finding(severity="error", check="clock", message="late", rank=2, host="n2")
WARNING = Finding(severity="warning", check="memory", message="little", rank=2, host="n2")


def test_the_report_has_a_row_per_host() -> None:
    gpu = {"devices": DeviceFacts(variables={"CUDA_VISIBLE_DEVICES": "0,1"})}
    found = survey(
        facts={0: gpu, 1: gpu, 2: {"memory": 2 * GB}},
        hops={1: {"latency": 9e-6}, 3: {"bandwidth": 5e9}},
        clocks={2: {"offset": -0.25, "uncertainty": 2e-5}},
    )
    *_, head, first, second, last = (" ".join(line.split()) for line in report(found))
    assert head == "# host ranks devices clock offset memory latency bandwidth"
    assert first == "n1 0-1 cuda:0,cuda:1 +0.000 ± 0.010 ms 100.0 GB 9.000 µs 10.00 GB/s"
    assert second == "n2 2-3 cpu -250.000 ± 0.020 ms 2.000 GB 2.000 µs 5.000 GB/s"
    assert last == "OK"


def test_the_report_names_ranks_launcher_and_versions() -> None:
    head = report(survey())[:3]
    assert head[1] == "# ranks      4 on 2 hosts, by PMI"
    assert "NumPy 2.1.0" in head[2]


def test_findings_are_a_line_each_and_errors_fail() -> None:
    *_, first, second, last = report(survey(), ERROR, WARNING)
    assert (first, second) == ("error: clock: late", "warning: memory: little")
    assert last == "FAILED: 1 error; first: late"
    assert failed([ERROR, WARNING])
    assert not failed([WARNING])


def test_warnings_alone_are_ok() -> None:
    assert report(survey(), WARNING)[-2:] == ["warning: memory: little", "OK"]


def test_a_mistake_on_every_host_does_not_flood_the_report() -> None:
    lines = report(survey(), *[ERROR] * 500, WARNING)
    assert lines.count("error: clock: late") == 20
    assert "error: clock: and 480 more of this kind; --json has them all" in lines
    assert lines[-1] == "FAILED: 500 errors; first: late"


def test_the_document_has_everything_and_is_json() -> None:
    found = survey(clocks={2: {"offset": 9.0}}, facts={0: {"memory": None}})
    content = msgspec.json.decode(msgspec.json.encode(document(found, judge(found, Asked()), "")))
    assert (content["status"], content["ranks"], content["launcher"]) == ("failed", 4, None)
    assert content["reason"].startswith("the clock of host n2 is 9.000 s ahead")
    first, second = content["hosts"]
    assert (first["name"], first["ranks"], first["devices"], first["memory_bytes"]) == (
        "n1",
        [0, 1],
        [None, None],
        None,
    )
    assert (second["clock_offset_seconds"], second["clock_uncertainty_seconds"]) == (9.0, 1e-5)
    assert (second["latency_seconds"], second["bandwidth_bytes_per_second"]) == (2e-6, 10e9)
    assert content["links"][3] == {"sender": 3, "receiver": 0, "latency": 2e-6, "bandwidth": 10e9}
    assert [(finding["check"], finding["rank"]) for finding in content["findings"]] == [("clock", 2)]


def test_the_document_of_one_rank_has_no_link() -> None:
    content = document(survey(["n1"], laps={0: {"hop": None}}), [], "srun")
    assert (content["links"], content["hosts"][0]["latency_seconds"]) == ([], None)


def test_what_breaks_off_is_a_document_with_its_reason() -> None:
    content = broken_off("hang: rank 1")
    assert (content["status"], content["reason"]) == ("failed", "hang: rank 1")
    assert failed(content["findings"])
