"""What is wrong with a machine, from facts made by hand: each fault is named, with its rank and host, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from handmade_survey import GB, VERSIONS, judged, lines, survey
from hypothesis import given
from hypothesis import strategies as st

from dlbench.runtime.machine.survey import DeviceFacts, Fault, Survey, compressed_ranks


def with_versions(rank: int, **versions: str) -> dict[str, Any]:
    return {"facts": {rank: {"versions": {**VERSIONS, **versions}}}}


def with_devices(values: Sequence[str | None], variable: str = "CUDA_VISIBLE_DEVICES", **facts: Any) -> Survey:
    """Four ranks on one host."""
    devices = [DeviceFacts(variables={} if value is None else {variable: value}, **facts) for value in values]
    return survey(["n1"] * 4, facts={rank: {"devices": found} for rank, found in enumerate(devices)})


def test_a_sound_machine_has_no_findings() -> None:
    assert lines(survey(), ranks_per_node=2, tasks=4, nodes=2) == []


def test_a_single_rank_has_no_findings() -> None:
    assert lines(survey(["n1"], laps={0: {"hop": None}})) == []


def test_ranks_per_node_are_those_asked_for_on_every_host() -> None:
    found = survey(["n1", "n1", "n1", "n2"])
    assert lines(found, ranks_per_node=2) == [
        "error ranks per node: host n1 has 3 ranks (0-2), asked for were 2 per node",
        "error ranks per node: host n2 has 1 rank (3), asked for were 2 per node",
    ]
    assert [(finding.rank, finding.host) for finding in judged(found, ranks_per_node=2)] == [(0, "n1"), (3, "n2")]


def test_the_last_host_may_have_what_is_left_and_no_other_may() -> None:
    assert lines(survey(["n1", "n1", "n2"]), ranks_per_node=2) == []
    assert lines(survey(["n1", "n2", "n2"]), ranks_per_node=2) == [
        "error ranks per node: host n1 has 1 rank (0), asked for were 2 per node"
    ]


def test_hosts_that_differ_without_being_asked_are_a_warning() -> None:
    found = survey(["n1", "n1", "n2", "n3", "n3", "n4", "n4"])
    assert lines(found) == ["warning ranks per node: host n2 has 1 rank (2), most hosts have 2"]


def test_ranks_of_a_host_must_follow_each_other() -> None:
    first, second = lines(survey(["n1", "n2", "n1", "n2"]))
    assert first.startswith(
        "error rank order: host n1 has 2 ranks (0,2): ranks must follow each other on a host; use srun"
    )
    assert second.startswith("error rank order: host n2 has 2 ranks (1,3): ")


def test_a_part_of_the_allocation_without_ranks_is_a_warning() -> None:
    assert lines(survey(), tasks=8, nodes=4) == [
        "warning world size: 4 ranks, but the allocation is for 8 (SLURM_NTASKS)",
        "warning world size: the ranks are on 2 hosts, but the allocation has 4",
    ]


def test_two_machines_of_one_name_are_an_error() -> None:
    assert lines(survey(facts={3: {"boot": "another"}})) == [
        "error hosts: rank 3 (n2) is on another machine than rank 2, of the same name"
    ]


def test_two_names_of_one_machine_are_a_warning() -> None:
    assert lines(survey(facts={rank: {"boot": "same"} for rank in range(4)})) == [
        "warning hosts: n1, n2 are one machine: their ranks share its cores and its network"
    ]


def test_a_corrupted_message_names_the_link_and_the_byte() -> None:
    fault = Fault(sender=1, receiver=2, size=65536, byte=77, count=3)
    (finding,) = judged(survey(laps={2: {"faults": (fault,)}}))
    assert finding.message == (
        "rank 1 (n1) → rank 2 (n2) corrupts messages: 3 of 65536 bytes are wrong, the first is byte 77"
    )
    assert (finding.severity, finding.rank, finding.host) == ("error", 2, "n2")


EIGHT = ["n1"] * 8 + ["n2"] * 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"latency": 9e-6},
            "rank 3 (n1) → rank 4 (n1) is slow: latency 9.000 µs, median of the links within hosts 2.000 µs",
        ),
        (
            {"bandwidth": 2.5e9},
            "rank 3 (n1) → rank 4 (n1) is slow: bandwidth 2.500 GB/s, median of the links within hosts 10.00 GB/s",
        ),
    ],
)
def test_a_slow_link_is_a_warning(change: dict[str, float], message: str) -> None:
    assert lines(survey(EIGHT, hops={3: change})) == [f"warning links: {message}"]


def test_a_link_less_than_three_times_slower_is_none() -> None:
    assert lines(survey(EIGHT, hops={3: {"latency": 5.9e-6}})) == []


def test_links_between_hosts_are_not_held_to_those_within() -> None:
    between = {7: {"latency": 20e-6}, 15: {"latency": 20e-6}}
    assert lines(survey(EIGHT, hops=between)) == []
    hosts = [f"n{rank}" for rank in range(8)]
    slow = survey(hosts, hops={5: {"latency": 50e-6}})
    assert lines(slow) == [
        "warning links: rank 5 (n5) → rank 6 (n6) is slow: latency 50.00 µs, median of the links between hosts 2.000 µs"
    ]


def test_a_link_among_links_that_scatter_as_much_is_no_outlier() -> None:
    # Latencies 1 … 16 µs: the median is 8.5, the median deviation 4; 3 × 8.5 < 26, but 26 − 8.5 < 6 × 1.4826 × 4.
    scattered = {rank: {"latency": (rank + 1) * 1e-6} for rank in range(16)} | {15: {"latency": 26e-6}}
    assert lines(survey(["n1"] * 16, hops=scattered)) == []


def test_times_of_ranks_that_take_turns_are_not_judged() -> None:
    crowded = {rank: {"cores": (0, 1)} for rank in range(8)}
    assert lines(survey(["n1"] * 8, hops={3: {"latency": 1.0}}, facts=crowded)) == [
        "warning cores: 8 ranks (0-7) of host n1 share 2 cores"
    ]


def test_a_device_with_two_ranks_is_an_error_where_a_variable_chose_it() -> None:
    assert lines(with_devices(["0", "1", "1", "3"])) == [
        "error devices: 2 ranks (1-2) of host n1 share cuda:1 (CUDA_VISIBLE_DEVICES=1)"
    ]


def test_more_ranks_than_devices_are_a_warning_where_nothing_chose() -> None:
    found = with_devices([None] * 4, vendor="cuda", accessible=(0, 1))
    assert lines(found) == [
        "warning devices: 2 ranks (0,2) of host n1 share cuda:0",
        "warning devices: 2 ranks (1,3) of host n1 share cuda:1",
    ]


def test_the_same_device_number_on_two_hosts_is_fine() -> None:
    one = DeviceFacts(variables={"CUDA_VISIBLE_DEVICES": "0"})
    assert lines(survey(["n1", "n2"], facts={0: {"devices": one}, 1: {"devices": one}})) == []


def test_number_0_of_a_control_group_each_is_fine() -> None:
    groups = [DeviceFacts("cuda", (device,), {"CUDA_VISIBLE_DEVICES": "0"}) for device in range(4)]
    assert lines(survey(["n1"] * 4, facts={rank: {"devices": found} for rank, found in enumerate(groups)})) == []


def test_a_rank_without_a_device_beside_others_with_one_is_an_error() -> None:
    assert lines(with_devices(["0", "1", "", "3"])) == [
        "error devices: rank 2 (n1) sees no GPU (CUDA_VISIBLE_DEVICES=)"
    ]


def test_ranks_without_any_device_run_on_cpus() -> None:
    assert lines(with_devices(["", "-1", "NoDevFiles", None])) == []


def test_a_variable_that_names_what_is_not_there_is_an_error() -> None:
    found = with_devices(["0", "1", "2", "3"], vendor="cuda", accessible=(0, 1, 2))
    assert lines(found) == ["error devices: rank 3 (n1): CUDA_VISIBLE_DEVICES=3 names GPU 3, but the rank can open 3"]


@pytest.mark.parametrize(
    ("offset", "finding"),
    [
        (0.09, None),
        (0.100005, None),  # within the uncertainty
        (0.5, "warning clock: the clock of host n2 is 500.0 ms ahead of that of rank 0, ± 10.00 µs"),
        (-0.5, "warning clock: the clock of host n2 is 500.0 ms behind that of rank 0, ± 10.00 µs"),
        (-7.25, "error clock: the clock of host n2 is 7.250 s behind that of rank 0, ± 10.00 µs"),
    ],
)
def test_clocks_beyond_the_limit_are_warned_of_and_beyond_5_seconds_an_error(
    offset: float, finding: str | None
) -> None:
    found = lines(survey(clocks={2: {"offset": offset}, 3: {"offset": offset}}))
    assert [line.partition(":")[0] + ":" + line.partition(":")[2].partition(": slow")[0] for line in found] == (
        [finding] if finding else []
    )


def test_the_limit_of_the_clocks_can_be_set() -> None:
    behind = survey(clocks={2: {"offset": -0.5}})
    assert lines(behind, clock_limit=1.0) == []
    assert lines(survey(clocks={2: {"offset": 6.0}}), clock_limit=10.0)[0].startswith("error clock: ")


def test_a_rank_of_another_version_is_named() -> None:
    assert lines(survey(**with_versions(2, NumPy="1.26.4"))) == [
        "error versions: rank 2 (n2): NumPy 1.26.4, but 2.1.0 on most ranks"
    ]


def test_of_two_versions_the_more_frequent_is_the_usual_one() -> None:
    old = {"versions": {**VERSIONS, "Python": "3.11.0"}}
    found = survey(["n1", "n2", "n2", "n3", "n3"], facts={0: old})
    assert "error versions: rank 0 (n1): Python 3.11.0, but 3.12.1 on most ranks" in lines(found)
    assert "error versions: rank 1 (n1) and 2 more: Python 3.11.0, but 3.12.1 on most ranks" in lines(
        survey(["n1"] * 8, facts={rank: old for rank in (1, 5, 7)})
    )


def test_another_content_of_the_package_is_an_error_on_all_ranks_that_import_it() -> None:
    assert lines(survey(facts={2: {"source_hash": "def"}})) == [
        "error versions: rank 2 (n2) and 1 more: content of the package dlbench, SHA-256 def, but abc on most ranks"
    ]


def test_another_folder_with_the_same_content_is_a_warning() -> None:
    other = {"source": "/home/me/dlbench"}
    assert lines(survey(facts={2: other, 3: other})) == [
        "warning versions: rank 2 (n2) and 1 more: folder of the package dlbench /home/me/dlbench, "
        "but /opt/dlbench on most ranks"
    ]


def test_a_host_with_less_than_half_of_the_usual_memory_is_a_warning() -> None:
    hosts = ["n1", "n2", "n3"]
    assert lines(survey(hosts, facts={1: {"memory": 49 * GB}})) == [
        "warning memory: host n2 has 49.00 GB of memory available, the median is 100.0 GB"
    ]
    assert lines(survey(hosts, facts={1: {"memory": 51 * GB}, 2: {"memory": None}})) == []


def test_ranks_bound_to_one_core_are_a_warning() -> None:
    assert lines(survey(facts={1: {"cores": (0,)}})) == ["warning cores: 2 ranks (0-1) of host n1 share 1 core"]


def test_sets_of_cores_that_overlap_are_a_warning() -> None:
    assert lines(survey(facts={0: {"cores": (0, 1)}, 1: {"cores": (1, 2)}})) == [
        "warning cores: host n1 has ranks bound to cores of others: 1"
    ]


def test_ranks_that_are_bound_to_nothing_and_have_cores_enough_are_fine() -> None:
    assert lines(survey(facts={rank: {"cores": (0, 1, 2, 3)} for rank in range(4)})) == []


def test_errors_come_first() -> None:
    found = survey(facts={1: {"cores": (0,)}, 2: {"memory": 1}}, clocks={2: {"offset": 60.0}})
    assert [line.partition(" ")[0] for line in lines(found)] == ["error", "warning", "warning"]


@pytest.mark.parametrize(
    ("ranks", "text"), [([5], "5"), ([0, 1, 2, 3], "0-3"), ([0, 2, 4, 5, 6, 7], "0,2,4-7"), ([], "")]
)
def test_ranks_are_compressed(ranks: list[int], text: str) -> None:
    assert compressed_ranks(ranks) == text


@given(st.sets(st.integers(0, 60)))
def test_compressed_ranks_lose_none(ranks: set[int]) -> None:
    found: list[int] = []
    for part in filter(None, compressed_ranks(sorted(ranks)).split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    assert found == sorted(ranks)
