"""Lies, second users, ended jobs, moved light, steps that kill, and what may go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
import pytest_asyncio

from agentlink.checkpoints import Holding, HoldingKind
from checkpoints.ledger import Key
from checkpoints.ledger import State as Safety
from checkpoints.values import Apart, Scheme
from controller.base.errors import ServiceError
from controller.checkpoints import removal
from controller.checkpoints.desk import CheckpointDesk
from controller.checkpoints.warnings import LEAST_QUIET_S
from controller.devices.aggregators import AttachPoint
from controller.ranks import specs
from controller.state.records import JobVolume
from sitefile.recovery import RecoveryPolicy
from sitefile.volumes import Per, Volume
from tests.parts.controller.checkpoint_rig import EVER, Rig
from tests.parts.controller.checkpoints import Held, Place, digest_of

FOUR = ["gpu0", "gpu2", "gpu4", "gpu6"]
"""One endpoint of each server."""
RED = "red.00000001"


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    one = Rig()
    await one.up()
    yield one
    await one.crash()


def desk(rig: Rig) -> CheckpointDesk:
    return CheckpointDesk(
        rig.state,
        rig.kept,
        rig.keeper,
        step_s=lambda job: 2.0,
        restart_s=lambda job: None,
        exposures=lambda job: (),
    )


async def test_a_server_speaks_for_endpoints_of_the_job_only(rig: Rig) -> None:
    rig.submit("red", FOUR)
    await rig.start("red", FOUR)
    key = rig.write("red", 10)
    await rig.settle()
    # gpu7 never was of this job; gpu0 calls rank 1's part its own, with other bytes.
    rig.kept.put(Place(RED, "gpu7", HoldingKind.OWN, Key(99, key.epoch), 0), Held("x"))
    rig.kept.put(Place(RED, "gpu0", HoldingKind.OWN, key, 1), Held("x"))
    rig.kept.say(lie("srv1", "gpu0", key, 0))  # another server's endpoint
    await rig.settle()
    ledger = rig.keeper.ledger("red")
    assert ledger is not None and ledger.steps.keys() == {key}
    assert ledger.steps[key].parts[1].digest == digest_of(RED, key, 1)
    assert "gpu0" in ledger.steps[key].parts[0].holders
    assert await rig.start("red", FOUR) == key


def lie(server: str, endpoint: str, key: Key, rank: int) -> Holding:
    return Holding(
        server=server,
        folder=RED,
        key=key,
        rank=rank,
        endpoint=endpoint,
        kind=HoldingKind.MISSING,
    )


async def test_steps_of_unknown_runs_are_removed_and_never_restored(rig: Rig) -> None:
    rig.state.epoch = 80
    rig.submit("red", FOUR)
    await rig.start("red", FOUR)
    for rank, endpoint in enumerate(FOUR):
        rig.kept.write(RED, Key(50, 77), rank, endpoint)
    await rig.settle()
    assert not list(rig.places(RED, HoldingKind.OWN))
    assert await rig.start("red", FOUR) is None


async def test_what_an_older_copy_of_the_store_lacks_is_kept_until_it_is_accepted(rig: Rig) -> None:
    """Steps of runs after the copy, and folders of jobs that were submitted after it."""
    rig.submit("red", FOUR)
    await rig.start("red", FOUR)
    for rank, endpoint in enumerate(FOUR):
        rig.kept.write(RED, Key(900, 77), rank, endpoint)
    rig.kept.write("blue.1", Key(1, 1), 0, "gpu0")
    await rig.quiet()
    await rig.down()
    await rig.up()  # what is unknown is still so after a restart
    for _ in range(2):
        rig.now += removal.KEEP_S
        await rig.settle()
        await rig.removal.check()
    assert len(list(rig.places(RED, HoldingKind.OWN))) == len(FOUR)
    assert [place for place in rig.kept.held if place.folder == "blue.1"]
    told = [event.reason for event in rig.state.events.since(0, 1000)]
    assert told.count("UnknownSteps") == told.count("UnknownCheckpoints") * len(FOUR) > 0
    assert await rig.start("red", FOUR) is None, "they are of no known run"
    await rig.state.accept_store()
    rig.now += removal.KEEP_S
    await rig.settle()
    await rig.removal.check()
    assert not list(rig.places(RED, HoldingKind.OWN))
    assert not [place for place in rig.kept.held if place.folder == "blue.1"]


async def test_a_second_user_with_the_same_name_gets_nothing_of_the_first(rig: Rig) -> None:
    rig.submit("red", FOUR)
    await rig.start("red", FOUR)
    rig.write("red", 10)
    await rig.settle()
    rig.end("red")
    rig.submit("red", FOUR, folder="red.00000002")
    assert await rig.start("red", FOUR) is None
    mine = rig.write("red", 5)
    await rig.settle()
    shown = await desk(rig).checkpoints("red")
    assert [step.step for step in shown.steps] == [5]
    for _ in range(3):  # what the first one left goes, by and by; what runs stays
        rig.now += removal.KEEP_S
        await rig.removal.check()
    assert {place.folder for place in rig.kept.held} == {"red.00000002"}
    assert await rig.start("red", FOUR) == mine


async def test_an_ended_job_answers_until_its_checkpoints_are_removed(rig: Rig) -> None:
    rig.submit("red", FOUR)
    await rig.start("red", FOUR)
    rig.write("red", 10)
    await rig.settle()
    rig.away.add("srv3")
    rig.end("red")
    await rig.removal.check()
    await rig.down()
    await rig.up()
    rig.now += removal.KEEP_S - 1
    await rig.removal.check()
    assert [step.step for step in (await desk(rig).checkpoints("red")).steps] == [10]
    rig.now += 2
    await rig.removal.check()
    assert {rig.state.cables[p.endpoint].server for p in rig.kept.held} == {"srv3"}
    await rig.back("srv3")
    await rig.removal.check()
    assert not rig.kept.held and not rig.state.checkpoints
    await rig.down()
    assert not rig.store.rows
    with pytest.raises(ServiceError, match="removed"):
        await desk(rig).checkpoints("red")
    await rig.up()


async def test_folders_of_unknown_jobs_go_after_a_while(rig: Rig) -> None:
    rig.state.epoch = 1
    rig.kept.write("blue.1", Key(1, 1), 0, "gpu0")
    await rig.quiet()
    await rig.removal.check()
    assert rig.kept.held
    rig.now += removal.KEEP_S
    await rig.removal.check()
    assert not rig.kept.held


async def test_a_step_that_kills_twice_is_never_loaded_again(rig: Rig) -> None:
    rig.submit("red", FOUR, keep=3)
    await rig.start("red", FOUR)
    first = rig.write("red", 10)
    await rig.settle()
    second = rig.write("red", 20)
    await rig.settle()
    rig.keeper.ended("red", "own")
    for _ in range(2):
        assert await rig.start("red", FOUR) == second
        rig.keeper.ended("red", "own")
    await rig.down()
    await rig.up()
    assert await rig.start("red", FOUR) == first
    assert rig.state.checkpoints[RED].spoiled[0].key == second


async def test_lost_hardware_spoils_nothing(rig: Rig) -> None:
    rig.submit("red", FOUR)
    await rig.start("red", FOUR)
    key = rig.write("red", 10)
    await rig.settle()
    for _ in range(3):
        rig.keeper.ended("red", "unfit")
        assert await rig.start("red", FOUR) == key


async def test_a_run_that_is_not_durable_does_not_begin(rig: Rig) -> None:
    rig.submit("red", FOUR)
    await rig.state.journal.flush()
    rig.store.broken = True
    with pytest.raises(ServiceError, match="full"):
        await rig.start("red", FOUR)
    assert not rig.state.checkpoints[RED].runs
    rig.store.broken = False
    assert await rig.start("red", FOUR) is None
    assert rig.store.records()[0].runs == rig.state.checkpoints[RED].runs


async def test_a_reconnection_makes_nothing_look_lost(rig: Rig) -> None:
    rig.submit("red", FOUR)
    await rig.start("red", FOUR)
    key = rig.write("red", 10)
    await rig.settle()
    first, second, last = rig.kept.everything("srv0")
    for news in (first, second):
        rig.kept.tell(news)
        await rig.quiet()
        assert rig.keeper.newest("red", protected=True) == key
    rig.kept.tell(last)
    await rig.quiet()
    assert rig.keeper.newest("red", protected=True) == key
    rig.kept.lose("srv0")
    first, *_ = rig.kept.everything("srv0")
    rig.kept.tell(first)  # its machine started again: memory is gone at once
    await rig.quiet()
    ledger = rig.keeper.ledger("red")
    assert ledger is not None and "gpu0" not in ledger.steps[key].parts[0].holders


async def test_only_as_many_steps_stay_as_were_asked_for(rig: Rig) -> None:
    rig.submit("red", FOUR, keep=2)
    await rig.start("red", FOUR)
    for step in range(10, 60, 10):
        rig.write("red", step)
        await rig.settle()
    assert {place.key.step for place in rig.kept.held} == {40, 50}


async def test_every_kth_complete_step_goes_to_the_store(rig: Rig) -> None:
    rig.submit("red", FOUR, store="ckpt", every=3)
    await rig.start("red", FOUR)
    for step in range(10, 80, 10):
        rig.write("red", step)
        await rig.settle()
    assert {key.step for _, key, _ in rig.kept.stored} == {30, 60}
    for server in rig.site.servers:
        rig.kept.lose(server.name)
        await rig.back(server.name)
    resumed = await rig.start("red", ["gpu1", "gpu3", "gpu5", "gpu7"])
    assert resumed is not None and resumed.step == 60
    assert rig.events("CheckpointSkipped")


@pytest.mark.parametrize("per", ["site", "project", "job"])
async def test_a_store_is_the_owners_directory_as_a_job_mounts_it(rig: Rig, per: Per) -> None:
    """With the owner's quota and rates: checkpoints are no way round them."""
    volume = Volume(
        "ckpt", read_only=False, per=per, quota_bytes=5 << 30, read_bps=9 << 20, write_bps=7 << 20
    )
    rig.state.site = replace(rig.site, volumes={"ckpt": volume})
    job = rig.submit("red", FOUR, store="ckpt", every=1)
    asked = (JobVolume("ckpt", "/out", read_only=False),)
    job = replace(job, request=replace(job.request, volumes=asked))
    (mount,) = specs.mounts(rig.state.site, job)
    assert rig.keeper.starts.store_of(job) == replace(mount, path="", read_only=False)


