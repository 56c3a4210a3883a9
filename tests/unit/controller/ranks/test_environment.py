"""The environment of a rank, and the variables that a job may not set."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from agentlink.values import RankLimits
from container_mgr.ranks.policy import environment_allowed
from controller.base.errors import ServiceError
from controller.devices.aggregators import ROCE_DSCP
from controller.jobs.admission import spec_of
from controller.ranks.environment import ADJUSTABLE, OWNED, environment, refusals
from controller.ranks.nccl import Network, ib_timeout
from controller.ranks.specs import network, rank_specs
from controller.ranks.tolerance import IB_MARGIN, awake_tolerance, ib_budget_s
from controller.schema.jobs import read_job
from controller.schema.submit.request import JobRequest
from controller.state.records import JobRecord
from sitefile import Fiber, Port, load_site
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER

ADDRESSES = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


def of(rank: int, own: dict[str, str] | None = None, **more: object) -> dict[str, str]:
    given = {"dark_s": 4.0, "network": Network(), **more}
    return environment("red", rank, ADDRESSES, own or {}, **given)  # type: ignore[arg-type]


def test_tensorflow_gets_its_ring_in_rank_order() -> None:
    assert json.loads(of(1)["TF_CONFIG"]) == {
        "cluster": {"worker": ["10.0.0.1:12345", "10.0.0.2:12345", "10.0.0.3:12345"]},
        "task": {"type": "worker", "index": 1},
    }


def test_torch_gets_its_rank_with_and_without_its_launcher() -> None:
    env = of(2)
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"]) == ("2", "3", "0")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.1", "29500")
    assert (env["PET_NODE_RANK"], env["PET_NNODES"], env["PET_NPROC_PER_NODE"]) == ("2", "3", "1")
    assert (env["PET_MASTER_ADDR"], env["PET_MASTER_PORT"]) == ("10.0.0.1", "29500")


def test_all_ranks_name_one_master_and_each_is_its_own_host() -> None:
    all_ = [of(rank) for rank in range(3)]
    assert {env["MASTER_ADDR"] for env in all_} == {"10.0.0.1"}
    assert [env["NCCL_HOSTID"] for env in all_] == ["red-0", "red-1", "red-2"]


def test_nccl_gets_the_only_nic() -> None:
    stand_in = of(0, network=Network(rdma=""))
    assert stand_in["NCCL_SOCKET_IFNAME"] == "=e0"
    assert stand_in["GLOO_SOCKET_IFNAME"] == "e0"
    assert stand_in["NCCL_IB_DISABLE"] == "1"
    real = of(0, network=Network(rdma="mlx5_3", gid_index=5))
    assert (real["NCCL_IB_HCA"], real["NCCL_IB_GID_INDEX"]) == ("=mlx5_3", "5")
    assert "NCCL_IB_DISABLE" not in real
    unknown = of(0)
    assert not {"NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX"} & unknown.keys()
    for env in (stand_in, real, unknown):
        assert (env["NCCL_IB_ADDR_FAMILY"], env["NCCL_IB_ROCE_VERSION_NUM"]) == ("AF_INET", "2")
        assert int(env["NCCL_IB_TC"]) >> 2 == ROCE_DSCP


@pytest.mark.parametrize(
    ("dark_s", "exponent"),
    [(0.0, 18), (0.22, 18), (1.8, 18), (1.9, 19), (4.0, 20), (7.5, 20), (7.6, 21), (30, 22)],
)
def test_the_time_out_follows_the_dark_time(dark_s: float, exponent: int) -> None:
    assert ib_timeout(dark_s) == exponent
    assert 4.096e-6 * 2**exponent * 7 >= 4 * dark_s


def test_the_time_out_stays_inside_its_five_bits() -> None:
    assert ib_timeout(1e9) == 31
    assert ib_timeout(-1.0) == 18


@pytest.mark.parametrize("retries", range(1, 8))
@pytest.mark.parametrize("dark_s", [0.1, 0.5, 4.0, 20.0])
def test_fewer_retries_get_a_longer_time_out(retries: int, dark_s: float) -> None:
    env = of(0, {"NCCL_IB_RETRY_CNT": str(retries)}, dark_s=dark_s)
    budget = ib_budget_s(env)
    assert env["NCCL_IB_RETRY_CNT"] == str(retries)
    assert budget is not None
    assert budget >= IB_MARGIN * dark_s


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"dark_tolerance_s": 0.2},
        {"dark_tolerance_s": 12.0},
        {"env": {"NCCL_IB_RETRY_CNT": "3"}},
        {"env": {"NCCL_IB_TIMEOUT": "19"}},
    ],
)
def test_a_job_tolerates_the_dark_time_its_moves_are_planned_for(
    request_: dict[str, object],
) -> None:
    """The environment makes NCCL tolerate what the tolerance promises to a plan."""
    asked = read_job({"name": "red", "count": 2, **request_})
    job = JobRecord("red", spec_of(asked), "image", 0.0, endpoints=("gpu0", "gpu2"))
    site = load_site(PAPER)
    cables = {cable.name: cable for cable in site.endpoints}
    for spec in rank_specs(site, cables, job):
        budget = ib_budget_s(spec.env)
        assert budget is not None
        assert budget >= IB_MARGIN * awake_tolerance(job)[0]
        assert spec.env["NCCL_IB_DISABLE"] == "1", "the emulated GPU has no RDMA device"


def test_the_agent_accepts_every_variable() -> None:
    names = of(0, network=Network(rdma="mlx5_0", gid_index=3)).keys()
    assert [name for name in names if not environment_allowed(name)] == []


@pytest.mark.parametrize("name", sorted(OWNED))
def test_a_job_may_not_set_what_follows_from_its_ranks(name: str) -> None:
    (refusal,) = refusals({name: "1"})
    assert refusal.name == name
    assert refusal.reason
    assert refusal.fix
    assert of(0, {name: "mine"}).get(name) != "mine"


def test_lightlooms_own_names_are_refused() -> None:
    assert refusals({"LIGHTLOOM_ANYTHING": "1"})
    assert of(0, {"LIGHTLOOM_RANK": "9"})["LIGHTLOOM_RANK"] == "0"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MASTER_PORT", "80"),
        ("MASTER_PORT", "70000"),
        ("MASTER_PORT", "٢٩٥٠٠"),
        ("MASTER_PORT", "9" * 5000),
        ("NCCL_IB_TIMEOUT", "0"),
        ("NCCL_IB_TIMEOUT", "32"),
        ("NCCL_IB_TIMEOUT", "long"),
        ("NCCL_IB_RETRY_CNT", "8"),
        ("NCCL_IB_RETRY_CNT", "-1"),
    ],
)
def test_invalid_values_are_refused_and_never_used(name: str, value: str) -> None:
    (refusal,) = refusals({name: value})
    assert refusal.name == name
    assert of(0, {name: value})[name] == of(0)[name]


def test_a_job_gets_the_values_it_may_choose() -> None:
    chosen = {"MASTER_PORT": "4000", "NCCL_IB_TIMEOUT": "21", "NCCL_ALGO": "Tree", "SEED": "7"}
    assert refusals(chosen) == []
    env = of(0, chosen)
    assert {name: env[name] for name in chosen} == chosen
    assert env["PET_MASTER_PORT"] == "4000"
    assert {"MASTER_PORT", "NCCL_IB_TIMEOUT", "NCCL_ALGO"} <= ADJUSTABLE.keys()


def test_a_time_out_that_contradicts_the_stated_dark_time_is_refused() -> None:
    (refusal,) = refusals({"NCCL_IB_TIMEOUT": "14"}, dark_s=2.0)
    assert "0.47 s" in refusal.reason
    assert refusals({"NCCL_IB_TIMEOUT": "19"}, dark_s=2.0) == []
    assert refusals({"NCCL_IB_TIMEOUT": "14"}) == [], "its moves are checked against its own figure"


async def test_a_job_with_a_refused_variable_is_not_queued(rack: Rack) -> None:
    request = JobRequest(name="red", count=2, env={"RANK": "0", "NCCL_IB_TIMEOUT": "99"})
    with pytest.raises(ServiceError) as caught:
        await rack.desks.jobs.submit(request)
    assert caught.value.code == "invalid"
    assert "RANK" in caught.value.message
    assert "NCCL_IB_TIMEOUT" in caught.value.message
    assert "leave it out" in caught.value.hint
    assert await rack.desks.jobs.jobs() == []


async def test_memory_that_no_endpoint_has_is_refused(rack: Rack) -> None:
    with pytest.raises(ServiceError) as caught:
        await rack.desks.jobs.submit(JobRequest(name="red", count=1, min_memory_bytes=13 * 2**30))
    assert "13 GiB" in caught.value.message
    job = await rack.desks.jobs.submit(JobRequest(name="red", count=1, min_memory_bytes=12 * 2**30))
    assert job.state == "pending"


def test_limits_reach_every_rank() -> None:
    asked = JobRequest(name="red", count=2, cpu=1.5, memory_bytes=2**30, io_bps=5_000_000)
    job = JobRecord("red", spec_of(asked), "image", 0.0, endpoints=("gpu0", "gpu2"))
    site = load_site(PAPER)
    for spec in rank_specs(site, {cable.name: cable for cable in site.endpoints}, job):
        assert spec.limits == RankLimits(1.5, 2**30, None, 5_000_000, 5_000_000)


def test_a_rank_has_a_nic_for_every_fiber_of_its_endpoint() -> None:
    job = JobRecord(
        "red", spec_of(JobRequest(name="red", count=1)), "image", 0.0, endpoints=("gpu0",)
    )
    cable = load_site(PAPER).endpoint("gpu0")
    two = replace(
        cable, fibers=(*cable.fibers, Fiber("e-b", "02:00:00:00:00:0b", Port("ocs0", "9")))
    )
    first, more = (rank_specs(load_site(PAPER), {"gpu0": c}, job)[0] for c in (cable, two))
    assert first.further_nics == ()
    assert more.nic == first.nic
    assert more.further_nics == (replace(first.nic, name="e-b", mac="02:00:00:00:00:0b"),)


def test_the_traffic_class_comes_from_the_site() -> None:
    assert of(0, network=Network(dscp=46))["NCCL_IB_TC"] == "184"
    site = replace(load_site(PAPER), dscp=46)
    assert network(site, site.endpoints[0]).dscp == 46


def test_the_formula_is_the_documented_one() -> None:
    for dark_s in (3.0, 10.0, 100.0):
        assert ib_timeout(dark_s) == math.ceil(math.log2(4 * dark_s / (4.096e-6 * 7)))
