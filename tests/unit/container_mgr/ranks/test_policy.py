from __future__ import annotations

from dataclasses import replace

import pytest

from agentlink.ranks import GPU, RankCheckpoint, RankKey, RankSpec
from agentlink.values import Device, NicSpec, RankLimits, Where
from checkpoints.ledger import Key
from container_mgr.ranks import policy
from container_mgr.values import AgentError, ServedEndpoint, ServerFacts
from tests.unit.container_mgr.specs import GOOD

FACTS = ServerFacts(cores=8, memory_bytes=16 << 30)
SERVED = {"gpu0": ServedEndpoint("gpu0", "e-gpu0", emulated=True)}


def test_a_valid_rank_passes() -> None:
    policy.check(GOOD, SERVED, FACTS)
    policy.check(GOOD, None, FACTS)


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, key=RankKey("../etc", 0, 7)),
        replace(GOOD, key=RankKey("Red", 0, 7)),
        replace(GOOD, key=RankKey("x" * 42, 0, 7)),
        replace(GOOD, key=RankKey("red\n", 0, 7)),
        replace(GOOD, endpoint="gpu 0"),
        replace(GOOD, image="--privileged"),
        replace(GOOD, image=""),
        replace(GOOD, command=("x",) * 257),
        replace(GOOD, command=("a\0b",)),
        replace(GOOD, command=("x" * 70_000,)),
        replace(GOOD, env={"X" * 70: "1"}),
        replace(GOOD, env={"TF_CONFIG": "a\0b"}),
        replace(GOOD, env={"TF_CONFIG": "x" * 132_000}),
        replace(GOOD, env={"APP_A": "x" * 40_000}),
        replace(GOOD, env={f"APP_{n}": "x" * 30_000 for n in range(20)}),
        replace(GOOD, env={f"TF_{n}": "" for n in range(200)}),
        replace(GOOD, nic=replace(GOOD.nic, name="e-gpu0/../lo")),
        replace(GOOD, nic=replace(GOOD.nic, mac="01:00:5e:00:00:01")),
        replace(GOOD, nic=replace(GOOD.nic, mac="nonsense")),
        replace(GOOD, nic=replace(GOOD.nic, ip="127.0.0.1")),
        replace(GOOD, nic=replace(GOOD.nic, ip="224.0.0.1")),
        replace(GOOD, nic=replace(GOOD.nic, ip="10.77.0.256")),
        replace(GOOD, nic=replace(GOOD.nic, prefix_len=0)),
        replace(GOOD, nic=replace(GOOD.nic, mtu=70_000)),
        replace(GOOD, emulated_share=0.0),
        replace(GOOD, emulated_share=float("nan")),
        replace(GOOD, devices=(Device(GPU, "GPU-1"),)),
    ],
)
def test_invalid_requests_are_refused(bad: RankSpec) -> None:
    with pytest.raises(AgentError) as refused:
        policy.check(bad, None, FACTS)
    assert refused.value.code == "invalid"


@pytest.mark.parametrize(
    "name",
    [
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "NVIDIA_VISIBLE_DEVICES"),
        *("CUDA_VISIBLE_DEVICES", "DOCKER_HOST", "tf_config", "TF_A B", "", "BASH_ENV", "ENV"),
    ],
)
def test_variables_that_a_job_may_not_set(name: str) -> None:
    assert not policy.environment_allowed(name)


@pytest.mark.parametrize("name", ["TF_CONFIG", "NCCL_IB_TIMEOUT", "MASTER_ADDR", "RANK"])
def test_variables_of_launchers_and_frameworks(name: str) -> None:
    assert policy.environment_allowed(name)


def test_an_endpoint_that_is_not_served() -> None:
    with pytest.raises(AgentError) as refused:
        policy.check(replace(GOOD, endpoint="gpu9"), SERVED, FACTS)
    assert refused.value.code == "not_found"


CHECKPOINT = RankCheckpoint(
    folder="red.0123abcd",
    ranks=2,
    rule="marker: done",
    where=Where.MEMORY,
    size_bytes=1 << 30,
    key=b"\xaaK" * 16,
    resumed=Key(10, 6),
)


def test_a_rank_with_checkpoints_passes() -> None:
    policy.check(replace(GOOD, checkpoint=CHECKPOINT), SERVED, FACTS)
    policy.check(replace(GOOD, checkpoint=replace(CHECKPOINT, resumed=None)), SERVED, FACTS)
    on_disk = replace(CHECKPOINT, where=Where.DISK, size_bytes=1 << 50)
    policy.check(replace(GOOD, checkpoint=on_disk), SERVED, FACTS)


@pytest.mark.parametrize(
    "bad",
    [
        replace(CHECKPOINT, folder=""),
        replace(CHECKPOINT, folder="red"),
        replace(CHECKPOINT, folder="../red.0123abcd"),
        replace(CHECKPOINT, folder="red.0123abcd\n"),
        replace(CHECKPOINT, folder="red.0123ABCD"),
        replace(CHECKPOINT, ranks=0),
        replace(CHECKPOINT, ranks=65_537),
        replace(CHECKPOINT, rule=""),
        replace(CHECKPOINT, rule="marker: a/b"),
        replace(CHECKPOINT, rule="dcp: x"),
        replace(CHECKPOINT, size_bytes=0),
        replace(CHECKPOINT, size_bytes=(16 << 30) + 1),
        replace(CHECKPOINT, where=Where.DISK, size_bytes=2**53 + 1),
        replace(CHECKPOINT, key=b""),
        replace(CHECKPOINT, key=CHECKPOINT.key[1:]),
        replace(CHECKPOINT, key=CHECKPOINT.key + b"\0"),
        replace(CHECKPOINT, resumed=Key(2**63, 1)),
        replace(CHECKPOINT, resumed=Key(1, 2**63)),
    ],
)
def test_checkpoints_that_cannot_be_are_refused(bad: RankCheckpoint) -> None:
    with pytest.raises(AgentError) as refused:
        policy.check(replace(GOOD, checkpoint=bad), SERVED, FACTS)
    assert refused.value.code == "invalid"
    assert "xaaK" not in repr(refused.value)


