"""Systems: the facts of the study's machines, and facts that contradict each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlbench.errors import SpecError
from dlbench.specs import SystemSpec, load_system, system_names

SMALL = """
name: small
description: two nodes under a desk
gpu: a100
gpus_per_node: 2
intra_node: {link: NVLink 3, switched: false, pair_bytes_per_second_min: 100e9, pair_bytes_per_second_max: 100e9}
network: {fabric: Ethernet, nics_per_node: 1, nic_gbps: 25}
topology: {kind: dragonfly, groups: 1, nodes_per_group: 2, l1_switches_per_group: 1, nodes_per_l1_switch: 2}
scheduler: {partition: gpu, cpus_per_task: 4}
sources: {gpu: seen, intra_node: seen, network: seen, topology: seen, scheduler: seen}
"""


def small(tmp_path: Path, old: str = "", new: str = "") -> Path:
    """File of a small system with one piece of its text replaced."""
    assert old in SMALL
    path = tmp_path / "small.yaml"
    path.write_text(SMALL.replace(old, new) if old else SMALL)
    return path


def test_the_shipped_systems_are_those_of_the_study_and_this_machine() -> None:
    assert system_names() == ["alps", "dgx-a100", "jupiter", "leonardo", "local", "lumi", "nvl72"]


@pytest.mark.parametrize(
    ("name", "gpus_per_node", "gpu", "nics", "gbps", "fabric"),
    [
        ("alps", 4, "gh200", 4, 200, "Slingshot 11"),
        ("jupiter", 4, "gh200", 4, 200, "InfiniBand NDR"),
        ("leonardo", 4, "a100-64gb", 4, 100, "InfiniBand HDR"),
        ("lumi", 8, "mi250x-gcd", 4, 200, "Slingshot 11"),
    ],
)
def test_nodes_of_the_supercomputers(
    name: str, gpus_per_node: int, gpu: str, nics: int, gbps: float, fabric: str
) -> None:
    system = load_system(name)
    assert (system.gpus_per_node, system.gpu) == (gpus_per_node, gpu)
    assert system.network is not None
    assert (system.network.nics_per_node, system.network.nic_gbps, system.network.fabric) == (nics, gbps, fabric)


@pytest.mark.parametrize(
    ("name", "groups", "nodes", "l1", "l2", "per_switch"),
    [
        ("alps", None, None, None, None, None),
        ("jupiter", 25, 240, 15, 16, 16),
        ("leonardo", 19, 180, 18, 18, 10),
        ("lumi", 24, 124, None, None, 8),
        ("nvl72", 1, 18, 1, None, 18),
        ("dgx-a100", 1, 1, 1, None, 1),
        ("local", 1, 1, 1, None, 1),
    ],
)
def test_groups_and_switches(
    name: str, groups: int | None, nodes: int | None, l1: int | None, l2: int | None, per_switch: int | None
) -> None:
    topology = load_system(name).topology
    assert (topology.groups, topology.nodes_per_group) == (groups, nodes)
    assert (topology.l1_switches_per_group, topology.l2_switches_per_group) == (l1, l2)
    assert topology.nodes_per_l1_switch == per_switch


def test_alps_gives_the_ports_of_a_switch_and_not_its_nodes() -> None:
    assert load_system("alps").topology.endpoint_ports_per_l1_switch == 16


@pytest.mark.parametrize(
    ("name", "switched", "slowest", "fastest"),
    [
        ("alps", False, 150e9, 150e9),
        ("jupiter", False, 150e9, 150e9),
        ("leonardo", False, 100e9, 100e9),
        ("lumi", False, 50e9, 200e9),
        ("nvl72", True, 900e9, 900e9),
        ("dgx-a100", True, 300e9, 300e9),
    ],
)
def test_links_inside_a_node(name: str, switched: bool, slowest: float, fastest: float) -> None:
    links = load_system(name).intra_node
    assert links is not None
    assert links.switched is switched
    assert (links.pair_bytes_per_second_min, links.pair_bytes_per_second_max) == (slowest, fastest)


@pytest.mark.parametrize(
    ("name", "partition", "cpus"),
    [
        ("alps", "normal", 72),
        ("jupiter", "booster", 72),
        ("leonardo", "boost_usr_prod", 8),
        ("lumi", "standard-g", 7),
    ],
)
def test_partition_and_cpus_of_a_site(name: str, partition: str, cpus: int) -> None:
    scheduler = load_system(name).scheduler
    assert scheduler is not None
    assert (scheduler.partition, scheduler.cpus_per_task) == (partition, cpus)


def test_software_of_leonardo() -> None:
    scheduler = load_system("leonardo").scheduler
    assert scheduler is not None
    assert scheduler.modules == ("gcc/12.2.0", "openmpi/4.1.6--gcc--12.2.0-cuda-12.2", "nvhpc/24.5")
    assert scheduler.environment == {"NCCL_IB_SL": "1", "UCX_IB_SL": "1"}


def test_software_of_jupiter() -> None:
    scheduler = load_system("jupiter").scheduler
    assert scheduler is not None
    expected = "CUDA/13 nvidia-compilers/25.9-CUDA-13 NCCL/default-CUDA-13 OpenMPI/5.0.8"
    assert scheduler.modules == tuple(expected.split())


def test_software_of_alps_is_a_uenv() -> None:
    scheduler = load_system("alps").scheduler
    assert scheduler is not None
    assert (scheduler.uenv, scheduler.view) == ("prgenv-gnu/26.3:v1", "default")
    assert scheduler.srun_flags == ("--mpi=cray_shasta",)
    assert scheduler.modules == ()


def test_software_of_lumi() -> None:
    scheduler = load_system("lumi").scheduler
    assert scheduler is not None
    expected = "LUMI/25.03 partition/G craype-accel-amd-gfx90a aws-ofi-rccl rocm/6.3.4"
    assert scheduler.modules == tuple(expected.split())
    assert scheduler.environment == {
        "NCCL_NET_GDR_LEVEL": "3",
        "FI_CXI_ATS": "0",
        "NCCL_BUFFSIZE": "33554432",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
        "FI_CXI_DEFAULT_CQ_SIZE": "13107",
        "HSA_ENABLE_SDMA": "0",
        "NCCL_SOCKET_IFNAME": "hsn0",
    }


def test_the_local_machine_has_neither_gpu_nor_scheduler() -> None:
    local = load_system("local")
    assert (local.gpu, local.gpus_per_node, local.network, local.scheduler) == (None, None, None, None)


@pytest.mark.parametrize("name", system_names())
def test_a_system_survives_a_broadcast(name: str) -> None:
    system = load_system(name)
    assert system.name == name
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(system), type=SystemSpec) == system


def test_a_small_system_of_ones_own_loads(tmp_path: Path) -> None:
    system = load_system(str(small(tmp_path)))
    assert system.gpu == "a100"
    assert system.scheduler is not None
    assert system.scheduler.modules == ()


def test_a_system_may_bring_its_gpu_beside_itself(tmp_path: Path, gpu_fields: dict[str, Any], write_yaml: Any) -> None:
    write_yaml(tmp_path / "mine.yaml", gpu_fields)
    system = load_system(str(small(tmp_path, "gpu: a100\n", "gpu: mine.yaml\n")))
    assert system.gpu == str(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("gpu: a100\n", "gpu: a10\n", "at gpu: unknown gpu 'a10'; did you mean 'a100'\\? valid: a100, .*"),
        ("gpu: a100\n", "gpu: null\n", "at gpus_per_node: expected null where gpu is null, found 2"),
        (
            "gpus_per_node: 2",
            "gpus_per_node: null",
            "at gpus_per_node: expected an integer >= 1 beside a gpu, found null",
        ),
        (
            "_max: 100e9",
            "_max: 50e9",
            "at intra_node.pair_bytes_per_second_max: expected at least the minimum, 1e\\+11, found 50000000000.0",
        ),
        (
            "nodes_per_group: 2",
            "nodes_per_group: 3",
            "at topology.nodes_per_group: expected at most 1 switches × 2 nodes = 2, found 3",
        ),
        (
            "nodes_per_l1_switch: 2",
            "nodes_per_l1_switch: 9",
            "at topology.nodes_per_l1_switch: expected at most nodes_per_group = 2, found 9",
        ),
        (
            "cpus_per_task: 4",
            "cpus_per_task: 4, view: default",
            "at scheduler.view: expected none without a uenv, found default",
        ),
        (
            ", scheduler: seen",
            "",
            "at sources: expected a source for each of gpu, intra_node, network, topology, scheduler, found .*",
        ),
        ("cpus_per_task: 4", "cpus_per_task: 0", "at scheduler.cpus_per_task: expected an integer >= 1, found 0"),
        (
            "kind: dragonfly",
            "kind: ring",
            'at topology.kind: expected one of dragonfly, dragonfly\\+, nvlink-domain, single-node, found "ring"',
        ),
        ("nic_gbps: 25", "nic_gbps: -25", "at network.nic_gbps: expected a number > 0, found -25"),
        (
            "cpus_per_task: 4",
            "cpus_per_task: 4, environment: {X: 1}",
            "at scheduler.environment.X: expected text, found 1; put it in quotes",
        ),
        (
            "cpus_per_task: 4",
            "cpus_per_task: 4, modules: [gcc, 5]",
            "at scheduler.modules\\[1\\]: expected text, found 5; put it in quotes",
        ),
        ("cpus_per_task: 4", "cpus_per_task: 4, modules: gcc", 'at scheduler.modules: expected a list, found "gcc"'),
        (
            "network: {",
            "network: {nic_gpbs: 25, ",
            "at network.nic_gpbs: unknown key 'nic_gpbs'; did you mean 'nic_gbps'\\? .*",
        ),
        ("switched: false", "switched: 0", "at intra_node.switched: expected true or false, found 0"),
    ],
)
def test_a_wrong_fact_is_one_line_that_names_the_file_and_the_place(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = small(tmp_path, old, new)
    with pytest.raises(SpecError) as caught:
        load_system(str(path))
    assert re.fullmatch(f"{re.escape(str(path))}: {message}", str(caught.value))
