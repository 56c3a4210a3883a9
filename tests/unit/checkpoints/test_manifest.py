from __future__ import annotations

import io
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints.manifest import (
    BLOCK,
    MAX_BYTES,
    MAX_FILES,
    MAX_LENGTH,
    Damage,
    Damaged,
    FileSums,
    Manifest,
    Sum,
    dump,
    measure,
    parse,
    verify,
)

FILES = {"step-7/a.pt": b"alpha", "step-7/b.pt": bytes(range(256)) * 8}


def manifest(files: dict[str, bytes]) -> Manifest:
    sums = {path: measure(io.BytesIO(content)) for path, content in files.items()}
    return Manifest("train", 3, 7, 1, 4, "rename", FileSums(sums))


def test_crc32c_is_castagnolis() -> None:
    """The check values of RFC 3720, B.4."""
    assert measure(io.BytesIO(b"123456789")) == Sum(9, 0xE3069283)
    assert measure(io.BytesIO(bytes(32))).crc32c == 0x8A9136AA
    assert measure(io.BytesIO(b"\xff" * 32)).crc32c == 0x62A8AB43
    assert measure(io.BytesIO(b"")) == Sum(0, 0)


def test_blocks_do_not_matter() -> None:
    content = bytes(range(251)) * (2 * BLOCK // 251 + 3)

    class Drips(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, 70_001))

    assert measure(Drips(content)) == measure(io.BytesIO(content))


def test_round_trip() -> None:
    one = manifest(FILES)
    assert parse(dump(one)) == one
    assert one.bytes == sum(len(content) for content in FILES.values())
    assert manifest({**FILES, "step-7/a.pt": b"alphb"}).digest != one.digest


def test_verify_names_the_damaged_file() -> None:
    one = manifest(FILES)
    assert verify(one, one.files) == ()
    found = {
        "step-7/a.pt": measure(io.BytesIO(b"alphA")),
        "step-7/c.pt": Sum(0, 0),
    }
    assert verify(one, found) == (
        Damage("step-7/a.pt", Damaged.CONTENT),
        Damage("step-7/b.pt", Damaged.MISSING),
        Damage("step-7/c.pt", Damaged.EXTRA),
    )
    short = {**one.files, "step-7/a.pt": measure(io.BytesIO(b"alph"))}
    assert verify(one, short) == (Damage("step-7/a.pt", Damaged.LENGTH),)


@given(
    st.dictionaries(
        st.sampled_from(["a", "b/c", "d"]), st.binary(min_size=1, max_size=64), min_size=1
    ),
    st.data(),
)
def test_a_flipped_bit_is_found(files: dict[str, bytes], data: st.DataObject) -> None:
    one = manifest(files)
    path = data.draw(st.sampled_from(sorted(files)))
    bit = data.draw(st.integers(0, len(files[path]) * 8 - 1))
    content = bytearray(files[path])
    content[bit // 8] ^= 1 << bit % 8
    damaged = manifest({**files, path: bytes(content)})
    assert verify(one, damaged.files) == (Damage(path, Damaged.CONTENT),)


@given(st.data())
def test_a_damaged_manifest_is_refused(data: st.DataObject) -> None:
    content = bytearray(dump(manifest(FILES)))
    bit = data.draw(st.integers(0, len(content) * 8 - 1))
    content[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ValueError, match=r"."):
        parse(bytes(content))


def changed(**changes: object) -> bytes:
    document = json.loads(dump(manifest(FILES)))
    for name, value in changes.items():
        document[name] = value
    return json.dumps(document).encode()


FILE = {"path": "a", "bytes": 1, "crc32c": "00000000"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"kind":' * 50_000,
        b"9" * 5000,
        b" " * (MAX_BYTES + 1),
        changed(version=2),
        changed(step=True),
        changed(step=-1),
        changed(step=2**63),
        changed(step=1.5),
        changed(rank=4),
        changed(ranks=2**40),
        changed(job=""),
        changed(job="x" * 5000),
        changed(files=[]),
        changed(files=[FILE] * (MAX_FILES + 1)),
        changed(files=[FILE, FILE]),
        changed(files=["a"]),
        changed(files=[{**FILE, "path": "../a"}]),
        changed(files=[{**FILE, "path": "/a"}]),
        changed(files=[{**FILE, "bytes": 2**60}]),
        changed(files=[{**FILE, "crc32c": "0000000G"}]),
        changed(digest="00000000"),
        changed(digest=None),
        b'{"kind":"lightloom checkpoint part","kind":"x"}',
        b'{"kind":"lightloom checkpoint part","version":NaN}',
    ],
)
def test_hostile_manifests_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(content)


def test_nothing_is_dumped_that_would_not_be_read() -> None:
    with pytest.raises(ValueError, match="leaves its folder"):
        dump(manifest({"../a": b"x"}))


@given(st.binary(max_size=200))
def test_bytes_are_no_manifest(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(content)


def test_a_manifest_of_short_values_takes_no_memory() -> None:
    content = b'{"files":[' + b",".join([b"[]"] * 5_000_000) + b"]}"
    assert len(content) < MAX_BYTES
    tracemalloc.start()
    with pytest.raises(ValueError, match="more than 262144 values"):
        parse(content)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < 1 << 20


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
SUMS = st.builds(Sum, st.integers(0, MAX_LENGTH), st.integers(0, 2**32 - 1))


@given(st.dictionaries(NAMES, SUMS), NAMES)
def test_sums_are_a_sorted_mapping(files: dict[str, Sum], other: str) -> None:
    sums = FileSums(files)
    assert sums == files
    assert list(sums) == sorted(files)
    assert list(sums.items()) == sorted(files.items())
    assert len(sums.items()) == len(sums) == len(files)
    assert {path: sums[path] for path in files} == files
    assert sums.get(other) == files.get(other)
    assert sums.names_bytes == sum(len(path.encode()) for path in files)


def test_sums_take_the_bytes_of_their_paths_and_little_more() -> None:
    tracemalloc.start()
    sums = FileSums({f"folder/{n:0>110}": Sum(1 << 40, n << 16) for n in range(MAX_FILES)})
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < sums.names_bytes + 24 * MAX_FILES


def test_the_largest_manifest_is_read_again() -> None:
    files = {f"folder/{n:0>60}.bin": Sum(1, n) for n in range(MAX_FILES)}
    largest = Manifest("red", 1, 20, 0, 1, "rename", FileSums(files))
    assert parse(dump(largest)) == largest