def test_a_rank_is_one_of_those_that_have_checkpoints() -> None:
    third = replace(GOOD, key=RankKey("red", 2, 7), checkpoint=CHECKPOINT)
    with pytest.raises(AgentError) as refused:
        policy.check(third, SERVED, FACTS)
    assert "rank 2" in str(refused.value)


def test_the_key_of_checkpoints_is_in_no_text_of_a_rank() -> None:
    spec = replace(GOOD, checkpoint=CHECKPOINT)
    for text in (repr(spec), repr(spec.labels("srv0", 1)), spec.digest()):
        assert "xaaK" not in text
        assert CHECKPOINT.key.hex() not in text


def test_another_endpoints_nic_or_gpu() -> None:
    for bad in (
        replace(GOOD, nic=replace(GOOD.nic, name="e-gpu1")),
        replace(GOOD, emulated_share=None, devices=(Device(GPU, "GPU-other"),)),
    ):
        with pytest.raises(AgentError):
            policy.check(bad, SERVED, FACTS)


def test_ranks_of_one_call_must_be_distinct() -> None:
    other = replace(
        GOOD,
        key=RankKey("red", 1, 7),
        endpoint="gpu1",
        nic=NicSpec("e-gpu1", "10.77.0.2", 24, "02:77:00:00:00:02"),
    )
    policy.distinct([GOOD, other])
    for bad in (
        replace(other, key=GOOD.key),
        replace(other, endpoint="gpu0"),
        replace(other, nic=replace(other.nic, name="e-gpu0")),
        replace(other, nic=replace(other.nic, ip="10.77.0.1")),
    ):
        with pytest.raises(AgentError):
            policy.distinct([GOOD, bad])


@pytest.mark.parametrize(
    "limits",
    [
        RankLimits(cores=9),
        RankLimits(cores=0),
        RankLimits(memory_bytes=17 << 30),
        RankLimits(memory_bytes=4096),
        RankLimits(pids=0),
        RankLimits(pids=100_000),
        RankLimits(read_bps=1),
        RankLimits(write_bps=10_000_000),  # the server has no disk to limit
    ],
)
def test_limits_beyond_the_server_are_refused(limits: RankLimits) -> None:
    with pytest.raises(AgentError) as refused:
        policy.check(replace(GOOD, limits=limits), SERVED, FACTS)
    assert refused.value.code == "invalid"


def test_limits_within_the_server_pass() -> None:
    limits = RankLimits(cores=8, memory_bytes=16 << 30, pids=10, read_bps=10_000_000)
    policy.check(replace(GOOD, limits=limits), SERVED, FACTS, disk="/dev/sda")


@pytest.mark.parametrize("dscp", [-1, 64])
def test_an_invalid_dscp(dscp: int) -> None:
    with pytest.raises(AgentError):
        policy.check(replace(GOOD, nic=replace(GOOD.nic, dscp=dscp)), SERVED, FACTS)


ID = "sha256:" + "a" * 64


@pytest.mark.parametrize("image", [ID, f"registry.example/x@{ID}", f"x:1@{ID}"])
def test_an_image_by_digest_passes_everywhere(image: str) -> None:
    policy.check(replace(GOOD, image=image), SERVED, FACTS, digest_only=True)


@pytest.mark.parametrize("image", ["x:latest", "x", "sha256:abc", f"{ID}x", "sha256/x:1"])
def test_a_tag_is_refused_where_digests_are_required(image: str) -> None:
    with pytest.raises(AgentError) as refused:
        policy.check(replace(GOOD, image=image), SERVED, FACTS, digest_only=True)
    assert refused.value.code == "invalid"


def test_the_search_path_of_measurements_is_allowed_and_no_other() -> None:
    policy.check_env("x", {"PYTHONPATH": "/lightloom"})
    with pytest.raises(AgentError):
        policy.check_env("x", {"PYTHONPATH": "/lightloom:/tmp"})


SHARED = replace(FACTS, rank_memory_bytes=4 << 30)
"""A server of four endpoints."""


@pytest.mark.parametrize(
    ("memory", "checkpoints", "fits"),
    [
        (None, 0, True),
        (4 << 30, 0, True),
        ((4 << 30) + 1, 0, False),
        (None, 3 << 30, True),
        (None, 4 << 30, False),
        (2 << 30, 2 << 30, True),
        (2 << 30, (2 << 30) + 1, False),
    ],
)
def test_a_rank_gets_its_share_of_the_memory_with_its_checkpoints(
    memory: int | None, checkpoints: int, fits: bool
) -> None:
    held = RankCheckpoint(
        folder="red.0123abcd",
        ranks=1,
        rule="rename",
        where=Where.MEMORY,
        size_bytes=checkpoints,
        key=bytes(32),
    )
    spec = replace(
        GOOD,
        limits=RankLimits(memory_bytes=memory),
        checkpoint=held if checkpoints else None,
    )
    try:
        policy.check(spec, None, SHARED)
    except AgentError as error:
        assert (error.code, fits) == ("invalid", False)
    else:
        assert fits
        beside = policy.memory_beside(spec, 4 << 30)
        assert policy.MIN_MEMORY_BYTES <= beside <= (4 << 30) - checkpoints
