"""Copies, parities and writes to stores, over a real connection."""

from __future__ import annotations

import os
import socket
import stat
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from agentlink.checkpoints import HoldingKind, KeepCopy, KeepParity, KeepStored
from agentlink.values import Scope, VolumeMount
from checkpoints.ledger import Key, Member
from checkpoints.schemes import chunk_bytes
from container_mgr.checkpoints.values import PartPlace
from container_mgr.transfers import keeping, parts
from container_mgr.transfers.pulling import Stop
from tests.unit.container_mgr.transfers.fakes import FOLDER, KEY, content_of, files_of, flip
from tests.unit.container_mgr.transfers.rig import Rig

NOBODY = 2**32 - 1
STORE = VolumeMount("ckpt", "/ckpt", scope=Scope.PROJECT, owner="vision")


def copy(rig: Rig, rank: int = 1) -> KeepCopy:
    return KeepCopy(0, KEY, rig.source(rig.part(rank)))


def test_a_copy_is_the_same_part(rig: Rig) -> None:
    what = copy(rig)
    keeping.keep(rig.keeper(), what, Stop())
    place = PartPlace(FOLDER.name, "gpu0", HoldingKind.COPY, 1, KEY)
    assert content_of(rig.taker.parts[place].root) == files_of(1)
    assert (rig.last().kind, rig.last().digest) == (HoldingKind.COPY, what.source.digest)


def bare(root: Path) -> bool:
    """Say whether files have no special bits, no attributes and no list of who may use them."""
    found = [path for path in root.rglob("*") if path.is_file()]
    return bool(found) and all(
        stat.S_IMODE(path.stat().st_mode) == 0o644 and os.listxattr(path) == [] for path in found
    )


def test_a_copy_and_what_goes_to_a_store_have_only_the_bytes(rig: Rig, tmp_path: Path) -> None:
    """A file that a program may run as its owner, with capabilities, is none elsewhere."""
    granted = struct.pack("<I", 2) + b"".join(  # acl(5) as the kernel has it
        struct.pack("<HHI", tag, rights, who)
        for tag, rights, who in ((1, 6, NOBODY), (2, 7, 1234), (4, 4, NOBODY), (16, 7, NOBODY),
                                 (32, 4, NOBODY))
    )  # fmt: skip
    capable = struct.pack("<IIIII", 0x2000001, 0xFFFF, 0, 0, 0)
    attributes = {"user.note": b"x" * 100, "system.posix_acl_access": granted}
    if os.geteuid() == 0:
        attributes |= {"trusted.note": b"x", "security.capability": capable}
    moved = rig.part(1)
    mine = rig.taker.own("gpu0", 0, files_of(0))
    for path in (moved.root / "model.bin", mine.root / "model.bin"):
        for name, value in attributes.items():
            os.setxattr(path, name, value)
        path.chmod(0o6777)
        assert not bare(path.parent)
    keeping.keep(rig.keeper(), KeepCopy(0, KEY, rig.source(moved)), Stop())
    assert bare(rig.taker.parts[PartPlace(FOLDER.name, "gpu0", HoldingKind.COPY, 1, KEY)].root)
    keeping.keep(rig.keeper(store=tmp_path), KeepStored(0, KEY, STORE), Stop())
    assert bare(tmp_path / "lightloom-checkpoints" / FOLDER.name / "100.3" / "0")


def test_a_copy_that_is_there_is_not_pulled_again(rig: Rig) -> None:
    what = copy(rig)
    keeping.keep(rig.keeper(), what, Stop())
    keeping.keep(rig.keeper(), what, Stop())
    assert rig.dial.dialled == 1


def test_another_digest_than_the_controllers_is_not_kept(rig: Rig) -> None:
    what = copy(rig)
    wrong = replace(what, source=replace(what.source, digest="00000000"))
    keeping.keep(rig.keeper(), wrong, Stop())
    assert rig.last().kind is HoldingKind.MISSING
    assert what.source.digest in rig.last().why
    assert rig.taker.parts == {}


def test_another_step_is_not_kept(rig: Rig) -> None:
    what = copy(rig)
    keeping.keep(rig.keeper(), replace(what, key=Key(200, 3)), Stop())
    assert "does not hold rank 1's part of step 200" in rig.last().why


