"""The compiler: who may reach whom, and who may not."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.devices.aggregators import AttachPoint, Forwarding
from controller.devices.openflow.rules import compiler as flows
from controller.devices.openflow.rules.compiler import FlowError
from controller.devices.openflow.rules.pipeline import PROBE_MAC, ROCE_UDP_PORT
from controller.devices.openflow.rules.program import FlowDiff, FlowProgram, diff
from controller.devices.openflow.rules.rule import unpack_cookie
from controller.devices.openflow.session import messages
from sitefile import load_site
from tests.parts.openflow.fake_table import (
    CONTROLLER,
    FakeFabric,
    FakeTable,
    Packet,
    arp,
    steps_of,
    udp,
)
from tests.parts.openflow.sites import attach, make_site
from tests.parts.sites import PAPER

BROADCAST = "ff:ff:ff:ff:ff:ff"
SITE = make_site()
PLACES = attach(
    ("gpu0", "as0", 1),
    ("gpu1", "as0", 2),
    ("gpu2", "as0", 3),
    ("gpu3", "as1", 1),
    ("gpu4", "as1", 2),
    ("gpu5", "as1", 3),
)
JOBS = {"red": ("gpu0", "gpu1", "gpu4"), "blue": ("gpu2", "gpu3")}


def fabric_of(programs, site=SITE):
    return FakeFabric(site, {name: FakeTable.of(program) for name, program in programs.items()})


def frames(site, source: str, target: str) -> list[Packet]:
    """What ``source`` may honestly send to ``target``: UDP, RoCE, ARP request and reply."""
    a, b = site.endpoint(source), site.endpoint(target)
    return [
        udp(a.mac, b.mac, a.ip, b.ip),
        udp(a.mac, b.mac, a.ip, b.ip, ROCE_UDP_PORT),
        arp(a.mac, BROADCAST, a.ip, b.ip),
        arp(a.mac, b.mac, a.ip, b.ip, op=2),
    ]


def reached(fabric, places, source: str, packet: Packet) -> set[str]:
    """The endpoints whose port a frame of ``source`` leaves by."""
    by_place = {(at.aggregator, at.port): name for name, at in places.items()}
    at = places[source]
    ends = fabric.leaves(packet, at.aggregator, at.port)
    return {by_place.get((where, port), f"{where}/{port}") for where, port, _ in ends}


def test_members_of_a_job_reach_each_other_and_no_others():
    fabric = fabric_of(flows.compile(SITE, 1, PLACES, JOBS))
    job_of = {name: job for job, names in JOBS.items() for name in names}
    for a, b in itertools.permutations(PLACES, 2):
        same = a in job_of and job_of[a] == job_of.get(b)
        for packet in frames(SITE, a, b):
            assert reached(fabric, PLACES, a, packet) == ({b} if same else set()), (a, b, packet)


def test_arp_request_becomes_a_unicast_to_the_owner():
    fabric = fabric_of(flows.compile(SITE, 1, PLACES, JOBS))
    a, b = SITE.endpoint("gpu0"), SITE.endpoint("gpu4")
    ends = fabric.leaves(arp(a.mac, BROADCAST, a.ip, b.ip), "as0", 1)
    assert [(where, port, frame["eth_dst"]) for where, port, frame in ends] == [("as1", 2, b.mac)]


def test_broadcast_and_gratuitous_arp_go_nowhere():
    fabric = fabric_of(flows.compile(SITE, 1, PLACES, JOBS))
    a = SITE.endpoint("gpu0")
    for packet in (
        arp(a.mac, BROADCAST, a.ip, a.ip),
        arp(a.mac, BROADCAST, a.ip, a.ip, op=2),
        udp(a.mac, BROADCAST, a.ip, "10.77.0.255"),
        udp(a.mac, "01:00:5e:00:00:01", a.ip, "224.0.0.1"),
    ):
        assert reached(fabric, PLACES, "gpu0", packet) == set()


@pytest.mark.parametrize(
    "change",
    [
        {"eth_src": "02:00:00:00:01:02"},
        {"ipv4_src": "10.77.0.2"},
        {"eth_src": "02:00:00:00:01:02", "ipv4_src": "10.77.0.2"},
        {"vlan_vid": 0x1005},
        {"eth_type": 0x86DD},
    ],
)
def test_spoofed_and_foreign_frames_are_dropped(change):
    fabric = fabric_of(flows.compile(SITE, 1, PLACES, JOBS))
    honest = frames(SITE, "gpu0", "gpu4")[0]
    assert reached(fabric, PLACES, "gpu0", honest) == {"gpu4"}
    assert reached(fabric, PLACES, "gpu0", {**honest, **change}) == set()


@pytest.mark.parametrize("change", [{"arp_spa": "10.77.0.2"}, {"arp_sha": "02:00:00:00:01:02"}])
def test_arp_poison_is_dropped(change):
    fabric = fabric_of(flows.compile(SITE, 1, PLACES, JOBS))
    a, b = SITE.endpoint("gpu0"), SITE.endpoint("gpu4")
    poison = {**arp(a.mac, b.mac, a.ip, b.ip, op=2), **change}
    assert reached(fabric, PLACES, "gpu0", poison) == set()


def test_roce_gets_its_class_in_front_of_everything_else():
    fabric = fabric_of(flows.compile(SITE, 1, PLACES, JOBS))
    plain, roce = frames(SITE, "gpu0", "gpu4")[:2]
    ((_, _, frame),) = fabric.leaves(roce, "as0", 1)
    assert frame["ip_dscp"] == flows.ROCE_DSCP
    ((_, _, frame),) = fabric.leaves(plain, "as0", 1)
    assert frame["ip_dscp"] == 0


@pytest.mark.parametrize(("dscp", "written"), [(46, 46), (0, 0), (None, flows.ROCE_DSCP)])
def test_roce_gets_the_class_that_the_site_file_names(tmp_path, dscp, written):
    """It is the class of the NICs and of the site's lossless queues: see ``network.dscp``."""
    document = yaml.safe_load(PAPER.read_text())
    document["network"] = {"dscp": dscp}
    file = tmp_path / "site.yaml"
    file.write_text(yaml.safe_dump(document))
    site = load_site(file)
    places = attach(("gpu0", "as0", 1), ("gpu1", "as0", 2))
    programs = flows.compile(site, 1, places, {"red": ("gpu0", "gpu1")})
    fabric = fabric_of(programs, site)
    ((_, _, frame),) = fabric.leaves(frames(site, "gpu0", "gpu1")[1], "as0", 1)
    assert frame["ip_dscp"] == written
    rules = programs["as0"].rules
    packed = b"".join(batch.data for batch in messages.batches(FlowDiff(add=rules)))
    assert packed == b"".join(map(messages.by_os_ken, rules))