async def test_copies_follow_light_over_two_switches(rig: Rig) -> None:
    """gpu0, gpu2 … are on ocs0; all of them end under one aggregator of it, then are apart."""
    rig.submit("red", FOUR, apart=Apart.AGGREGATOR)
    await rig.start("red", FOUR)
    rig.write("red", 10)
    await rig.settle()
    before = rig.state.checkpoints[RED].runs[-1].run.layout
    assert before.scheme is Scheme.PARTNER
    for port, name in enumerate(FOUR):
        rig.state.light.attachments[name] = AttachPoint("as0", 8 + port)
    await rig.settle()
    assert rig.state.checkpoints[RED].runs[-1].run.layout.scheme is Scheme.SINGLE
    assert "as0" in (await desk(rig).checkpoints("red")).unprotected_why
    assert rig.events("CheckpointsNotApart")
    for port, name in enumerate(FOUR[2:]):
        rig.state.light.attachments[name] = AttachPoint("as2", 8 + port)
    await rig.settle()
    assert rig.state.checkpoints[RED].runs[-1].run.layout.scheme is Scheme.PARTNER
    key = rig.write("red", 20)
    await rig.settle()
    assert rig.keeper.newest("red", protected=True) == key


async def test_a_job_that_cannot_be_kept_apart_starts_and_says_so(rig: Rig) -> None:
    rig.submit("red", ["gpu0", "gpu1"])
    assert await rig.start("red", ["gpu0", "gpu1"]) is None
    assert rig.events("CheckpointsNotApart")