def test_a_flipped_byte_is_found_by_both_ends(rig: Rig) -> None:
    what = copy(rig)
    (part,) = rig.giver.parts.values()
    flip(part.root / "model.bin")
    keeping.keep(rig.keeper(), what, Stop())
    assert rig.last().kind is HoldingKind.MISSING
    assert "model.bin (content)" in rig.last().why
    assert [place.endpoint for place, _ in rig.giver.damages] == ["gpu1"]
    assert not any(rig.taker.directory.iterdir())


def test_a_file_that_is_cut_while_it_is_sent(rig: Rig) -> None:
    what = copy(rig)
    (part,) = rig.giver.parts.values()
    os.truncate(part.root / "model.bin", 100)
    keeping.keep(rig.keeper(), what, Stop())
    assert rig.last().kind is HoldingKind.MISSING
    assert "gpu1 answered: model.bin has 100 bytes" in rig.last().why
    assert rig.giver.damages


def test_a_full_folder_says_so(rig: Rig) -> None:
    what = copy(rig)
    rig.taker.limit = 10
    keeping.keep(rig.keeper(), what, Stop())
    assert "the folder is full" in rig.last().why
    assert rig.giver.damages == []


def test_a_wrong_key_may_be_the_ranks_own_program(rig: Rig) -> None:
    what = copy(rig)
    rig.dial.key = bytes(32)
    keeping.keep(rig.keeper(), what, Stop())
    assert "is not an agent of this job" in rig.last().why


def test_a_peer_that_is_not_there(rig: Rig) -> None:
    what = copy(rig)
    with socket.create_server(("127.0.0.1", 0)) as other:
        free = other.getsockname()[1]
    gone = replace(what, source=replace(what.source, address=f"127.0.0.1:{free}"))
    keeping.keep(rig.keeper(), gone, Stop())
    assert "cannot be reached" in rig.last().why


