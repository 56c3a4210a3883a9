"""The codec: what one side writes the other reads, by the declarations of the values alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlink.bounds import Refused
from agentlink.checkpoints import FetchProgress, Keeps, KeepStored
from agentlink.codec import read, write
from agentlink.ranks import GPU, RankCheckpoint, RankKey, RankSpec
from agentlink.values import DataKey, Device, NicSpec, RankLimits, Record, Scope, VolumeMount, Where
from checkpoints.ledger import Key
from container_mgr.ranks import policy
from container_mgr.rpc.messages import spec_of
from container_mgr.values import AgentError, ServerFacts
from controller.devices.agents.messages import rank_message
from protos import agent_pb2 as pb
from tests.unit.container_mgr.specs import GOOD

words = st.text("abc-01", max_size=8)
counts = st.integers(0, 2**64 - 1)
maybe = st.none() | counts
small = st.none() | st.integers(0, 2**32 - 1)
cores = st.none() | st.floats(0, 64)
mounts = st.builds(
    VolumeMount, words, words, st.booleans(), st.sampled_from(Scope), words, maybe, maybe, maybe
)
checkpoints = st.builds(
    RankCheckpoint,
    folder=words,
    ranks=st.integers(0, 65_536),
    rule=words,
    where=st.sampled_from(Where),
    size_bytes=counts,
    key=st.binary(max_size=32),
    resumed=st.none() | st.builds(Key, counts, counts),
)
nics = st.builds(
    NicSpec, words, words, st.integers(0, 32), words, st.none() | st.integers(1, 9000), small
)
specs = st.builds(
    RankSpec,
    key=st.builds(RankKey, words, st.integers(0, 65_535), counts),
    endpoint=words,
    image=words,
    command=st.lists(words).map(tuple),
    nic=nics,
    further_nics=st.lists(nics, max_size=2).map(tuple),
    env=st.dictionaries(words, words),
    devices=st.just(()) | st.builds(Device, st.just(GPU), st.just("GPU-1")).map(lambda gpu: (gpu,)),
    limits=st.builds(RankLimits, cores, maybe, small, maybe, maybe),
    volumes=st.lists(mounts, max_size=3).map(tuple),
    uid=small,
    gid=small,
    secrets=st.dictionaries(words, words),
    record=st.sampled_from(Record),
    probe=st.booleans(),
    checkpoint=st.none() | checkpoints,
)


@given(specs)
def test_a_rank_arrives_as_it_was_sent(sent: RankSpec) -> None:
    raw = rank_message(replace(sent, server="srv0")).SerializeToString()
    arrived = spec_of(pb.Rank.FromString(raw))
    assert arrived == sent
    assert arrived.digest() == replace(sent, server="srv0").digest()


def test_an_older_side_has_a_gpu_in_a_field_of_its_own() -> None:
    spec = replace(GOOD, emulated_share=None, devices=(Device(GPU, "GPU-1"),))
    message = rank_message(spec)
    assert message.gpu_uuid == "GPU-1"  # an older agent
    message.ClearField("devices")
    assert spec_of(message) == spec  # an older controller
    assert (spec_of(message).digest(), spec.digest()) == ("2b5c64d5d63e5761",) * 2  # as before


def test_further_nics_are_beside_the_one_that_every_side_reads() -> None:
    spec = replace(GOOD, further_nics=(replace(GOOD.nic, name="e-gpu0b"),))
    message = rank_message(spec)
    assert message.nic == rank_message(GOOD).nic  # an older agent
    assert spec_of(message).digest() == spec.digest() != GOOD.digest()
    with pytest.raises(AgentError, match="this agent gives a rank one NIC"):
        policy.check(spec_of(message), None, ServerFacts(cores=4, memory_bytes=8 << 30))
    message.ClearField("further_nics")
    assert spec_of(message) == GOOD


@pytest.mark.parametrize(
    ("devices", "gpu_uuid", "why"),
    [
        ([pb.Device(kind="gpu", id="GPU-2")], "GPU-1", "its devices name another GPU"),
        ([pb.Device(kind="nvme", id="nvme0")], "", "device kind 'nvme' is unknown"),
        ([pb.Device(kind="gpu", id=f"GPU-{n}") for n in "12"], "", "a rank has one GPU at most"),
        ([pb.Device(kind="gpu")] * 17, "", "17 devices; at most 16 in one list"),
    ],
)
def test_devices_that_a_rank_cannot_have_are_refused(
    devices: list[pb.Device], gpu_uuid: str, why: str
) -> None:
    message = rank_message(replace(GOOD, emulated_share=None))
    message.devices.extend(devices)
    if gpu_uuid:
        message.gpu_uuid = gpu_uuid
    with pytest.raises(AgentError) as refused:
        policy.check(spec_of(message), None, ServerFacts(cores=4, memory_bytes=8 << 30))
    assert (refused.value.code, refused.value.message) == ("invalid", why)


@pytest.mark.parametrize(
    ("kind", "message", "obj", "why"),
    [
        (
            Keeps,
            pb.KeepRequest(keeps=[pb.Keep(store=pb.VolumeMount())]),
            None,
            "the step is missing",
        ),
        (
            Keeps,
            pb.KeepRequest(keeps=[pb.Keep(step=pb.StepKey())]),
            None,
            "a keep says nothing to keep",
        ),
        (DataKey, pb.RemoveDataRequest(volume="v" * 99, scope=9), "v" * 80, "scope 9 is unknown"),
        (
            RankCheckpoint,
            pb.RankCheckpoint(where="tape"),
            None,
            "checkpoints are kept in memory or on disk, not in 'tape'",
        ),
    ],
)
def test_what_is_not_allowed_is_refused(kind: Any, message: Any, obj: str | None, why: str) -> None:
    with pytest.raises(Refused) as refused:
        read(kind, message)
    assert str(refused.value) == why
    assert refused.value.obj == obj


def test_a_list_of_an_agent_is_cut_and_loses_what_cannot_be() -> None:
    faults = [pb.FetchFault(rank=65_536), pb.FetchFault(rank=1, endpoint="../gpu0")] * 999
    progress = read(FetchProgress, pb.FetchProgress(faults=faults))
    assert len(progress.faults) == 500
    assert {fault.endpoint for fault in progress.faults} == {""}


def test_a_choice_is_told_by_the_field_that_is_set() -> None:
    store = KeepStored(1, Key(10, 1), VolumeMount("shared", "/x"))
    message = write(pb.KeepRequest, Keeps("red.0123abcd", (store,)))
    assert message.keeps[0].WhichOneof("what") == "store"
    assert read(Keeps, message).keeps == (store,)


def test_what_cannot_be_sent_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="out of range"):
        write(pb.StepKey, Key(-1, 0))