async def test_verification_and_drops(rig: Rig) -> None:
    rig.submit("red", FOUR)
    await rig.start("red", FOUR)
    first = rig.write("red", 10)
    await rig.settle()
    key = rig.write("red", 20)
    await rig.settle()
    place = Place(RED, "gpu0", HoldingKind.OWN, key, 0)
    rig.kept.held[place].damages = ("model.bin: content",)
    rig.away.add("srv3")
    found = await desk(rig).verify_checkpoints("red", 20)
    assert [(d.step, d.rank, d.endpoint) for d in found.damaged] == [(20, 0, "gpu0")]
    assert found.silent == ["srv3"] and found.parts == 6
    await rig.back("srv3")
    with pytest.raises(ServiceError, match="newest complete"):
        await desk(rig).drop_checkpoint("red", 10, force=False)
    await desk(rig).drop_checkpoint("red", 20, force=True)
    await rig.settle()
    shown = await desk(rig).checkpoints("red")
    assert [step.step for step in shown.steps] == [10]
    assert await rig.start("red", FOUR) == first
    with pytest.raises(ServiceError, match="no checkpoint of step 7"):
        await desk(rig).verify_checkpoints("red", 7)


async def test_a_drop_shows_nothing_of_the_next_job_of_that_name(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.submit("red", FOUR)
    await rig.start("red", FOUR)
    rig.write("red", 10)
    await rig.settle()
    rig.end("red")
    asked, answers, drop = asyncio.Event(), asyncio.Event(), rig.kept.drop_steps

    async def slow(server: str, folder: str, keys: Sequence[Key], deadline_s: float) -> None:
        asked.set()
        await answers.wait()
        await drop(server, folder, keys, deadline_s)

    monkeypatch.setattr(rig.kept, "drop_steps", slow)
    dropping = asyncio.create_task(desk(rig).drop_checkpoint("red", 10, force=True))
    await asked.wait()
    rig.submit("red", FOUR, folder="red.00000002")
    answers.set()
    with pytest.raises(ServiceError, match="are removed") as gone:
        await dropping
    assert gone.value.code == "not_found"
    assert not rig.events("CheckpointDropped"), "the event would be the next job's"
    assert not list(rig.places(RED, HoldingKind.OWN))


async def test_a_server_that_refuses_to_read_is_not_a_silent_one(rig: Rig) -> None:
    rig.submit("red", FOUR)
    await rig.start("red", FOUR)
    rig.write("red", 10)
    await rig.settle()
    rig.away.add("srv3")
    rig.kept.broken.add("verify_steps")
    with pytest.raises(ServiceError, match="server/srv0: verify_steps broke") as refused:
        await desk(rig).verify_checkpoints("red", None)
    assert (refused.value.code, refused.value.hint) == ("conflict", "try again in some minutes")
    rig.kept.broken.clear()
    assert (await desk(rig).verify_checkpoints("red", None)).silent == ["srv3"]


async def test_one_project_reads_checkpoints_once_at_a_time(rig: Rig) -> None:
    for name, ends in (("red", FOUR[:2]), ("blue", FOUR[2:])):
        rig.submit(name, ends)
        await rig.start(name, ends)
        rig.write(name, 10)
    await rig.settle()
    one = desk(rig)
    both = await asyncio.gather(
        *(one.verify_checkpoints(name, None) for name in ("red", "blue")), return_exceptions=True
    )
    (refused,) = [answer for answer in both if isinstance(answer, ServiceError)]
    assert "are being read already" in refused.message
    assert (await one.verify_checkpoints("blue", None)).parts


async def test_what_a_job_should_hear(rig: Rig) -> None:
    rig.submit("red", FOUR)
    await rig.start("red", FOUR)
    rig.kept.lazy = True
    rig.write("red", 10)
    await rig.settle(1)
    assert not rig.events("NoCheckpoint")
    rig.now += EVER
    await rig.settle(2)
    assert len(rig.events("NoCheckpoint")) == 1
    assert len(rig.events("CheckpointsUnprotected")) == 1
    (step,) = (await desk(rig).checkpoints("red")).steps
    assert step.state is Safety.WRITTEN and step.written_s_max == 0.5
    advice = await desk(rig).checkpoint_advice("red")
    assert advice.interval_s is None and "no part of the job was watched" in advice.why


async def test_names_that_are_no_steps_are_shown_and_reported(rig: Rig) -> None:
    rig.submit("red", FOUR)
    await rig.start("red", FOUR)
    epoch = rig.state.checkpoints[RED].runs[-1].epoch

    def say(rank: int, why: str, epoch: int = epoch) -> None:
        rig.kept.say(
            Holding(
                server=rig.state.cables[FOUR[rank]].server,
                folder=RED,
                key=Key(0, epoch),
                rank=rank,
                endpoint=FOUR[rank],
                kind=HoldingKind.IGNORED,
                why=why,
                seen_at=rig.now,
            )
        )

    async def look() -> None:
        await rig.quiet()
        await rig.keeper.check()

    for rank in range(4):
        say(rank, "'global_step100x'")
    await look()
    shown = await desk(rig).checkpoints("red")
    assert shown.ignored == ["rank 0 and 3 more: 'global_step100x'"]
    assert shown.naming == "step-N or step-N.EXT"
    assert not rig.events("NotAStep"), "a program may name it so for a moment"
    rig.now += LEAST_QUIET_S + 1
    await look()
    (said,) = rig.events("NotAStep")
    assert "'global_step100x'" in said and "call a step step-N or step-N.EXT" in said
    for rank in range(4):
        say(rank, "")
    await look()
    assert (await desk(rig).checkpoints("red")).ignored == []
    say(1, "'x'")
    say(1, "'y'", epoch=epoch + 7)  # of no run
    await look()
    await rig.start("red", FOUR)
    assert (await desk(rig).checkpoints("red")).ignored == [], "its folder is empty again"


async def test_a_run_that_starts_is_given_the_time_that_earlier_ones_took(rig: Rig) -> None:
    """A job that wrote every 7 s imports its framework for 20 s after a recovery."""
    rig.submit("red", FOUR)
    await rig.start("red", FOUR)
    rig.now += 20
    for step in (10, 20, 30):
        rig.write("red", step)
        await rig.quiet()
        await rig.keeper.check()
        rig.now += 7
    await rig.start("red", FOUR)
    for _ in range(2):
        rig.now += 20
        await rig.keeper.check()
    assert not rig.events("NoCheckpoint")
    rig.now += 45
    await rig.keeper.check()
    (said,) = rig.events("NoCheckpoint")
    assert said == "it has written no checkpoint for 85 s; before, it wrote one every 7 s"


@pytest.mark.parametrize("before", [False, True])
async def test_a_start_that_is_repeated_resumes_as_before(rig: Rig, before: bool) -> None:
    """Ranks of the first try may have written already, and the new ranks join their run."""
    rig.submit("red", FOUR)
    first = await rig.start("red", FOUR)
    if before:
        rig.write("red", 10)
        await rig.settle()
        first = await rig.start("red", FOUR)
        assert first is not None and first.step == 10
    rig.write("red", 20)
    await rig.settle()
    given = await rig.keeper.ready("red")
    assert {one.resumed for one in given.values()} == {first}


@pytest.mark.parametrize("back", [True, False])
async def test_an_agent_that_restarts_is_waited_for_until_it_counts_as_lost(
    rig: Rig, back: bool
) -> None:
    rig.state.site = replace(rig.state.site, recovery=RecoveryPolicy(lost_after_s=5.0))
    rig.submit("red", FOUR)
    await rig.start("red", FOUR)
    older = rig.write("red", 10)
    await rig.settle()
    rig.kept.lazy = True
    newer = rig.write("red", 20)
    await rig.quiet()
    await rig.keeper.check()
    rig.away.add("srv1")
    starting = asyncio.create_task(rig.start("red", ["gpu0", "gpu1", "gpu4", "gpu6"]))
    await asyncio.sleep(5)
    assert not starting.done(), "step 20 is on srv1 too, which may answer again"
    if back:
        await rig.back("srv1")
    else:
        rig.now += 6.0
    assert await starting == (newer if back else older)


async def test_a_program_that_writes_every_second_is_given_a_minute(rig: Rig) -> None:
    rig.submit("red", FOUR)
    await rig.start("red", FOUR)
    for step in (10, 20, 30):
        rig.write("red", step)
        await rig.quiet()
        await rig.keeper.check()
        rig.now += 1
    rig.kept.lazy = True
    rig.write("red", 40)
    await rig.quiet()
    await rig.keeper.check()
    rig.now += LEAST_QUIET_S - 1
    await rig.quiet()
    await rig.keeper.check()
    assert not rig.events("NoCheckpoint") and not rig.events("CheckpointsUnprotected")
    rig.now += 2
    await rig.quiet()
    await rig.keeper.check()
    assert rig.events("NoCheckpoint") and rig.events("CheckpointsUnprotected")


async def test_a_run_after_a_restart_of_the_controller_is_given_half_an_hour(rig: Rig) -> None:
    rig.submit("red", FOUR)
    await rig.start("red", FOUR)
    for step in (10, 20, 30):
        rig.write("red", step)
        await rig.quiet()
        await rig.keeper.check()
        rig.now += 7
    await rig.down()
    await rig.up()
    await rig.start("red", FOUR)
    rig.now += 1000
    await rig.keeper.check()
    assert not rig.events("NoCheckpoint")


@pytest.mark.parametrize("scheme", [Scheme.PARTNER, Scheme.SINGLE])
async def test_how_safe_a_job_is(rig: Rig, scheme: Scheme) -> None:
    rig.submit("red", FOUR, scheme)
    await rig.start("red", FOUR)
    await rig.keeper.check()
    assert rig.keeper.protected("red") is None and rig.keeper.protected("blue") is None
    rig.kept.lazy = True
    rig.write("red", 10)
    await rig.quiet()
    written_at = rig.now
    await rig.keeper.check()
    found = rig.keeper.protected("red")
    assert found is not None and found[0] == written_at and "no cop" in found[1]
    rig.kept.lazy = False
    await rig.settle()
    found = rig.keeper.protected("red")
    assert found is not None
    if scheme is Scheme.PARTNER:
        assert found[0] > written_at and found[1] == ""
    else:
        assert found == (written_at, "its checkpoints have no copies")


async def test_a_step_is_closed_once_its_coordinator_is_done(rig: Rig) -> None:
    rig.submit("red", FOUR, complete="dcp")
    await rig.start("red", FOUR)
    key = Key(10, rig.jobs["red"].epoch)
    for rank in (1, 2, 3):
        awaits = replace(lie(f"srv{rank}", FOUR[rank], key, rank), kind=HoldingKind.AWAITS)
        rig.kept.say(awaits)
    await rig.settle(1)
    assert not rig.kept.named("close_step")
    rig.kept.write(RED, key, 0, "gpu0")
    await rig.settle(1)
    assert {server for server, _ in rig.kept.named("close_step")} == {"srv1", "srv2", "srv3"}
    for rank in (1, 2, 3):
        rig.kept.write(RED, key, rank, FOUR[rank])
    calls = len(rig.kept.named("close_step"))
    await rig.settle()
    assert len(rig.kept.named("close_step")) == calls
    resumed = await rig.start("red", FOUR)
    assert resumed == key
    shown = rig.kept.shown[RED, "gpu0"]
    assert {part for _, part, _ in shown} == {0, 1, 2, 3}, "a program that gathers reads all parts"


async def test_sums_say_how_much_is_how_safe_and_for_how_long_not(rig: Rig) -> None:
    rig.submit("red", FOUR)
    await rig.start("red", FOUR)
    assert rig.keeper.protected("red") is None
    rig.write("red", 10)
    await rig.settle()
    sums = desk(rig).sums()["red"]
    assert sums.bytes.keys() == {Safety.PROTECTED} and sums.bytes[Safety.PROTECTED] > 0
    known = rig.keeper.protected("red")
    assert known is not None and (sums.unprotected_s, known[1]) == (0.0, "")
    rig.write("red", 20, ranks=[0, 1])
    await rig.settle()
    assert desk(rig).sums()["red"].bytes.keys() == {Safety.PROTECTED, Safety.PARTIAL}
    rig.end("red")
    await rig.settle()
    assert desk(rig).sums() == {}


async def test_a_part_that_all_ranks_read_comes_once_to_a_server(rig: Rig) -> None:
    endpoints = ["gpu0", "gpu1", "gpu2", "gpu3"]  # two of each server
    rig.submit("red", endpoints, complete="dcp")
    await rig.start("red", endpoints)
    key = Key(10, rig.jobs["red"].epoch)
    for rank, endpoint in enumerate(endpoints):
        rig.kept.write(RED, key, rank, endpoint)
    await rig.settle()
    assert await rig.start("red", endpoints) == key
    for pair in ((0, 1), (2, 3)):
        shown = [
            (rank, part) for rank in pair for _, part, _ in rig.kept.shown[RED, endpoints[rank]]
        ]
        assert sorted(part for _, part in shown) == [0, 1, 2, 3]
        assert {(rank, rank) for rank in pair} <= set(shown)


async def test_failures_of_a_step_that_was_given_up_do_not_change_what_is_copied(rig: Rig) -> None:
    """Its parts are dropped, so all its transfers fail; each would give up the next step too."""
    rig.kept.lazy = True
    rig.submit("red", FOUR)
    await rig.start("red", FOUR)
    first = rig.write("red", 10)
    await rig.settle()
    book = rig.keeper.books.get(RED)
    assert book is not None
    assert book.copying == first
    second = rig.write("red", 20)
    rig.kept.say(lie("srv0", "gpu0", first, 1))  # the copy of rank 1's part cannot be made
    await rig.settle()
    assert book.copying == second, "with the first it may never succeed"
    rig.write("red", 30)
    for endpoint, rank in (("gpu0", 0), ("gpu1", 2)):
        rig.kept.say(lie("srv0", endpoint, first, rank))
    await rig.settle()
    assert book.copying == second
