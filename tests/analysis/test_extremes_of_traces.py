"""`dlbench extremes` of Kineto traces whose block times are known."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from kineto_writer import Collective, Group, run, write_run

from dlbench.cli.extremes import extremes
from dlbench.errors import OptionError, UserError


def traces(folder: Path, ranks: int = 8, steps: int = 41) -> str:
    """Traces of a run whose ranks compute for 10 ± 1 ms before each all-reduce."""
    folder.mkdir()
    group = Group("0", tuple(range(ranks)), "dp")
    own = np.random.default_rng(2).normal(10e6, 1e6, size=(steps, ranks)).astype(int)
    write_run(folder, run([Collective("allreduce", group)] * steps, [dict(enumerate(row)) for row in own.tolist()]))
    return str(folder)


def test_traces_are_fitted_as_records_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extremes([traces(tmp_path / "traces"), "--json"])
    document = json.loads(capsys.readouterr().out)
    fit = document["fits"][1]
    assert (fit["instances"], fit["ranks"], fit["source"]) == (40, 8, "dp (0-7)")
    assert fit["block_seconds"] == pytest.approx(0.010, rel=0.02)
    assert fit["spread_seconds"] == pytest.approx(0.001, rel=0.1)
    row = next(row for row in document["predictions"] if row["predicted_ranks"] == 8)
    # Eight normal ranks of 1 ms wait 1.4236 ms; forty instances tell it to a tenth.
    assert row["collective_seconds"] == pytest.approx(0.0014236, rel=0.15)
    assert row["collective_seconds"] == pytest.approx(row["measured_seconds"], rel=1e-3)
    assert row["error"] == pytest.approx(row["tau"] / row["measured_seconds"] - 1)
    assert abs(row["error"]) < 0.05  # groups of 4 predict 8, which were measured
    assert "strategy" not in row


def test_a_trace_of_one_rank_has_nobody_to_wait_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"only rank 0 has kernels of it here; two at least are needed"):
        extremes([traces(tmp_path / "traces", ranks=1)])


def test_a_group_with_too_few_collectives_is_one_line(tmp_path: Path) -> None:
    said = "dp (0-7): 4 blocks were measured; a tail takes 30 or more"
    with pytest.raises(UserError, match=f"^{re.escape(said)}$"):
        extremes([traces(tmp_path / "traces", steps=5)])


def test_one_collective_encloses_no_block(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="^no block times: no group of ranks has two collectives$"):
        extremes([traces(tmp_path / "traces", steps=1)])


def test_filters_have_no_meaning_for_traces(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="^--strategy has no meaning for traces; leave it out$"):
        extremes([traces(tmp_path / "traces", steps=2), "--strategy", "dp"])
