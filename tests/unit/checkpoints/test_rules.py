from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints.rules import (
    BATCHES,
    MAX_ENTRIES,
    MAX_FOUND,
    MAX_IGNORED,
    CheckpointRule,
    EntryKind,
    FolderEntry,
    Wholeness,
    WriterKind,
    find_steps,
    names_text,
    parse_rule,
)
from tests.unit.checkpoints.listings import (
    DCP,
    DCP_OTHER,
    KERAS,
    ORBAX,
    ORBAX_METADATA,
    entries,
)

RENAME, DCP_RULE, ORBAX_RULE, KERAS_RULE = (
    CheckpointRule(w)
    for w in (WriterKind.RENAME, WriterKind.DCP, WriterKind.ORBAX, WriterKind.KERAS)
)


def states(rule: CheckpointRule, listing: list[FolderEntry]) -> dict[int, Wholeness]:
    return {found.step: found.state for found in find_steps(rule, listing).steps}


def test_rename_knows_files_and_folders() -> None:
    listing = entries(
        [
            ("step-7/model.pt", 10),
            ("step-8.tmp/model.pt", 10),
            ("step-0009.pt", 5),
            ("step-10.pt.tmp", 5),
            ("step-11.pt", 0),
            ("notes.txt", 3),
        ]
    )
    listed = find_steps(RENAME, listing)
    assert [(f.step, f.state.value) for f in listed.steps] == [
        (11, "partial"),
        (10, "partial"),
        (9, "whole"),
        (8, "partial"),
        (7, "whole"),
    ]
    assert listed.ignored == ("notes.txt",)
    assert listed.steps[-1].files == ("step-7/model.pt",) and listed.steps[-1].bytes == 10


@pytest.mark.parametrize(
    "rule", [DCP_RULE, CheckpointRule(WriterKind.MARKER, ".metadata")], ids=str
)
@pytest.mark.parametrize(
    "name",
    [
        *("100", "step-100", "step_100", "step100", "global_step100", "iter_0000100"),
        *("checkpoint-100", "checkpoint_000100", "ep1-ba100", "epoch=1-step=100.ckpt", "v1.2_100"),
    ],
)
def test_a_step_is_read_as_frameworks_write_it(rule: CheckpointRule, name: str) -> None:
    files = [(f"{name}/.metadata", 10), (f"{name}/__0_0.distcp", 100)]
    assert states(rule, entries(files)) == {100: Wholeness.WHOLE}
    for unfinished in (f"{name}.tmp", f"tmp-{name}", f"tmp_{name}"):
        files = [(f"{unfinished}/.metadata", 10)]
        assert states(rule, entries(files)) == {100: Wholeness.PARTIAL}, unfinished


@pytest.mark.parametrize("name", ["loss=0.25", "latest", "global_step100_universal", "run-1.100"])
def test_what_ends_in_no_step_is_listed_as_ignored(name: str) -> None:
    listed = find_steps(DCP_RULE, entries([(f"{name}/.metadata", 10)]))
    assert (listed.steps, listed.ignored) == ((), (name,))


def test_names_that_people_are_shown_are_escaped_and_bounded() -> None:
    assert names_text(["final", "a\nb"]) == "'final', 'a\\nb'"
    assert names_text(f"{n}" for n in range(9)) == "'0', '1', '2', '3' and others"
    assert len(names_text(["\U0001f600" * 255] * 16)) < 300


def test_what_keras_does_not_write_is_listed_as_ignored() -> None:
    beside = [("logs/a", 1), ("model.keras", 9)]
    assert find_steps(KERAS_RULE, entries(beside)).ignored == ("logs", "model.keras")
    lone = find_steps(KERAS_RULE, entries([*beside, ("latest.weights.h5", 9)]))
    assert lone.ignored == ("latest.weights.h5", "logs", "model.keras")


def test_steps_are_ordered_by_number_never_by_time() -> None:
    late = FolderEntry("step-9.pt", size=1, modified_ns=99)
    early = FolderEntry("step-10.pt", size=1, modified_ns=1)
    assert [f.step for f in find_steps(RENAME, [late, early]).steps] == [10, 9]


def test_dcp_is_closed_by_the_coordinator() -> None:
    assert states(DCP_RULE, entries(DCP)) == {100: Wholeness.WHOLE}
    assert states(DCP_RULE, entries(DCP_OTHER)) == {100: Wholeness.AWAITS}
    writing = entries([*DCP, ("step_100/.metadata.tmp", 7)])
    assert states(DCP_RULE, writing) == {100: Wholeness.PARTIAL}
    assert states(DCP_RULE, entries([("step_100/.metadata", 0), *DCP_OTHER])) == {
        100: Wholeness.AWAITS
    }


def test_orbax_is_whole_when_committed() -> None:
    assert states(ORBAX_RULE, entries(ORBAX)) == {20: Wholeness.WHOLE}
    without = entries([f for f in ORBAX if not f[0].startswith("20/commit")])
    assert states(ORBAX_RULE, without) == {20: Wholeness.PARTIAL}
    told = [
        replace(e, head=ORBAX_METADATA) if e.path == "20/_CHECKPOINT_METADATA" else e
        for e in without
    ]
    assert states(ORBAX_RULE, told) == {20: Wholeness.WHOLE}
    for suffix in (".orbax-checkpoint-tmp", ".orbax-checkpoint-tmp-1700000000"):
        moved = entries([(path.replace("20/", f"20{suffix}/", 1), n) for path, n in ORBAX])
        assert states(ORBAX_RULE, moved) == {20: Wholeness.PARTIAL}
    assert states(ORBAX_RULE, entries([("ckpt_30/commit_success.txt", 1)])) == {30: Wholeness.WHOLE}


