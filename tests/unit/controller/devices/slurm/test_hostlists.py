"""Hostlists: what Slurm writes for many nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.devices.slurm.hostlists import compress, expand

NAMES = st.from_regex(r"[a-z]([a-z.-]{0,2}[0-9]{0,4}){0,3}", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("n0", ("n0",)),
        ("n[0-3,7]", ("n0", "n1", "n2", "n3", "n7")),
        ("n[0-1],m[01-03]", ("n0", "n1", "m01", "m02", "m03")),
        ("n[8-11]", ("n8", "n9", "n10", "n11")),
        ("r[0-1]n[08-10]", ("r0n08", "r0n09", "r0n10", "r1n08", "r1n09", "r1n10")),
        ("gpu-[1-2].rack,login", ("gpu-1.rack", "gpu-2.rack", "login")),
    ],
)
def test_hostlists_of_slurm(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    [
        *("n[0-3", "n]0[", "n[]", "n[a]", "n[3-1]", "n[0-3]]", ",", "n0,,n1", "n 0", "n[0--2]"),
        *("n[-1]", "n\n", "(null)", "n[٣]", "n[0-99999999]", "n[0-999]m[0-999]", "n[0-" + "9" * 40),
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"hostlist|numbers"):
        expand(text)


def test_too_long_a_text_is_refused() -> None:
    with pytest.raises(ValueError, match="characters"):
        expand("n0," * 400_000)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), ""),
        (("n0",), "n0"),
        (("n1", "n0", "n1"), "n[0-1]"),
        (("n9", "n10", "n11", "login"), "login,n[9-11]"),
        (("m01", "m02", "m1"), "m[1,01-02]"),
    ],
)
def test_compress(names: tuple[str, ...], text: str) -> None:
    assert compress(names) == text


@given(st.sets(NAMES, max_size=40))
def test_names_come_back(names: set[str]) -> None:
    found = expand(compress(names))
    assert len(found) == len(names)
    assert set(found) == names


@given(st.text(alphabet="n[]0123,-. ", max_size=30))
def test_any_text_gives_names_or_an_error(text: str) -> None:
    try:
        names = expand(text)
    except ValueError:
        return
    assert set(expand(compress(names))) == set(names)
