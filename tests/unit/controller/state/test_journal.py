"""The journal over a real database on a faulty disk: every outcome is known in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from controller.base.errors import OutcomeUnknownError, ServiceError
from controller.state import journal
from controller.state.events import EventLog
from controller.state.intend import keys
from controller.state.intend.intentions import Intention, Make, Table, constant
from controller.state.intend.keys import FACTS
from controller.state.journal import Journal
from controller.state.kinds.kind import Key
from controller.state.records import JobRecord, JobSpec
from controller.state.writes import DropJobs, KeptAnswer, PutAnswer, PutFacts, PutJob, Write
from controller.store.store import Store
from controller.usage.ledger import UsageLedger
from tests.parts.controller.disk import FAULTS, Disk, Fault
from tests.parts.controller.see import owes

RED = JobRecord("red", JobSpec(count=1), "image:1", 1.0)


class JournalRig:
    """A journal, what its owner holds in memory, and the disk below."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "state.sqlite"
        self.jobs: dict[str, JobRecord] = {}
        self.epoch = 1
        self.events = EventLog(lambda: 1.0, lambda: 0)
        self.store = Store(self.path)
        self.disk = Disk(self.store)
        self.journal = Journal(self.store, self.events, self.row, UsageLedger())

    def row(self, key: Key) -> Write:
        kind, name = key
        if kind == "facts":
            return PutFacts({"epoch": str(self.epoch)})
        return self.table(kind).write(name, self.jobs.get(name))

    def table(self, kind: str) -> Table:
        return Table(
            self.jobs.get,
            lambda job: self.jobs.__setitem__(job.name, job),
            self.jobs.pop,
            PutJob,
            lambda name: DropJobs((name,)),
        )

    def intention(self) -> Intention:
        return Intention(self.journal, self.table)

    async def intend(self, name: str, make: Make) -> None:
        """Change a job once that is durable."""
        async with self.intention() as intention:
            await intention.acquire(keys.job(name))
            intention.will(keys.job(name), make)
            await intention.commit()

    async def facts(self) -> str:
        """Return the epoch that a restart would find."""
        await self.store.close()
        again = Store(self.path)
        loaded = await again.load()
        await again.close()
        return loaded.facts["epoch"]

    async def durable(self) -> dict[str, JobRecord]:
        """Return the jobs that a restart would find."""
        await self.store.close()
        again = Store(self.path)
        loaded = await again.load()
        await again.close()
        return {job.name: job for job in loaded.jobs}

    async def commit_hangs(self) -> None:
        """Let a commit reach the disk, which hangs."""
        await asyncio.sleep(0.01)
        assert self.disk.hit

    async def together(self, *names: str) -> list[BaseException | None]:
        """Submit jobs at the same moment; return what each caller was told."""
        jobs = (self.submit(replace(RED, name=name)) for name in names)
        return await asyncio.gather(*jobs, return_exceptions=True)

    def refuse(self, refused: Callable[[list[str]], bool]) -> None:
        """Let the store refuse the commits with these jobs."""
        commit = self.store.commit

        async def commit_or_refuse(*writes: Write) -> None:
            if refused([write.job.name for write in writes if isinstance(write, PutJob)]):
                raise ServiceError("failed", "the store refused: too much")
            await commit(*writes)

        self.store.commit = commit_or_refuse  # type: ignore[method-assign]

    async def submit(self, job: JobRecord) -> None:
        """Make a job durable, or roll it back; nobody else may take its name meanwhile."""
        async with self.intention() as intention:
            await intention.acquire(keys.job(job.name))
            intention.now(keys.job(job.name), constant(job))
            await intention.commit()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[JournalRig]:
    rig = JournalRig(tmp_path)
    yield rig
    rig.disk.release()


@pytest.mark.parametrize("fault", [f for f in FAULTS if f != "torn"])
async def test_what_was_refused_never_happens(rig: JournalRig, fault: Fault) -> None:
    await rig.store.load()
    rig.disk.fault = fault
    with pytest.raises(ServiceError):
        await rig.submit(RED)
    rig.disk.release()
    await rig.journal.flush()
    await rig.submit(replace(RED, name="blue"))
    assert not owes(rig.journal)
    assert set(await rig.durable()) == {"blue"}


async def test_a_commit_that_is_durable_despite_an_error_is_acknowledged(rig: JournalRig) -> None:
    await rig.store.load()
    rig.disk.fault, rig.disk.times = "torn", 1
    await rig.submit(RED)
    assert set(await rig.durable()) == {"red"}


