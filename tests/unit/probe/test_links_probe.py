"""The probe of links: batches and CSV of ucx_perftest, passes, and ranks that do not answer."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from probe import common
from probe.links import (
    LEAST_BYTES,
    MEBI,
    WARM_BYTES,
    LinksPlan,
    Measuring,
    batch,
    figures,
    listens,
    plan_of,
)

PLAN = LinksPlan(
    rounds=[[[0, 1]], [[0, 2]], [[1, 2]]],
    latency_sizes=[8],
    bandwidth_sizes=[65536],
    repetitions=3,
    seconds=0.01,
    seed=1,
    transport="tcp",
    wait="sleep",
)
CSV = """b.txt,iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,mr
l8.0, 100,11.327,12.214,12.214,0.62,0.62,81872,81872
b65536.0,  30,8.753,2208.797,2208.797,28.30,28.30,453,453
b65536.1,  30,8.753,2208.797,2208.797,28.30,nan,453,453
"""


class Ranks(common.Coordinator):
    """Ranks whose tests take no time; some do not answer, or their tests fail."""

    def __init__(self, silent: int | None = None, failing: int | None = None) -> None:
        self.silent, self.failing = silent, failing
        self.asked: list[int] = []
        self.batches: list[str] = []

    def call(
        self, rank: int, command: str, arguments: Mapping[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        self.asked.append(rank)
        if rank == self.silent:
            raise common.PeerError(rank, f"no answer to {command}", silent=True)
        if command != "connect":
            return {}
        self.batches.append(arguments["batch"])
        if rank == self.failing:
            return {"lines": [], "problem": "no end after 1 s"}
        return {"lines": CSV.splitlines(), "problem": ""}


def measured(
    ranks: Ranks, capsys: pytest.CaptureFixture[str], plan: LinksPlan = PLAN
) -> list[dict[str, Any]]:
    Measuring(plan, ranks).run()
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_batch_is_a_line_for_each_test() -> None:
    text = batch([(8, 100)], [(65536, 16), (2**22, 2)], wait="sleep", repetitions=2)
    assert text.splitlines()[:3] == [
        "l8.0 -t tag_lat -E sleep -s 8 -n 100 -w 10",
        "b65536.0 -t tag_bw -E sleep -s 65536 -n 16 -w 4",
        "b4194304.0 -t tag_bw -E sleep -s 4194304 -n 2 -w 1",
    ]
    assert len(text.splitlines()) == 6


def test_a_server_listens_once_the_kernel_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listens(port)
    assert not listens(port)


def test_figures_are_in_base_units_and_broken_ones_are_left_out() -> None:
    latency, bandwidth = figures([*CSV.splitlines(), "", "a,b", "l8.1,1,2,3,x,5,6,7,8"])
    assert latency == {8: [pytest.approx(12.214e-6)]}
    assert bandwidth == {65536: [pytest.approx(28.30 * MEBI)]}


def test_every_pair_is_measured_once_a_pass_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    ranks = Ranks()
    lines = measured(ranks, capsys)
    assert len(lines) == 3 * 3 * 2
    for number in range(3):
        ways = {(x["sender"], x["receiver"]) for x in lines if x["number"] == number}
        assert ways == {(a, b) for a in range(3) for b in range(3) if a != b}
    sent = [text for text in ranks.batches if "b65536.0" in text and "b65536.1" not in text]
    for text in sent:
        words = text.splitlines()[-1].split()
        assert int(words[words.index("-n") + 1]) * 65536 >= LEAST_BYTES
        assert int(words[words.index("-w") + 1]) * 65536 >= WARM_BYTES


def test_together_all_repetitions_of_a_way_are_one_batch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = replace(PLAN, rounds=[[[0, 1], [2, 3]]], together=True)
    ranks = Ranks()
    lines = measured(ranks, capsys, plan)
    ways = {(0, 1), (2, 3), (1, 0), (3, 2)}
    assert {(x["sender"], x["receiver"], x["number"]) for x in lines} == {
        (*way, number) for way in ways for number in range(3)
    }
    assert [x["bandwidth"] for x in lines if x["number"] == 0] == 4 * [[[65536, 28.30 * MEBI]]]
    assert len([text for text in ranks.batches if "b65536.2" in text]) == len(ways)


def test_a_silent_rank_is_waited_for_once(capsys: pytest.CaptureFixture[str]) -> None:
    ranks = Ranks(silent=2)
    lines = measured(ranks, capsys)
    told = {2 in (x["sender"], x["receiver"]): x.get("reason") for x in lines}
    assert told == {True: "rank 2: no answer to listen", False: None}
    assert ranks.asked.count(2) == 1


def test_a_test_that_fails_costs_its_own_direction_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = measured(Ranks(failing=1), capsys)
    lost = {(x["sender"], x["receiver"]) for x in lines if "reason" in x}
    assert lost == {(1, 0), (1, 2), (2, 1)}  # the first look at 1 and 2 is sent by 1


def test_a_plan_with_other_fields_is_refused() -> None:
    with pytest.raises(TypeError):
        plan_of('{"rounds": [], "colour": 1}')