def test_held_endpoints_neither_send_nor_receive_but_answer_probes():
    held = frozenset({"gpu4"})
    fabric = fabric_of(flows.compile(SITE, 1, PLACES, JOBS, held))
    for a, b in (("gpu0", "gpu4"), ("gpu4", "gpu0")):
        for packet in frames(SITE, a, b):
            assert reached(fabric, PLACES, a, packet) == set()
    cable = SITE.endpoint("gpu4")
    answer = arp(cable.mac, PROBE_MAC, cable.ip, "0.0.0.0", op=2)
    assert [port for port, _ in fabric.tables["as1"].outputs(answer, 2)] == [CONTROLLER]


def test_nothing_but_an_endpoints_own_probe_answer_reaches_the_controller():
    tables = fabric_of(flows.compile(SITE, 1, PLACES, JOBS)).tables
    cable = SITE.endpoint("gpu0")
    answer = arp(cable.mac, PROBE_MAC, cable.ip, "0.0.0.0", op=2)
    assert [port for port, _ in tables["as0"].outputs(answer, 1)] == [CONTROLLER]
    assert tables["as0"].outputs(answer, 2) == []
    for name, at in PLACES.items():
        for packet in (p for b in PLACES for p in frames(SITE, name, b)):
            ports = [port for port, _ in tables[at.aggregator].outputs(packet, at.port)]
            assert CONTROLLER not in ports


def test_dark_endpoints_have_no_rules():
    places = {name: at for name, at in PLACES.items() if name != "gpu4"}
    programs = flows.compile(SITE, 1, places, JOBS)
    number = [e.name for e in SITE.endpoints].index("gpu4") + 1
    cookies = {unpack_cookie(r.cookie)[1] for p in programs.values() for r in p.rules}
    assert number not in cookies


def test_cookies_name_epoch_and_endpoint():
    programs = flows.compile(SITE, 42, PLACES, JOBS)
    rules = [rule for program in programs.values() for rule in program.rules]
    assert {unpack_cookie(rule.cookie)[0] for rule in rules} == {42}
    mine = [r for r in rules if ("in_port", 1) in r.match and ("ipv4_src", "10.77.0.1") in r.match]
    assert {unpack_cookie(rule.cookie)[1] for rule in mine} == {1}


def test_a_new_job_leaves_the_rules_of_others_alone():
    before = flows.compile(SITE, 1, PLACES, {"red": JOBS["red"]})
    after = flows.compile(SITE, 2, PLACES, JOBS)
    for name in before:
        steps = diff(before[name], after[name])
        assert not steps.remove
        assert {unpack_cookie(rule.cookie)[1] for rule in steps.add} <= {3, 4}