@pytest.mark.parametrize("fault", [f for f in FAULTS if f != "torn"])
async def test_what_happened_is_written_as_soon_as_the_disk_allows(
    rig: JournalRig, fault: Fault
) -> None:
    await rig.store.load()
    await rig.submit(RED)
    rig.disk.fault = fault
    rig.jobs["red"] = replace(RED, state="completed")
    rig.events.add("info", "job/red", "JobCompleted", "")
    with pytest.raises(ServiceError):
        await rig.journal.record(keys.job("red"))
    assert owes(rig.journal) and rig.journal.error
    rig.disk.release()
    await rig.journal.flush()
    assert not owes(rig.journal) and not rig.journal.error
    assert (await rig.durable())["red"].state == "completed"


async def test_nothing_is_handed_to_a_late_disk(rig: JournalRig) -> None:
    """A write that timed out waiting for its turn is told that nothing was changed."""
    await rig.store.load()
    rig.disk.fault = "slow"
    with pytest.raises(OutcomeUnknownError):
        await rig.submit(RED)
    for name in ("blue", "green"):
        with pytest.raises(ServiceError) as caught:
            await rig.submit(replace(RED, name=name))
        assert not isinstance(caught.value, OutcomeUnknownError)
        assert "nothing was changed" in caught.value.message
    assert rig.disk.hit == 1
    rig.disk.release()
    await rig.submit(replace(RED, name="after"))
    assert set(await rig.durable()) == {"after"}


async def test_an_old_row_never_overwrites_a_newer_one(rig: JournalRig) -> None:
    await rig.store.load()
    await rig.submit(RED)
    rig.disk.fault = "full"
    rig.jobs["red"] = replace(RED, state="starting")
    with pytest.raises(ServiceError):
        await rig.journal.record(keys.job("red"))
    rig.jobs["red"] = replace(RED, state="running")
    rig.disk.release()
    await rig.journal.commit(keys.job("red"))
    assert (await rig.durable())["red"].state == "running"


async def test_a_row_that_is_being_decided_is_left_to_its_own_commit(rig: JournalRig) -> None:
    """The first submit failed, the same name is submitted again, and other writes go first."""
    await rig.store.load()
    rig.disk.fault = "slow"
    with pytest.raises(ServiceError):
        await rig.submit(RED)
    rig.disk.release()
    async with rig.intention() as again:
        await again.acquire(keys.job("red"))
        again.now(keys.job("red"), constant(replace(RED, image="image:2")))
        await rig.submit(replace(RED, name="blue"))
        assert owes(rig.journal)
        await again.commit()
    assert not owes(rig.journal)
    assert (await rig.durable())["red"].image == "image:2"


async def test_a_cancelled_caller_leaves_no_partial_change(rig: JournalRig) -> None:
    await rig.store.load()
    rig.disk.fault = "slow"
    caller = asyncio.create_task(rig.submit(RED))
    await rig.commit_hangs()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert not rig.jobs
    rig.disk.release()
    await rig.journal.flush()
    assert not await rig.durable()


async def test_a_key_whose_change_did_not_begin_is_rolled_back(rig: JournalRig) -> None:
    await rig.store.load()
    begun = KeptAnswer("id", "print", 1.0)
    rig.disk.fault = "slow"
    with pytest.raises(OutcomeUnknownError):
        await rig.journal.commit(PutAnswer(begun, 0.0, 10, 1000))
    rig.disk.release()
    await rig.journal.flush()
    assert await rig.journal.answer("id") is None


async def test_the_answer_to_a_key_is_owed_until_it_is_kept(rig: JournalRig) -> None:
    await rig.store.load()
    begun = KeptAnswer("id", "print", 1.0)
    await rig.journal.commit(PutAnswer(begun, 0.0, 10, 1000))
    rig.disk.fault = "full"
    with pytest.raises(ServiceError):
        await rig.journal.record(PutAnswer(replace(begun, status=201), 0.0, 10, 1000))
    rig.disk.release()
    await rig.journal.flush()
    kept = await rig.journal.answer("id")
    assert kept is not None and kept.status == 201


async def test_an_event_is_written_once_after_any_number_of_attempts(rig: JournalRig) -> None:
    await rig.store.load()
    for _ in range(3):
        rig.disk.fault, rig.disk.times = "lost", 1
        rig.events.add("info", "job/red", "Something", "")
        with pytest.raises(ServiceError):
            await rig.journal.commit()
        rig.disk.release()
    await rig.journal.commit()
    await rig.store.close()
    again = Store(rig.path)
    assert [event.id for event in (await again.load()).events] == [1, 2, 3]
    await again.close()


