"""Host lists: what they stand for, how they are written, and where a wrong one is wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import hostlist
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.slurm.hostlist import MOST_NAMES, HostListError, compress, expand


def fault(text: str) -> str:
    with pytest.raises(HostListError) as error:
        expand(text)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("viz05", ["viz05"]),
        ("b,a,b", ["b", "a", "b"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("lrdn[0098-0101]", ["lrdn0098", "lrdn0099", "lrdn0100", "lrdn0101"]),
        ("n[08-9,100]", ["n08", "n09", "n100"]),
        ("n[99-101]", ["n99", "n100", "n101"]),
        ("n[099-101]", ["n099", "n100", "n101"]),
        ("n[1-03]", ["n1", "n2", "n3"]),
        ("nid[005124-005125,005127-005128]", ["nid005124", "nid005125", "nid005127", "nid005128"]),
        ("isw1[0100,0102]", ["isw10100", "isw10102"]),
        ("n[5,3,3]", ["n5", "n3", "n3"]),
        ("jpbo-001-[01-02],jpbo-002-[01-02]", ["jpbo-001-01", "jpbo-001-02", "jpbo-002-01", "jpbo-002-02"]),
        ("jpbi-[001-002]-l1-[01-02]", ["jpbi-001-l1-01", "jpbi-001-l1-02", "jpbi-002-l1-01", "jpbi-002-l1-02"]),
        ("r[1-2][3-4]x", ["r13x", "r14x", "r23x", "r24x"]),
        ("n[1-2].cluster", ["n1.cluster", "n2.cluster"]),
        ("[1-2]", ["1", "2"]),
        (" n1 ,\n n[2-3]\tn4,", ["n1", "n2", "n3", "n4"]),
        ("", []),
    ],
)
def test_every_form_of_the_wild_expands_in_its_order(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["n1", "n2", "n3"], "n[1-3]"),
        (["n1", "n2", "n4"], "n[1-2,4]"),
        (["n3", "n1"], "n[3,1]"),
        (["n1", "n1", "n2"], "n[1,1-2]"),
        (["n1", "m1", "n2"], "n1,m1,n2"),
        (["n9", "n10"], "n[9-10]"),
        (["n09", "n10"], "n[09-10]"),
        (["n099", "n100", "n1000"], "n[099-100,1000]"),
        (["n999", "n1000"], "n[999-1000]"),
        (["n001", "n01", "n1"], "n[001,01,1]"),
        (["a1b1", "a1b2", "a2b1", "a2b2"], "a1b[1-2],a2b[1-2]"),
        (["n1-x", "n2-x"], "n1-x,n2-x"),
        (["login", "login"], "login,login"),
        (["1", "2"], "[1-2]"),
    ],
)
def test_a_list_is_written_as_slurm_writes_it(names: list[str], text: str) -> None:
    assert compress(names) == text
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n[3-1]", "host list 'n[3-1]', character 3: the range 3-1 descends; write 1-3"),
        ("a,n[1-2,9-7]", "character 9: the range 9-7 descends; write 7-9"),
        ("n[[1-2]]", "character 2: brackets within brackets; write one pair, as in n[1-3,5]"),
        ("n[1-[2]]", "character 2: brackets within brackets"),
        ("a,n[1-2", "character 4: '[' is never closed; write ']' after the numbers"),
        ("n[1,b[2]", "character 2: brackets within brackets"),
        ("n]", "character 2: ']' closes no bracket; write '[' before the numbers"),
        ("n[1]]", "character 5: ']' closes no bracket"),
        ("n[]", "character 3: expected a number or a range such as 01-48, found ''"),
        ("n[1,]", "character 5: expected a number or a range such as 01-48, found ''"),
        ("n[a-b]", "character 3: expected a number or a range such as 01-48, found 'a-b'"),
        ("n[1-2-3]", "found '1-2-3'"),
        ("n[-1]", "found '-1'"),
        ("n[1, 2]", "character 5: expected a number or a range such as 01-48, found ' 2'"),
        ("n[٣]", "found '٣'"),
        (f"n[{'9' * 5000}]", "character 3: expected a number"),
    ],
)
def test_what_is_wrong_is_said_with_its_position(text: str, said: str) -> None:
    assert said in fault(text)
    assert fault(text).count("\n") == 0
    assert len(fault(text)) < 250


def test_the_error_of_a_long_list_shows_the_part_that_is_wrong() -> None:
    text = f"{','.join(f'node{index}' for index in range(1000))},bad[5-4],more"
    # 4000 letters, 2890 digits, 1000 commas and "bad[" stand before it.
    assert "bad[5-4],more', character 7895: the range 5-4 descends" in fault(text)


@pytest.mark.parametrize(
    "text", ["n[0-999999999999]", "n[1-1000001]", "n[0-999][0-1000]", "n[1-999999],m[1-2]", "n[1-600000,1-600000]"]
)
def test_a_list_of_more_names_than_any_machine_has_is_refused_at_once(text: str) -> None:
    start = time.perf_counter()
    said = fault(text)
    assert "1,000,000" in said
    assert "name fewer" in said
    assert time.perf_counter() - start < 5


def test_a_list_of_as_many_names_as_are_allowed_is_expanded() -> None:
    assert len(expand(f"n[1-{MOST_NAMES}]")) == MOST_NAMES


@pytest.mark.parametrize("name", ["", "a,b", "n[1]", "a b", "n\n", "]"])
def test_a_name_that_cannot_stand_in_a_list_is_refused(name: str) -> None:
    with pytest.raises(HostListError, match="without commas, brackets and white space"):
        compress(["n1", name])


NAMES = st.lists(
    st.one_of(
        st.from_regex(r"[a-c]{0,2}-?[0-9]{1,3}", fullmatch=True),
        st.from_regex(r"[a-c]{1,2}[0-9]{0,2}-?[a-c]?[0-9]{0,20}", fullmatch=True),
        st.builds("n{:02}".format, st.integers(min_value=0, max_value=120)),
    ),
    max_size=30,
)


@given(NAMES)
def test_compressing_loses_neither_order_nor_duplicates(names: list[str]) -> None:
    assert expand(compress(names)) == names
    assert hostlist.expand_hostlist(compress(names), allow_duplicates=True) == names


RANGE = st.builds(
    lambda low, more, width: f"{low:0{width}}" if more is None else f"{low:0{width}}-{low + more}",
    st.integers(0, 1200),
    st.none() | st.integers(0, 12),
    st.integers(1, 5),
)
BRACKET = st.lists(RANGE, min_size=1, max_size=3).map(lambda ranges: f"[{','.join(ranges)}]")
ELEMENT = st.lists(st.sampled_from(["n", "rack-", "0", "x7."]) | BRACKET, min_size=1, max_size=2).map("".join)


@given(st.lists(ELEMENT, max_size=4).map(",".join))
def test_a_list_means_what_it_means_to_python_hostlist(text: str) -> None:
    assert expand(text) == hostlist.expand_hostlist(text, allow_duplicates=True)


@given(st.text(alphabet="n-,[]0129 ", max_size=20))
def test_any_text_is_a_list_or_a_one_line_error(text: str) -> None:
    try:
        names = expand(text)
    except HostListError as error:
        assert "\n" not in str(error)
    else:
        assert expand(compress(names)) == names


@pytest.fixture(scope="module")
def scontrol(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """SLURM's own `scontrol show`, which needs a configuration and no running SLURM."""
    program = shutil.which("scontrol")
    if program is None:
        pytest.skip("scontrol is not installed")
    path: Path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    path.write_text("ClusterName=c\nSlurmctldHost=localhost\nNodeName=n CPUs=1\nPartitionName=p Nodes=ALL\n")
    return ["env", f"SLURM_CONF={path}", program, "show"]


def asked(scontrol: list[str], what: str, hosts: str) -> list[str]:
    done = subprocess.run(
        [*scontrol, what, hosts], capture_output=True, text=True, timeout=30, check=True, env=dict(os.environ)
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    "text",
    ["n[008-011]", "n[9-11,3,3]", "jpbi-[001-003]-l1-[01-02]", "a,b,a", "n[099-100],n1000,m[1-2]", "a1b1,a1b2,a2b1"],
)
def test_slurm_itself_reads_and_writes_the_same(scontrol: list[str], text: str) -> None:
    names = expand(text)
    assert asked(scontrol, "hostnames", text) == names
    assert asked(scontrol, "hostlist", ",".join(names)) == [compress(names)]


@pytest.mark.parametrize(
    "names",
    [
        [f"lrdn{index:04}" for index in range(10_000)],
        [f"rack-{index % 100:03}-{index // 100:03}" for index in range(10_000)],
    ],
    ids=["one range", "no two neighbours"],
)
def test_ten_thousand_nodes_take_milliseconds(names: list[str]) -> None:
    def seconds() -> float:
        start = time.perf_counter()
        assert expand(compress(names)) == names
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) < 0.2