def test_traffic_between_distant_aggregators_takes_shortest_paths_both_ways_round():
    square = ((0, 1), (1, 2), (2, 3), (3, 0))
    site = make_site(aggregators=4, links=square)
    places = attach(("gpu0", "as0", 1), ("gpu1", "as2", 1), ("gpu2", "as1", 1))
    programs = flows.compile(site, 1, places, {"red": ("gpu0", "gpu1")})
    (group,) = [g for g in programs["as0"].groups if g.group == 3]
    assert len(group.ports) == 2
    fabric = fabric_of(programs, site)
    for packet in frames(site, "gpu0", "gpu1"):
        assert reached(fabric, places, "gpu0", packet) == {"gpu1"}
        assert len(fabric.leaves(packet, "as0", 1)) == 2


def test_uplinks_admit_members_only_from_their_direction():
    site = make_site(aggregators=3, links=((0, 1), (1, 2), (2, 0)))
    places = attach(("gpu0", "as0", 1), ("gpu1", "as1", 1))
    programs = flows.compile(site, 1, places, {"red": ("gpu0", "gpu1")})
    table = FakeTable.of(programs["as1"])
    packet = frames(site, "gpu0", "gpu1")[0]
    assert [port for port, _ in table.outputs(packet, 100)] == [1]
    assert table.outputs(packet, 101) == []


def test_members_without_a_path_are_not_reached():
    site = make_site(links=())
    programs = flows.compile(site, 1, PLACES, JOBS)
    fabric = fabric_of(programs, site)
    assert reached(fabric, PLACES, "gpu0", frames(site, "gpu0", "gpu4")[0]) == set()
    assert reached(fabric, PLACES, "gpu0", frames(site, "gpu0", "gpu1")[0]) == {"gpu1"}


@pytest.mark.parametrize(
    ("places", "jobs", "culprit"),
    [
        ({"gpu9": AttachPoint("as0", 1)}, {}, "gpu9"),
        ({"gpu0": AttachPoint("as0", 99)}, {}, "gpu0"),
        ({"gpu0": AttachPoint("as7", 1)}, {}, "gpu0"),
        ({"gpu0": AttachPoint("as0", 1), "gpu1": AttachPoint("as0", 1)}, {}, "gpu1"),
        ({}, {"red": ("gpu9",)}, "red"),
        ({}, {"red": ("gpu0",), "sky": ("gpu0",)}, "sky"),
    ],
)
def test_contradictions_are_refused(places, jobs, culprit):
    with pytest.raises(FlowError) as caught:
        flows.compile(SITE, 1, places, jobs)
    assert caught.value.obj == culprit
    assert caught.value.hint


def test_job_tags_depend_on_the_name_alone():
    tags = flows.job_tags(["red", "blue"])
    assert tags["red"] == flows.job_tags(["red"])["red"]
    assert 0 not in tags.values()
    assert len(set(tags.values())) == 2


NAMES = tuple(f"gpu{n}" for n in range(5))
BIG = make_site(aggregators=3, endpoints=len(NAMES), links=((0, 1), (1, 2), (0, 1)))
PORTS = [AttachPoint(f"as{n}", port) for n in range(3) for port in (1, 2)]


@st.composite
def states(draw):
    """Where every endpoint is (or dark), and which of two jobs it is in (or none)."""
    ports = draw(st.permutations(PORTS))
    dark = draw(st.sets(st.sampled_from(NAMES), max_size=2))
    places = {name: at for name, at in zip(NAMES, ports, strict=False) if name not in dark}
    jobs: dict[str, tuple[str, ...]] = {}
    for name in NAMES:
        job = draw(st.sampled_from(["red", "red", "blue", "blue", None]))
        if job:
            jobs[job] = (*jobs.get(job, ()), name)
    return places, jobs


def pairs(jobs) -> set[tuple[str, str]]:
    return {pair for names in jobs.values() for pair in itertools.permutations(names, 2)}


def assert_isolated(fabric, places, allowed) -> None:
    """No frame an endpoint could send reaches one it shares no job with; spoofing gains nothing."""
    for source in places:
        for claimed, target in itertools.product(NAMES, NAMES):
            for packet in frames(BIG, claimed, target):
                for end in reached(fabric, places, source, packet):
                    assert claimed == source
                    assert (source, end) in allowed, (source, end, packet)


@settings(max_examples=100)
@given(states())
def test_any_state_is_isolated_and_connected(state):
    places, jobs = state
    fabric = fabric_of(flows.compile(BIG, 1, places, jobs), BIG)
    assert_isolated(fabric, places, pairs(jobs))
    for a, b in pairs(jobs):
        if a in places and b in places:
            for packet in frames(BIG, a, b):
                assert reached(fabric, places, a, packet) == {b}