def keras(weights_ns: int, trained_ns: int, head: bytes) -> list[FolderEntry]:
    times = {"latest.weights.h5": weights_ns, "training_metadata.json": trained_ns}
    return [
        replace(e, modified_ns=times.get(e.path, 0), head=head if "metadata" in e.path else b"")
        for e in entries(KERAS)
    ]


def test_keras_counts_epochs_and_batches() -> None:
    step = 2 * BATCHES + 3
    whole = keras(5, 6, b'{"epoch": 2, "batch": 3}')
    assert states(KERAS_RULE, whole) == {step: Wholeness.WHOLE}
    (found,) = find_steps(KERAS_RULE, whole).steps
    assert found.files == ("latest.weights.h5", "training_metadata.json")
    overwritten = keras(7, 6, b'{"epoch": 2, "batch": 3}')
    assert states(KERAS_RULE, overwritten) == {step: Wholeness.PARTIAL}
    for torn in (b"", b'{"epoch": 3, "ba', b'{"epoch": true}', b'{"epoch": -1}', b"[" * 60_000):
        assert states(KERAS_RULE, keras(5, 6, torn)) == {}


def test_marker() -> None:
    rule = parse_rule("marker: DONE")
    assert states(rule, entries([("ckpt-5/a", 1), ("ckpt-5/DONE", 0)])) == {5: Wholeness.WHOLE}
    assert states(rule, entries([("ckpt-5/a", 1), ("ckpt-5/deep/DONE", 0)])) == {
        5: Wholeness.PARTIAL
    }
    assert states(rule, [FolderEntry("5", size=4)]) == {5: Wholeness.PARTIAL}


@pytest.mark.parametrize("text", ["", "zip", "rename: x", "marker", "marker: a/b", "marker: .."])
def test_rules_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"rule|marker"):
        parse_rule(text)


@pytest.mark.parametrize(
    "bad",
    [
        FolderEntry("step-7/link", EntryKind.LINK),
        FolderEntry("step-7/fifo", EntryKind.OTHER),
        FolderEntry("step-7/../../etc/passwd", size=1),
        FolderEntry("step-7//x", size=1),
        FolderEntry("step-7/a\nb", size=1),
        FolderEntry("step-7/\udcff", size=1),
        FolderEntry("step-7/" + "d/" * 20 + "x", size=1),
        FolderEntry("step-7/" + "x" * 2000, size=1),
        FolderEntry("step-7/model.pt", size=1),
        FolderEntry("step-7/y", size=-1),
    ],
)
def test_a_step_with_what_cannot_be_trusted_is_refused(bad: FolderEntry) -> None:
    listing = [*entries([("step-7/model.pt", 10), ("step-6/model.pt", 10)]), bad]
    assert states(RENAME, listing) == {7: Wholeness.REFUSED, 6: Wholeness.WHOLE}


def test_a_link_as_a_step_is_refused() -> None:
    assert states(RENAME, [FolderEntry("step-7", EntryKind.LINK)]) == {7: Wholeness.REFUSED}


def test_two_names_for_one_step_are_refused() -> None:
    listing = entries([("step-7/model.pt", 1), ("step-07/model.pt", 1), ("step-7.tmp/model.pt", 1)])
    listed = find_steps(RENAME, listing)
    assert [(f.name, f.state) for f in listed.steps] == [
        ("step-07", Wholeness.REFUSED),
        ("step-7", Wholeness.REFUSED),
    ]


def test_an_endless_listing_is_bounded() -> None:
    taken = 0

    def endless() -> Iterator[FolderEntry]:
        nonlocal taken
        while True:
            taken += 1
            yield FolderEntry(f"step-{taken}", size=1)

    listed = find_steps(RENAME, endless())
    assert taken == MAX_ENTRIES + 1 and listed.overfull
    assert len(listed.steps) == MAX_FOUND
    assert {f.state for f in listed.steps} == {Wholeness.REFUSED}


NAMES = st.text(max_size=12) | st.sampled_from(
    ["step-7", "step-7.tmp", "7", "step_7/.metadata", "../x", "step-7/..", "\udcff", "9" * 30]
)
HOSTILE = st.builds(
    FolderEntry,
    st.lists(NAMES, min_size=1, max_size=3).map("/".join),
    st.sampled_from(EntryKind),
    st.integers(-1, 9),
    st.integers(),
    st.binary(max_size=20),
)


@given(st.sampled_from(WriterKind), st.lists(HOSTILE, max_size=20))
def test_hostile_listings(writer: WriterKind, listing: list[FolderEntry]) -> None:
    rule = CheckpointRule(writer, "DONE" if writer is WriterKind.MARKER else "")
    listed = find_steps(rule, listing)
    assert len(listed.ignored) <= MAX_IGNORED
    assert [f.step for f in listed.steps] == sorted((f.step for f in listed.steps), reverse=True)
    whole = [f for f in listed.steps if f.state is Wholeness.WHOLE]
    assert len({f.step for f in whole}) == len(whole)
    for found in whole:
        assert found.files and 0 <= found.step < 2**63
        for path in found.files:
            assert ".." not in path.split("/") and not path.startswith("/")
            kinds = {e.kind for e in listing if e.path == path}
            assert kinds == {EntryKind.FILE}
