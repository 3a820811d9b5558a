"""Which MPI libraries cannot be started by a launcher that talks PMIx."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MPICH Version:      5.0.2\nMPICH configure:    --with-device=ch4:ofi --with-pm=hydra", True),
        ("MPICH Version:      5.0.2\nMPICH configure:    --with-pmix=/opt/pmix --with-pm=no", False),
        ("MPI VERSION    : CRAY MPICH version 8.1.29.0 (ANL base 3.4a2)", False),
        ("Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11", False),
    ],
    ids=["MPICH", "MPICH with PMIx", "Cray MPICH", "Open MPI"],
)
def test_only_an_mpich_without_pmix_speaks_no_pmix(text: str, expected: bool) -> None:
    from dlbench.comm.library import speaks_no_pmix  # noqa: PLC0415 - importing it starts MPI

    assert speaks_no_pmix(text) is expected