@settings(max_examples=25)
@given(states(), states(), st.randoms(use_true_random=False))
def test_every_single_step_of_a_regroup_is_isolated(old, new, chance):
    """Drain, move the light, route: after each message, on any interleaving of the aggregators."""
    (old_places, old_jobs), (new_places, new_jobs) = old, new
    moved = frozenset(n for n in NAMES if old_places.get(n) != new_places.get(n))
    first = flows.compile(BIG, 1, old_places, old_jobs)
    drained = flows.compile(BIG, 2, old_places, old_jobs, moved)
    last = flows.compile(BIG, 3, new_places, new_jobs)
    fabric = fabric_of(first, BIG)
    allowed = pairs(old_jobs) | pairs(new_jobs)

    def go(target: dict[str, FlowProgram], places) -> None:
        queues = {
            name: list(steps_of(diff(table.program(name), target[name])))
            for name, table in fabric.tables.items()
        }
        while waiting := [name for name, queue in queues.items() if queue]:
            name = chance.choice(waiting)
            fabric.tables[name].step(queues[name].pop(0))
            if chance.random() < 0.1:
                assert_isolated(fabric, places, allowed)
        assert_isolated(fabric, places, allowed)

    go(drained, old_places)
    assert_isolated(fabric, new_places, allowed)
    go(last, new_places)
    for name, table in fabric.tables.items():
        assert not diff(table.program(name), last[name])


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            states(),
            st.sets(st.sampled_from(NAMES), max_size=2),
            st.lists(st.sampled_from(BIG.uplinks), unique=True).map(tuple),
        ),
        max_size=5,
    )
)
def test_compiling_on_from_any_state_gives_the_result_of_a_full_compilation(story):
    """Only the epochs in cookies may differ, regardless of the history."""
    compiler, last = flows.Compiler(BIG), flows.Compiled()
    for epoch, ((places, jobs), held, uplinks) in enumerate(story):
        wanted = Forwarding(epoch, places, jobs, frozenset(held), uplinks=uplinks)
        last = compiler.next(last, wanted)
        site = replace(BIG, uplinks=uplinks)
        fresh = flows.compile(site, epoch, places, jobs, frozenset(held))
        assert last.programs.keys() == fresh.keys()
        for name, program in fresh.items():
            assert not diff(last.programs[name], program)
            assert {r.effect for r in last.programs[name].rules} == {
                r.effect for r in program.rules
            }


def test_what_a_change_does_not_touch_is_not_compiled_again():
    site = make_site(aggregators=3, endpoints=6, links=((0, 1), (1, 2)))
    places = attach(("gpu0", "as0", 1), ("gpu1", "as0", 2), ("gpu2", "as1", 1), ("gpu3", "as2", 1))
    jobs = {"red": ("gpu0", "gpu1"), "blue": ("gpu2", "gpu3")}
    compiler, now = flows.Compiler(site), Forwarding(1, places, jobs, uplinks=site.uplinks)
    first = compiler.next(flows.Compiled(), now)
    held = compiler.next(first, replace(now, epoch=2, held=frozenset({"gpu3"})))
    assert held.programs["as0"] is first.programs["as0"]
    assert held.programs["as1"] is not first.programs["as1"]
    again = compiler.next(held, replace(now, epoch=3, held=frozenset({"gpu3"})))
    assert again.programs == held.programs
    elsewhere = {**places, "gpu3": AttachPoint("as2", 2)}
    moved = compiler.next(first, replace(now, epoch=2, attachments=elsewhere))
    kept = [r for r in moved.programs["as0"].rules if unpack_cookie(r.cookie)[0] != 1]
    assert not kept, "rules of a job that stays keep their epoch"


def test_a_change_of_uplinks_compiles_only_the_jobs_that_use_them():
    site = make_site(aggregators=4, links=((0, 1), (2, 3), (2, 3), (1, 2)))
    places = attach(
        ("gpu0", "as0", 1),
        ("gpu1", "as0", 2),
        ("gpu2", "as1", 1),
        ("gpu4", "as2", 1),
        ("gpu5", "as3", 1),
    )
    jobs = {"red": ("gpu0", "gpu2"), "blue": ("gpu4", "gpu5"), "one": ("gpu1",)}
    compiler, now = flows.Compiler(site), Forwarding(1, places, jobs, uplinks=site.uplinks)
    first = compiler.next(flows.Compiled(), now)
    narrow = compiler.next(first, replace(now, epoch=2, uplinks=site.uplinks[:2]))
    same = {job for job, parts in narrow.fragments.items() if parts is first.fragments[job]}
    assert same == {"red", "one"}
    assert [n for n, p in narrow.programs.items() if p is first.programs[n]] == ["as0", "as1"]
