"""What agents say of carriers: old ones say nothing, and who is silent is not believed."""

from __future__ import annotations

from pathlib import Path

from protos import agent_pb2 as pb
from sitefile import load_site
from tests.parts.controller.engine import FakeEngine
from tests.parts.sites import PAPER
from tests.unit.controller.devices.agents.liars import Liar, believing, rank


def says(*health: pb.Health) -> pb.RanksReply:
    return pb.RanksReply(ranks=[rank("gpu0")], health=health)


async def test_a_carrier_is_known_only_where_the_agent_names_it() -> None:
    agent = Liar()
    async with believing(agent) as engine:
        agent.reply = says(pb.Health(endpoint="gpu0", ok=True))
        await engine.observe()
        assert engine.carriers() == {}, "an agent that does not know the field"
        agent.reply = says(
            pb.Health(endpoint="gpu0", ok=True, carrier=False),
            pb.Health(endpoint="gpu1", ok=True),
        )
        await engine.observe()
        assert engine.carriers() == {"gpu0": False}
        agent.reply = says(pb.Health(endpoint="gpu0", ok=True, carrier=True))
        await engine.observe()
        assert engine.carriers() == {"gpu0": True}


async def test_a_library_that_does_not_work_is_no_fault_of_an_endpoint() -> None:
    agent = Liar()
    async with believing(agent) as engine:
        agent.reply = says(
            pb.Health(endpoint="gpu0", reason="NVML does not work", fault="library"),
            pb.Health(endpoint="gpu1", reason="the GPU is lost", fault="lost"),
        )
        await engine.observe()
        assert engine.unready() == {"gpu0": "NVML does not work"}
        assert engine.unfit() == {"gpu1": "the GPU is lost"}
        agent.reply = says(pb.Health(endpoint="gpu0", reason="hangs"))
        await engine.observe()
        assert engine.unready() == {}
        assert engine.unfit() == {"gpu0": "hangs"}, "an agent that knows no codes"


async def test_what_a_silent_agent_said_is_not_known_any_more() -> None:
    agent = Liar()
    agent.reply = says(pb.Health(endpoint="gpu0", ok=True, carrier=False))
    async with believing(agent) as engine:
        await engine.observe()
        assert engine.carriers() == {"gpu0": False}
        agent.reply = says(pb.Health(endpoint="gpu5", ok=True))  # another's: not trusted any more
        await engine.observe()
        assert engine.carriers() == {}


def test_the_fake_of_the_stories_forgets_what_silent_servers_said() -> None:
    engine = FakeEngine(load_site(Path(PAPER)))
    engine.nics = {"gpu0": False, "gpu2": True}
    assert engine.carriers() == {"gpu0": False, "gpu2": True}
    engine.lost.add("srv0")
    assert engine.carriers() == {"gpu2": True}
