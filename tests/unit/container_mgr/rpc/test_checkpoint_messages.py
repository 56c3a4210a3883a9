"""What an agent accepts about checkpoints: whatever a caller sends, folders and hosts are clean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlink.checkpoints import Holding, HoldingKind, Verified
from checkpoints.ledger import Key
from container_mgr.checkpoints import layout
from container_mgr.checkpoints.contract import News
from container_mgr.rpc import checkpoint_messages as messages
from container_mgr.values import AgentError, ServedEndpoint, ServerFacts
from protos import agent_pb2 as pb

RED = "red.0123abcd"
SECRET = b"\xaaK" * 16
STEP = pb.StepKey(step=10, epoch=1)
FACTS = ServerFacts(cores=4, memory_bytes=8 << 30)
SERVED = {name: ServedEndpoint(name, f"e-{name}") for name in ("gpu0", "gpu1")}

Change = Callable[[Any], None]


def source(rank: int = 1, address: str = "10.77.0.2") -> pb.Source:
    return pb.Source(
        rank=rank,
        digest="0000beef",
        bytes=4096,
        address=address,
        endpoint=f"gpu{rank}",
        server="srv1",
    )


def keeps() -> pb.KeepRequest:
    """A copy, a parity and a write to a store."""
    store = pb.VolumeMount(
        volume="shared", path="/lightloom/store", scope=pb.SCOPE_JOB, owner="vision.red"
    )
    return pb.KeepRequest(
        folder=RED,
        keeps=[
            pb.Keep(rank=0, step=STEP, copy=source()),
            pb.Keep(rank=0, step=STEP, parity=pb.Ring(members=[source(0, ""), source()])),
            pb.Keep(rank=0, step=STEP, store=store),
        ],
    )


def fetch() -> pb.FetchRequest:
    """One part in each way."""
    far = "srv1.example:7410"
    how: list[dict[str, Any]] = [
        {"local": "gpu1"},
        {"from": source(1, far)},
        {
            "rebuild": pb.Rebuild(
                covers=[
                    pb.Member(rank=1, digest="0000beef", bytes=1),
                    pb.Member(rank=2, digest="0000cafe", bytes=2),
                ],
                parts=[source(2, "[fd00::1]:7410")],
                parities=[source(2, "10.0.0.2:7410")],
            )
        },
        {"store": pb.VolumeMount(volume="shared")},
    ]
    gets = [
        pb.Get(rank=n, endpoint="gpu0", part=1, digest="0000beef", bytes=4096, **one)
        for n, one in enumerate(how)
    ]
    return pb.FetchRequest(
        folder=RED, key=SECRET, step=STEP, where="memory", size_bytes=1 << 20, gets=gets
    )


def read_fetch(request: pb.FetchRequest) -> Any:
    return messages.fetch_of(request, FACTS, SERVED)


def test_the_good_ones_are_good() -> None:
    assert len(messages.keeps_of(keeps())) == 3
    folder, key, gets = read_fetch(fetch())
    assert (folder.name, folder.key, key, len(gets)) == (RED, SECRET, Key(10, 1), 4)
    assert "\\xaaK" not in repr(folder)


def _set(path: str, value: Any) -> Change:
    """Return what sets a field; ``keeps.0.copy.rank``."""

    def change(message: Any) -> None:
        *steps, last = path.split(".")
        for step in steps:
            message = message[int(step)] if step.isdecimal() else getattr(message, step)
        if isinstance(value, list):
            del getattr(message, last)[:]
            getattr(message, last).extend(value)
        elif value is None:
            message.ClearField(last)
        else:
            setattr(message, last, value)

    return change


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("keeps.0.step", None),
        ("keeps.0.step.step", 2**63),
        ("keeps.0.step.epoch", 2**64 - 1),
        ("keeps.0.rank", 65_536),
        ("keeps.0.rank", 1),
        ("keeps.0.copy", None),
        ("keeps.0.copy.rank", 2**32 - 1),
        ("keeps.0.copy.digest", ""),
        ("keeps.0.copy.digest", "0000BEEF"),
        ("keeps.0.copy.digest", "0000beef\n"),
        ("keeps.0.copy.bytes", 0),
        ("keeps.0.copy.bytes", 2**53 + 1),
        ("keeps.0.copy.endpoint", "../gpu1"),
        ("keeps.0.copy.server", "srv1/.."),
        ("keeps.0.copy.address", ""),
        ("keeps.0.copy.address", "10.77.0.2:22"),
        ("keeps.0.copy.address", "127.0.0.1"),
        ("keeps.0.copy.address", "224.0.0.1"),
        ("keeps.0.copy.address", "0.0.0.0"),
        ("keeps.0.copy.address", "fe80::1%eth0"),
        ("keeps.0.copy.address", "localhost"),
        ("keeps.1.rank", 5),
        ("keeps.1.parity.members", []),
        ("keeps.1.parity.members", [source(0)]),
        ("keeps.1.parity.members", [source(0), source(1), source(1)]),
        ("keeps.1.parity.members", [source(n) for n in range(65)]),
        ("keeps.1.parity.members.1.address", "::1"),
        ("keeps.2.store.volume", "../etc"),
        ("keeps.2.store.owner", ""),
        ("keeps.2.store.owner", "vision/.."),
        ("keeps.2.store.scope", 9),
        ("keeps.2.store.scope", 0),
        ("keeps.2.store.path", "/../etc"),
        ("keeps.2.store.path", "etc"),
        ("keeps.2.store.path", "/" + "x" * 9_999),
        ("keeps.2.store.read_only", True),
        ("keeps", [pb.Keep(rank=0, step=STEP, copy=source())] * 4097),
    ],
)
def test_what_cannot_be_kept(path: str, value: Any) -> None:
    request = keeps()
    _set(path, value)(request)
    with pytest.raises(AgentError) as refused:
        messages.keeps_of(request)
    assert refused.value.code == "invalid"
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("folder", ""),
        ("folder", "red"),
        ("folder", "red.0123abcd/.."),
        ("folder", "red.0123abcd\n"),
        ("folder", f"{'x' * 64}.0123abcd"),
        ("key", b""),
        ("key", SECRET[1:]),
        ("key", SECRET + b"\0"),
        ("step", None),
        ("step.step", 2**63),
        ("where", ""),
        ("where", "tape"),
        ("size_bytes", 0),
        ("size_bytes", 9 << 30),
        ("size_bytes", 2**64 - 1),
        ("gets.0.rank", 65_536),
        ("gets.0.part", 65_536),
        ("gets.0.digest", ""),
        ("gets.0.digest", "z" * 8),
        ("gets.0.bytes", 0),
        ("gets.0.endpoint", ""),
        ("gets.0.endpoint", "../gpu0"),
        ("gets.0.local", "../gpu0"),
        ("gets.0.local", None),
        ("gets.1.from.address", ""),
        ("gets.1.from.address", "srv1"),
        ("gets.1.from.address", "srv1:0"),
        ("gets.1.from.address", "fd00::10:7410"),
        ("gets.1.from.address", "999.0.0.1:7410"),
        ("gets.1.from.address", "srv1:65536"),
        ("gets.1.from.address", "srv1:７"),
        ("gets.1.from.address", "-oProxyCommand:7410"),
        ("gets.1.from.address", "a b:7410"),
        ("gets.1.from.address", "user@srv1:7410"),
        ("gets.1.from.address", "[::1]:x"),
        ("gets.1.from.address", "[srv1]:7410"),
        ("gets.1.from.address", "::1:7410"),
        ("gets.2.part", 3),
        ("gets.2.rebuild.covers", []),
        ("gets.2.rebuild.covers.0.digest", ""),
        ("gets.2.rebuild.covers.0.bytes", 0),
        ("gets.2.rebuild.covers.1.rank", 1),
        ("gets.2.rebuild.covers", [pb.Member(rank=n, digest="0" * 8, bytes=1) for n in range(65)]),
        ("gets.2.rebuild.parts", []),
        ("gets.2.rebuild.parts", [source(2, "a:1"), source(3, "a:1")]),
        ("gets.2.rebuild.parities", []),
        ("gets.2.rebuild.parities", [source(1, "a:1")]),
        ("gets.2.rebuild.parities.0.address", ""),
        ("gets.3.store.volume", ""),
        ("gets.3.store.owner", "vision"),
        ("gets", [fetch().gets[0], fetch().gets[0]]),
        ("gets", [pb.Get(rank=n) for n in range(16_385)]),
    ],
)
def test_what_cannot_be_fetched(path: str, value: Any) -> None:
    request = fetch()
    _set(path, value)(request)
    with pytest.raises(AgentError) as refused:
        read_fetch(request)
    assert refused.value.code == "invalid"
    assert "\\xaaK" not in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("path", ["gets.0.endpoint", "gets.0.local"])
def test_endpoints_of_other_servers_are_not_written_to(path: str) -> None:
    request = fetch()
    _set(path, "gpu7")(request)
    with pytest.raises(AgentError) as refused:
        read_fetch(request)
    assert refused.value.code == "not_found"
    messages.fetch_of(request, FACTS, None)  # an emulated server serves every one


def test_a_disk_may_hold_more_than_the_memory() -> None:
    request = fetch()
    request.where, request.size_bytes = "disk", 1 << 50
    read_fetch(request)


def test_steps_to_drop_are_checked_and_bounded() -> None:
    good = pb.DropStepsRequest(folder=RED, steps=[STEP] * 1024)
    assert set(messages.drops_of(good)) == {Key(10, 1)}
    for steps in ([STEP] * 1025, [pb.StepKey(step=2**63)], [pb.StepKey(epoch=2**63)]):
        with pytest.raises(AgentError):
            messages.drops_of(pb.DropStepsRequest(folder=RED, steps=steps))
    with pytest.raises(AgentError):
        messages.step_of(pb.CloseStepRequest(folder=RED))


@given(st.binary(max_size=400))
def test_no_bytes_do_more_than_be_refused(raw: bytes) -> None:
    for kind, read in (
        (pb.KeepRequest, messages.keeps_of),
        (pb.FetchRequest, read_fetch),
        (pb.DropStepsRequest, messages.drops_of),
        (pb.CloseStepRequest, messages.step_of),
    ):
        request: Any = kind()
        try:
            request.ParseFromString(raw)
        except Exception:  # noqa: S112 - protobuf's own refusal
            continue
        try:
            read(request)
        except AgentError as error:
            assert error.code in {"invalid", "not_found"}


@given(st.text(max_size=100))
def test_a_folder_is_one_name_below_its_root(name: str) -> None:
    try:
        layout.check_folder(name)
    except AgentError:
        return
    assert "/" not in name
    assert name not in {".", ".."}
    assert name.isascii()


def held(**changed: Any) -> Holding:
    fields: dict[str, Any] = {
        "folder": RED,
        "key": Key(10, 1),
        "rank": 0,
        "endpoint": "gpu0",
        "kind": HoldingKind.OWN,
    }
    return Holding(**(fields | changed))


def test_news_go_in_messages_that_grpc_carries() -> None:
    member = (65_535, "0000beef", 2**53)
    much = held(why="\U0010ffff" * 9_999, covers=(member,) * 64, written_s=1.0, bytes=2**53)
    batches = list(messages.holdings_batches(News((much,) * 2_001, caught_up=True)))
    assert [len(batch.holdings) for batch in batches] == [1000, 1000, 1]
    assert [batch.caught_up for batch in batches] == [False, False, True]
    assert all(batch.ByteSize() < 4 * 2**20 for batch in batches)
    (empty,) = messages.holdings_batches(News(caught_up=True))
    assert empty.caught_up


def test_verifications_go_in_messages_that_grpc_carries() -> None:
    one = Verified(Key(10, 1), 0, "gpu0", HoldingKind.OWN, ("\U0010ffff" * 9_999,) * 99)
    batches = list(messages.verified_batches((one,) * 1_001))
    assert sum(len(batch.verified) for batch in batches) == 1_001
    assert all(batch.ByteSize() < 4 * 2**20 for batch in batches)


def test_a_name_that_is_not_utf8_can_be_told() -> None:
    (batch,) = messages.holdings_batches(News((held(why="model\udcff"),)))
    assert batch.holdings[0].why == "model\\udcff"