@dataclass
class Relay:
    """Stands between the two ends and tears the connection after so many bytes, so many times."""

    after: int
    times: int
    seen: int = 0

    def __call__(self, plain: socket.socket) -> socket.socket:
        near, far = socket.socketpair()
        self.times -= 1
        threading.Thread(target=self.down, args=(plain, far, self.times >= 0), daemon=True).start()
        threading.Thread(target=self.up, args=(plain, far), daemon=True).start()
        return near

    def down(self, plain: socket.socket, far: socket.socket, tears: bool) -> None:
        plain.settimeout(None)
        left = self.after if tears else 1 << 40
        with suppress(OSError):
            while left and (block := plain.recv(min(left, 65536))):
                left -= len(block)
                self.seen += len(block)
                far.sendall(block)
        self.end(plain, far)

    def up(self, plain: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while block := far.recv(4096):
                plain.sendall(block)
        self.end(plain, far)

    def end(self, *ends: socket.socket) -> None:
        for one in ends:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def test_a_connection_that_is_torn_anywhere(rig: Rig) -> None:
    part = rig.giver.own("gpu1", 1, {"a": b"1234567", "b": b"", "c/d": b"89"})
    what, after = KeepCopy(0, KEY, rig.source(part)), 0
    while True:
        rig.taker.parts.clear()
        relay = Relay(after, 1)
        rig.dial.before = relay
        dialled = rig.dial.dialled
        keeping.keep(rig.keeper(), what, Stop())
        assert rig.last().kind is HoldingKind.COPY, (after, rig.last().why)
        (copied,) = rig.taker.parts.values()
        assert content_of(copied.root)["a"] == b"1234567"
        if rig.dial.dialled == dialled + 1:
            break
        after += 13
    assert after > 300


def test_what_came_before_a_connection_was_lost_is_not_sent_again(rig: Rig) -> None:
    what = copy(rig)
    relay = Relay(100_003, 1 << 30)
    rig.dial.before = relay
    keeping.keep(rig.keeper(), what, Stop())
    assert rig.last().kind is HoldingKind.COPY, rig.last().why
    assert rig.dial.dialled == 1 + what.source.bytes // 100_003
    assert relay.seen < what.source.bytes + rig.dial.dialled * 2000


def test_a_transfer_that_is_ended_leaves_nothing(rig: Rig) -> None:
    what, stop = copy(rig), Stop()
    stop.stop()
    keeping.keep(rig.keeper(), what, stop)
    assert rig.taker.told == []
    assert rig.taker.parts == {}


def test_a_transfer_is_ended_while_the_other_end_is_silent(rig: Rig) -> None:
    what, stop = copy(rig), Stop()
    rig.gate.close()
    thread = threading.Thread(target=keeping.keep, args=(rig.keeper(), what, stop), daemon=True)
    thread.start()
    stop.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert rig.taker.told == []
    rig.gate.open()


def ring(rig: Rig) -> KeepParity:
    members = [rig.source(rig.part(rank)) for rank in (1, 2, 3)]
    own = rig.taker.own("gpu0", 0, files_of(0))
    return KeepParity(0, KEY, (rig.source(own, "srv0"), *members))


def test_a_parity_with_its_sets_manifests(rig: Rig) -> None:
    what = ring(rig)
    keeping.keep(rig.keeper(), what, Stop())
    assert rig.last().kind is HoldingKind.PARITY, rig.last().why
    covers = tuple(Member(one.rank, one.digest, one.bytes) for one in what.members)
    assert rig.last().covers == covers
    part = rig.taker.parts[PartPlace(FOLDER.name, "gpu0", HoldingKind.PARITY, 0, KEY)]
    assert part.manifest.bytes == chunk_bytes(max(one.bytes for one in what.members), 4)
    assert [one.digest for one in part.manifests] == [one.digest for one in what.members]
    assert parts.damages(part.root, part.manifest) == ()


def test_a_parity_of_a_set_that_lost_a_part(rig: Rig) -> None:
    what = ring(rig)
    gone = next(place for place in rig.giver.parts if place.rank == 2)
    del rig.giver.parts[gone]
    keeping.keep(rig.keeper(), what, Stop())
    # Missing would take the rank's own part too: it is at the same endpoint.
    assert rig.last().kind is HoldingKind.REFUSED
    assert "gpu2 does not hold" in rig.last().why


def test_a_part_goes_to_a_store_and_is_read_again(rig: Rig, tmp_path: Path) -> None:
    part = rig.taker.own("gpu0", 0, files_of(0))
    store = tmp_path / "store"
    store.mkdir()
    keeping.keep(rig.keeper(store=store), KeepStored(0, KEY, STORE), Stop())
    assert (rig.last().kind, rig.last().digest) == (HoldingKind.STORED, part.manifest.digest)
    where = store / "lightloom-checkpoints" / FOLDER.name / "100.3"
    assert sorted(one.name for one in where.iterdir()) == ["0", "0.json"]
    assert content_of(where / "0") == files_of(0)
    keeping.keep(rig.keeper(store=store), KeepStored(0, KEY, STORE), Stop())
    assert [one.kind for one in rig.taker.told] == [HoldingKind.STORED] * 2


def test_what_a_crash_left_in_a_store_is_replaced(rig: Rig, tmp_path: Path) -> None:
    rig.taker.own("gpu0", 0, files_of(0))
    where = tmp_path / "lightloom-checkpoints" / FOLDER.name / "100.3"
    (where / "0.tmp/deep").mkdir(parents=True)
    (where / "0.tmp/deep/half").write_bytes(b"half")
    (where / "0").symlink_to("/etc")
    keeping.keep(rig.keeper(store=tmp_path), KeepStored(0, KEY, STORE), Stop())
    assert rig.last().kind is HoldingKind.STORED, rig.last().why
    assert content_of(where / "0") == files_of(0)
    assert not (where / "0.tmp").exists()
    assert Path("/etc/hostname").exists()


def test_a_link_in_place_of_the_stores_folder_is_not_followed(rig: Rig, tmp_path: Path) -> None:
    rig.taker.own("gpu0", 0, files_of(0))
    store, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    store.mkdir()
    elsewhere.mkdir()
    (store / "lightloom-checkpoints").symlink_to(elsewhere)
    keeping.keep(rig.keeper(store=store), KeepStored(0, KEY, STORE), Stop())
    assert rig.last().kind is HoldingKind.REFUSED
    assert list(elsewhere.iterdir()) == []


def test_a_damaged_part_does_not_go_to_a_store(rig: Rig, tmp_path: Path) -> None:
    part = rig.taker.own("gpu0", 0, files_of(0))
    flip(part.root / "model.bin")
    keeping.keep(rig.keeper(store=tmp_path), KeepStored(0, KEY, STORE), Stop())
    assert rig.last().kind is HoldingKind.REFUSED
    assert [place for place, _ in rig.taker.damages] == [part.place]


def test_a_pace_is_asked_for(rig: Rig) -> None:
    what = copy(rig)
    keeping.keep(rig.keeper(pace=1 << 24), what, Stop())
    assert rig.last().kind is HoldingKind.COPY
