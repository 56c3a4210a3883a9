from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from probe import common
from probe.common import Coordinator, PeerError, Rank, identity, run_tool, serve


def test_identity_reads_the_ranks_variables() -> None:
    variables = {
        "LIGHTLOOM_ADDRESSES": "10.0.0.1,10.0.0.2",
        "LIGHTLOOM_RANK": "1",
        "LIGHTLOOM_JOB": "measure-m1",
    }
    assert identity(variables) == Rank(1, 2, ("10.0.0.1", "10.0.0.2"), "measure-m1")
    with pytest.raises(ValueError, match="LIGHTLOOM_ADDRESSES"):
        identity({})
    with pytest.raises(ValueError, match="rank 2"):
        identity({**variables, "LIGHTLOOM_RANK": "2"})


def test_a_line_is_one_object_without_numbers_json_lacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    common.emit("pair", latency_s=float("nan"), values=[1.0, float("inf")])
    line = json.loads(capsys.readouterr().out)
    assert line == {"probe": "pair", "latency_s": None, "values": [1.0, None]}
    with pytest.raises(ValueError, match="longer"):
        common.emit("pair", text="x" * common.MOST_LINE)


def test_the_environment_is_printed_before_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    with common.surroundings(threads=3):
        pass
    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [line["phase"] for line in lines] == ["begin", "end"]
    assert all(line["probe"] == "environment" and line["threads"] == 3 for line in lines)


def test_an_exception_of_a_probe_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    def wrong() -> None:
        raise OSError("no such device")

    with pytest.raises(SystemExit) as ended:
        common.run_probe(wrong)
    assert ended.value.code == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last == {"probe": "error", "message": "OSError: no such device"}


def test_a_tool_is_killed_with_its_children_at_its_time_limit() -> None:
    result = run_tool(["sh", "-c", "sleep 60 & echo begun; wait"], 0.3)
    assert result.code is None and result.stdout == "begun\n"
    assert result.seconds < 30
    assert run_tool(["sh", "-c", "echo no >&2; exit 3"], 10).problem == "exit 3: no"
    assert "does not start" in run_tool(["/nowhere/tool"], 1).problem


def test_output_of_a_tool_is_bounded() -> None:
    tool = common.ToolProcess([sys.executable, "-c", "print('x' * 100000)"], most=1000)
    assert len(tool.finish(20).stdout) == 1000


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.2", 0))
        port: int = sock.getsockname()[1]
        return port


ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


class Ring:
    """Ranks as threads on loopback's addresses."""

    def __init__(self, handlers: Mapping[str, common.Handler], *, ranks: int = 2) -> None:
        self.port = _free_port()
        self.me = Rank(0, ranks, ADDRESSES[:ranks], "measure-m1")
        self.errors: list[Exception] = []
        self.threads = [
            threading.Thread(target=self._serve, args=(rank, handlers), daemon=True)
            for rank in range(1, ranks)
        ]
        for thread in self.threads:
            thread.start()

    def _serve(self, rank: int, handlers: Mapping[str, common.Handler]) -> None:
        try:
            me = Rank(rank, self.me.size, self.me.addresses, "measure-m1")
            serve(me, handlers, port=self.port, silence_s=20)
        except Exception as error:
            self.errors.append(error)

    def joined(self) -> bool:
        for thread in self.threads:
            thread.join(20)
        return not any(thread.is_alive() for thread in self.threads) and not self.errors


def _echo(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"echo": arguments["word"]}


def _wrong(_: dict[str, Any]) -> dict[str, Any]:
    raise OSError("no device")


def _slow(_: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.5)
    return {}


HANDLERS = {"echo": _echo, "wrong": _wrong, "slow": _slow}


def test_rank_0_calls_the_others_and_itself() -> None:
    ring = Ring(HANDLERS, ranks=3)
    with Coordinator(ring.me, HANDLERS, port=ring.port) as ranks:
        for rank in range(3):
            assert ranks.call(rank, "echo", {"word": rank}, 10) == {"echo": rank}
        answers = ranks.call_all({1: ("echo", {"word": "a"}), 2: ("wrong", {})}, 10)
        assert answers[1] == {"echo": "a"}
        assert isinstance(answers[2], PeerError) and "no device" in answers[2].reason
        with pytest.raises(PeerError, match="unknown command fly"):
            ranks.call(1, "fly", {}, 10)
    assert ring.joined()


def test_a_slow_rank_is_reported_and_can_be_called_again() -> None:
    ring = Ring(HANDLERS)
    with Coordinator(ring.me, HANDLERS, port=ring.port) as ranks:
        with pytest.raises(PeerError, match=r"no answer to slow within 0\.05 s"):
            ranks.call(1, "slow", {}, 0.05)
        assert ranks.call(1, "echo", {"word": 1}, 10) == {"echo": 1}
    assert ring.joined()


def test_a_rank_that_never_listens_is_reported() -> None:
    me = Rank(0, 2, ADDRESSES[:2], "measure-m1")
    ranks = Coordinator(me, HANDLERS, port=_free_port(), connect_s=0.2)
    with pytest.raises(PeerError, match="not reached"):
        ranks.call(1, "echo", {"word": 1}, 10)
    ranks.close()


def test_a_stranger_and_a_damaged_message_do_not_end_a_rank() -> None:
    ring = Ring(HANDLERS)
    with Coordinator(ring.me, HANDLERS, port=ring.port) as ranks:
        ranks.call(1, "echo", {"word": 1}, 10)
        ranks._drop(1)
        peer = (ADDRESSES[1], ring.port)
        for source, data in (
            ("127.0.0.9", b"\0\0\0\2{}"),
            ("127.0.0.1", b"\xff\xff\xff\xff"),
            ("127.0.0.1", b"\0\0\0\2[]"),
        ):
            with socket.create_connection(peer, 10, source_address=(source, 0)) as sock:
                sock.sendall(data)
        assert ranks.call(1, "echo", {"word": 2}, 10) == {"echo": 2}
    assert ring.joined()


def test_a_rank_ends_by_itself_when_rank_0_is_silent() -> None:
    me = Rank(1, 2, ADDRESSES[:2], "measure-m1")
    with pytest.raises(PeerError, match="no call within"):
        serve(me, HANDLERS, silence_s=0.05, port=_free_port())
