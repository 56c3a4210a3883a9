import os
import stat
from pathlib import Path

import pytest

from ocs_driver import OcsError
from ocs_driver.ledger import CircuitClaims, Claims


def ledger(folder: Path, now: list[float], group: str = "lightloom") -> CircuitClaims:
    return CircuitClaims(folder, "SN1@host:5025", group, lambda: now[0])


def test_claims_survive_and_are_dropped_with_their_circuit(tmp_path: Path) -> None:
    now = [1000.0]
    ledger(tmp_path, now).claim(["1,26", "2,25"])
    again = ledger(tmp_path, now)
    assert again.owners({"1,26", "7,9"}) == {"1,26": "lightloom"}
    # Seen once and gone: the next circuit on these ports has another owner.
    assert again.owners(set()) == {}
    assert again.owners({"1,26"}) == {}
    # Never seen: its make may still be in progress for a while.
    assert again.owners({"2,25"}) == {"2,25": "lightloom"}


def test_an_unused_claim_expires(tmp_path: Path) -> None:
    now = [1000.0]
    ledger(tmp_path, now).claim(["1,26"])
    now[0] += 120.0
    assert ledger(tmp_path, now).owners(set()) == {}
    assert ledger(tmp_path, now).owners({"1,26"}) == {}


def test_groups_are_kept_apart(tmp_path: Path) -> None:
    now = [1000.0]
    ledger(tmp_path, now, "other").claim(["1,2"])
    assert ledger(tmp_path, now).owners({"1,2"}) == {"1,2": "other"}


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "SN1_host_5025.json").write_text("{")
    (tmp_path / "SN1@host:5025.json").write_text("{")
    with pytest.raises(OcsError, match="bad_ledger"):
        ledger(tmp_path, [0.0]).owners(set())


def test_a_claim_renewed_by_another_process_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renewal happens between the read of an old claim without circuit and its removal."""
    now = [1000.0]
    ours, other = ledger(tmp_path, now), ledger(tmp_path, now)
    ours.claim(["1,2"])
    now[0] += 1000.0
    read = ours._read

    def late() -> Claims:
        claims = read()
        monkeypatch.setattr(ours, "_read", read)
        other.claim(["1,2"])
        return claims

    monkeypatch.setattr(ours, "_read", late)
    ours.owners(set())
    assert ours.owners({"1,2"}) == {"1,2": "lightloom"}


def test_a_claim_survives_a_power_failure_with_its_file_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is synced after the rename: otherwise the old list may return."""
    synced: list[str] = []
    sync = os.fsync

    def noted(handle: int) -> None:
        sync(handle)
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            synced.append((tmp_path / "SN1_host_5025.json").read_text())

    monkeypatch.setattr(os, "fsync", noted)
    ledger(tmp_path, [1000.0]).claim(["1,26"])
    assert synced
    assert "1,26" in synced[-1]


def test_a_list_of_an_older_folder_is_moved_unless_there_is_one(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    now = [1000.0]
    ledger(old, now).claim(["1,26"])
    moved = CircuitClaims(new, "SN1@host:5025", "lightloom", lambda: now[0], older=old)
    assert moved.owners({"1,26"}) == {"1,26": "lightloom"}
    assert list(old.glob("*.json")) == []
    ledger(old, now).claim(["3,28"])
    assert moved.owners({"1,26", "3,28"}) == {"1,26": "lightloom"}
    assert list(old.glob("*.json"))
