"""`dlbench doctor` on the login node of a real SLURM cluster, and where its controller is gone."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from testbed import Testbed

DOCTOR = [sys.executable, "-m", "dlbench", "doctor", "--json", "--timeout", "60"]


def pieces(printed: str) -> dict[str, Any]:
    return {piece["name"]: piece for piece in json.loads(printed)["pieces"]}


def test_a_cluster_has_a_controller_partitions_and_the_types_of_its_srun(cluster: Testbed) -> None:
    found = pieces(cluster.run(*DOCTOR))
    assert found["slurm"]["state"] == "ok"
    assert found["slurm"]["facts"]["partitions"] == ["main"]
    assert found["slurm"]["facts"]["controller"].endswith("is UP")
    assert {"none", "pmi2"} <= set(found["pmi"]["facts"]["offered"])


def test_a_configuration_whose_controller_is_gone_is_a_line(cluster: Testbed) -> None:
    configuration = (cluster.folder / "slurm.conf").read_text()
    port = next(line for line in configuration.splitlines() if line.startswith("SlurmctldPort="))
    elsewhere = cluster.folder / "elsewhere.conf"
    # Nobody listens on port 1, and SLURM gives up at once where it cannot even connect.
    elsewhere.write_text(configuration.replace(port, "SlurmctldPort=1\nMessageTimeout=5"))
    done = subprocess.run(
        DOCTOR,
        env={**cluster.environment, "SLURM_CONF": str(elsewhere)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = pieces(done.stdout)
    assert found["slurm"]["state"] == "broken"
    assert "but no controller: scontrol " in found["slurm"]["found"]
    assert found["mpi"]["state"] == "ok"
