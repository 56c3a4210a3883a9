"""The token's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.devices.observed import ObservedError
from controller.devices.slurm.token import TokenFile
from tests.unit.controller.devices.slurm.tokens import jwt


def written(folder: Path, text: str, mode: int = 0o640) -> TokenFile:
    file = folder / "token"
    file.write_text(text)
    file.chmod(mode)
    return TokenFile(file)


def test_a_token_is_read_again_when_it_changes(tmp_path: Path) -> None:
    token = written(tmp_path, "SLURM_JWT=a.b.c\n")
    assert token.read() == "a.b.c"
    beside = tmp_path / "new"
    beside.write_text("d.e.f")
    beside.chmod(0o600)
    beside.replace(tmp_path / "token")
    assert token.read() == "d.e.f"


@pytest.mark.parametrize(
    ("claims", "end"),
    [({"exp": 1_795_763_030}, 1_795_763_030), ({"sun": "slurm"}, None), ([1], None)],
)
def test_when_it_ends(tmp_path: Path, claims: object, end: float | None) -> None:
    assert written(tmp_path, jwt(claims)).expires_at() == end


@pytest.mark.parametrize("text", ["a", "a.b.c", "a.!!.c"])
def test_a_token_that_says_nothing(tmp_path: Path, text: str) -> None:
    assert written(tmp_path, text).expires_at() is None


@pytest.mark.parametrize("text", ["", "a b", "a\x00b", "x" * 20_000])
def test_what_is_no_token(tmp_path: Path, text: str) -> None:
    with pytest.raises(ObservedError, match="no token"):
        written(tmp_path, text).read()


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    with pytest.raises(ObservedError, match="everybody can read it") as error:
        written(tmp_path, "a.b.c", 0o644).read()
    assert error.value.code == "forbidden"


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ObservedError) as error:
        TokenFile(tmp_path / "none").read()
    assert error.value.code == "forbidden"
    assert error.value.hint