async def test_changes_that_come_together_share_a_commit(rig: JournalRig) -> None:
    await rig.store.load()
    names = [f"job-{number}" for number in range(20)]
    assert await rig.together(*names) == [None] * 20
    assert rig.store.commits == 1
    assert await rig.durable() == {name: replace(RED, name=name) for name in names}


async def test_a_commit_has_a_bounded_number_of_callers_writes(
    rig: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_TOGETHER", 4)
    await rig.store.load()
    assert await rig.together(*(f"job-{number}" for number in range(10))) == [None] * 10
    assert rig.store.commits == 3
    assert len(await rig.durable()) == 10


async def test_a_refused_row_of_one_caller_harms_no_other(rig: JournalRig) -> None:
    await rig.store.load()
    rig.refuse(lambda names: "bad" in names)
    red, bad, blue = await rig.together("red", "bad", "blue")
    assert (red, blue) == (None, None)
    assert isinstance(bad, ServiceError)
    assert not owes(rig.journal)
    assert set(await rig.durable()) == {"red", "blue"}


async def test_all_callers_of_a_commit_learn_that_its_outcome_is_unknown(rig: JournalRig) -> None:
    await rig.store.load()
    rig.disk.fault = "slow"
    told = await rig.together("red", "blue", "green")
    assert all(isinstance(error, OutcomeUnknownError) for error in told)
    rig.disk.release()
    await rig.journal.flush()
    assert not owes(rig.journal)
    assert not await rig.durable()


async def only_red_stays(
    rig: JournalRig, stays: asyncio.Task[None], leaves: asyncio.Task[None]
) -> None:
    """Cancel the caller that submits blue while the disk hangs; the other's job is durable."""
    leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    assert "blue" not in rig.jobs
    rig.disk.release()
    await stays
    await rig.journal.flush()
    assert set(await rig.durable()) == {"red"}


@pytest.mark.parametrize("together", [True, False])
async def test_a_caller_that_leaves_harms_no_other(rig: JournalRig, *, together: bool) -> None:
    """It leaves while its change is written with that of another, or waits for its turn."""
    await rig.store.load()
    rig.disk.fault = "slow"
    stays = asyncio.create_task(rig.submit(RED))
    leaves = asyncio.create_task(rig.submit(replace(RED, name="blue"))) if together else None
    await rig.commit_hangs()
    if leaves is None:
        leaves = asyncio.create_task(rig.submit(replace(RED, name="blue")))
        await asyncio.sleep(0.01)
    await only_red_stays(rig, stays, leaves)


async def test_a_caller_that_leaves_after_a_refusal_is_not_tried_again(rig: JournalRig) -> None:
    await rig.store.load()
    rig.refuse(lambda names: len(names) > 1)
    rig.disk.fault = "slow"
    stays = asyncio.create_task(rig.submit(RED))
    leaves = asyncio.create_task(rig.submit(replace(RED, name="blue")))
    await rig.commit_hangs()  # that of the first, alone
    await only_red_stays(rig, stays, leaves)


# --- what memory holds is written as it is at that moment --------------------------------------


async def test_what_is_owed_goes_with_an_older_commit_as_it_is_by_then(rig: JournalRig) -> None:
    """An earlier caller waits with the same row; what the later one recorded is on the disk."""
    await rig.store.load()
    rig.disk.fault = "slow"
    first = asyncio.create_task(rig.submit(RED))
    await rig.commit_hangs()
    rig.epoch = 2
    second = asyncio.create_task(rig.journal.commit(FACTS))
    await asyncio.sleep(0)
    rig.epoch = 3
    third = asyncio.create_task(rig.journal.record(FACTS))
    await asyncio.sleep(0)
    rig.disk.release()
    await asyncio.gather(first, second, third)
    assert not owes(rig.journal)
    assert await rig.facts() == "3"


async def test_a_row_owed_while_it_is_written_stays_owed(rig: JournalRig) -> None:
    await rig.store.load()
    rig.disk.fault = "slow"
    first = asyncio.create_task(rig.journal.record(FACTS))
    await rig.commit_hangs()
    rig.epoch = 2
    rig.journal.owe(FACTS)
    rig.disk.release()
    await first
    assert owes(rig.journal)
    await rig.journal.flush()
    assert not owes(rig.journal)
    assert await rig.facts() == "2"


async def test_an_end_that_is_durable_is_in_memory_before_anything_else_is_written(
    rig: JournalRig,
) -> None:
    """Another part notes something in the job while its cancel is at the disk."""
    await rig.store.load()
    await rig.submit(RED)
    rig.disk.fault = "slow"
    cancel = asyncio.create_task(rig.intend("red", lambda now: replace(now, state="cancelled")))
    await rig.commit_hangs()
    assert rig.jobs["red"].state == "pending", "an end becomes visible when it is durable"
    rig.jobs["red"] = replace(rig.jobs["red"], reserved_at=7.0)
    noted = asyncio.create_task(rig.journal.record(keys.job("red")))
    await asyncio.sleep(0)
    rig.disk.release()
    await asyncio.gather(cancel, noted)
    assert not owes(rig.journal)
    red = rig.jobs["red"]
    assert (red.state, red.reserved_at) == ("cancelled", 7.0)
    assert (await rig.durable())["red"] == red


async def test_what_is_recorded_of_a_row_waits_for_its_change(rig: JournalRig) -> None:
    """The change is refused: the record is durable without it."""
    await rig.store.load()
    await rig.submit(RED)
    async with rig.intention() as pause:
        await pause.acquire(keys.job("red"))
        pause.now(keys.job("red"), lambda now: replace(now, state="paused", reason="paused"))
        rig.jobs["red"] = replace(rig.jobs["red"], restarts=1)
        noted = asyncio.create_task(rig.journal.record(keys.job("red")))
        await asyncio.sleep(0.1)
        assert not noted.done()
        rig.disk.fault, rig.disk.times = "full", 1
        with pytest.raises(ServiceError):
            await pause.commit()
    await noted
    assert rig.jobs["red"] == replace(RED, restarts=1)
    assert await rig.durable() == rig.jobs


async def test_changes_of_one_record_follow_each_other(rig: JournalRig) -> None:
    await rig.store.load()
    await rig.submit(RED)
    many = 20

    async def more() -> None:
        await rig.intend("red", lambda now: replace(now, restarts=now.restarts + 1))

    await asyncio.gather(*(more() for _ in range(many)))
    assert rig.jobs["red"].restarts == many
    assert await rig.durable() == rig.jobs


async def test_a_change_waits_for_another_of_its_record_only_so_long(rig: JournalRig) -> None:
    await rig.store.load()
    await rig.submit(RED)
    async with rig.intention() as first:
        await first.acquire(keys.job("red"))
        with pytest.raises(ServiceError, match="busy"):
            await rig.intend("red", lambda now: None)
    await rig.intend("red", lambda now: None)
    assert not rig.jobs and not await rig.durable()


async def test_changes_of_the_same_records_never_wait_for_each_other(rig: JournalRig) -> None:
    await rig.store.load()
    await rig.together("red", "blue")

    async def both(*names: str) -> None:
        async with rig.intention() as intention:
            await intention.acquire(*map(keys.job, names))
            for name in names:
                intention.will(keys.job(name), lambda now: replace(now, restarts=now.restarts + 1))
            await intention.commit()

    await asyncio.gather(*(both(*pair) for pair in (("red", "blue"), ("blue", "red")) * 5))
    assert {job.restarts for job in rig.jobs.values()} == {10}


@pytest.mark.parametrize("fault", [f for f in FAULTS if f != "torn"])
async def test_a_change_that_failed_leaves_no_trace(rig: JournalRig, fault: Fault) -> None:
    """Neither one that was visible at once, nor one that was not."""
    await rig.store.load()
    await rig.together("red", "blue")
    before = dict(rig.jobs)
    rig.disk.fault = fault
    async with rig.intention() as intention:
        await intention.acquire(*map(keys.job, rig.jobs))
        intention.now(keys.job("red"), lambda now: replace(now, state="starting"))
        intention.will(keys.job("blue"), lambda now: None)
        with pytest.raises(ServiceError):
            await intention.commit()
    rig.disk.release()
    await rig.journal.flush()
    assert rig.jobs == before
    assert await rig.durable() == before


async def test_what_happened_meanwhile_overtakes_a_durable_change(rig: JournalRig) -> None:
    def paused(now: JobRecord) -> JobRecord:
        if now.state != "running":
            raise ServiceError("conflict", "it does not run")
        return replace(now, state="paused")

    await rig.store.load()
    await rig.submit(replace(RED, state="running"))
    rig.disk.fault = "slow"
    pause = asyncio.create_task(rig.intend("red", paused))
    await rig.commit_hangs()
    rig.jobs["red"] = replace(RED, state="failed")
    rig.disk.release()
    await pause
    await rig.journal.flush()
    assert rig.jobs["red"].state == "failed"
    assert await rig.durable() == rig.jobs
