"""Which cgroups of Slurm are found, and which directories are not taken for one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from container_mgr.kernel.freezer import Freezer
from container_mgr.scopes import slurm
from container_mgr.scopes.slurm import SlurmGroups
from container_mgr.values import AgentError
from tests.parts.agent.trees import Tree, freezable


@pytest.fixture(params=[1, 2])
def tree(tmp_path: Path, request: pytest.FixtureRequest) -> Tree:
    return Tree(tmp_path, request.param)


def test_all_steps_of_a_job_are_found_and_no_other(tree: Tree) -> None:
    mine = [tree.step(7, name) for name in ("0", "1+2", "batch", "extern", "interactive")]
    other, longer = tree.step(70), tree.step(77)
    assert set(tree.groups().steps("7").freezers) == set(mine)
    assert tree.groups().jobs() == {"7": mine, "70": [other], "77": [longer]}


def test_slurmstepd_is_never_in_what_is_frozen(tree: Tree) -> None:
    """It is in the job's cgroup on v1, and beside the step's user on v2."""
    (one,) = tree.groups().steps("7").freezers if tree.step(7) else ()
    assert one.group.name == ("step_0" if tree.version == 1 else "user")


def test_steps_of_several_slurmd_belong_together(tree: Tree) -> None:
    steps = {tree.step(7, node=node) for node in ("", "n0", "n1")}
    assert set(tree.groups().steps("7").freezers) == steps


def test_of_several_slurmd_those_of_other_servers_are_left_alone(tree: Tree) -> None:
    plain, mine, other = (tree.step(7, node=node) for node in ("", "n0", "n0-1"))
    assert set(tree.groups("n0").steps("7").freezers) == {plain, mine}
    assert other not in tree.groups("n0").jobs()["7"]


def test_a_job_that_is_elsewhere_and_a_server_without_slurm(tree: Tree) -> None:
    assert not tree.groups().steps("7").known
    tree.top("n1")
    assert not tree.groups("n0").steps("7").known
    tree.top()
    assert tree.groups().steps("7").known
    assert tree.groups().steps("7").freezers == ()


def test_a_slice_of_its_own_is_searched_too(tmp_path: Path) -> None:
    user = tmp_path / "hpc.slice" / "hpc-slurm.slice" / "slurmstepd.scope" / "job_7" / "step_0/user"
    user.mkdir(parents=True)
    assert SlurmGroups([(2, tmp_path)]).steps("7").freezers == (Freezer(2, user),)


def test_links_and_odd_names_are_not_followed(tree: Tree, tmp_path: Path) -> None:
    step = tree.step(7)
    outside = tmp_path / "outside"
    target = outside if tree.version == 1 else outside / "user"
    target.mkdir(parents=True)
    freezable(target, tree.version)
    job = tree.top() / "job_7"
    for name in ("step_1", "xstep_2", "step_", "step_3\n", "step_" + "9" * 65, "step_ä"):
        (job / name).symlink_to(outside) if name == "step_1" else (job / name).mkdir()
    (tree.top() / "job_8").symlink_to(job)
    (tree.top() / "job_9").write_text("a file")
    for name in ("job_07", "job_", "job_12345678901", "xjob_7"):
        (tree.top() / name / "step_0" / "user").mkdir(parents=True)
    for name in ("slurmx", "slurm_", "slurm_.", "slurm_a b", "slurmstepd.scopex"):
        (tree.root / name / "uid_0" / "job_7" / "step_0").mkdir(parents=True)
    assert tree.groups().steps("7").freezers == (step,)
    assert tree.groups().jobs() == {"7": [step]}
    assert tree.groups().steps("8").freezers == ()


def test_the_number_of_directories_has_a_limit(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "MAX_DIRECTORIES", 6)
    for number in range(3):
        tree.step(7, str(number))
    assert len(tree.groups().steps("7").freezers) == 3
    for number in range(3, 6):
        tree.step(7, str(number))
    for look in (lambda: tree.groups().steps("7"), tree.groups().jobs):
        with pytest.raises(AgentError, match="more than 6"):
            look()


@pytest.mark.parametrize(
    ("title", "cgroup", "found"),
    [
        ("slurmstepd: [7.batch]", "/", True),
        ("slurmstepd: [7.0]", "/system.slice/slurmd.service", True),
        ("slurmstepd: [7]", "/slurm/job_70", True),
        ("slurmstepd: [7.0]", "/slurm_n1/uid_0/job_7", False),
        ("slurmstepd: [7.0]", "/system.slice/slurmstepd.scope/job_7/step_0/slurm", False),
        ("slurmstepd: [70.0]", "/", False),
        ("/usr/sbin/slurmstepd infinity", "/system.slice/slurmstepd.scope/system", False),
        ("xslurmstepd: [7.0]", "/", False),
    ],
)
def test_a_slurmstepd_outside_of_its_jobs_cgroup(
    tree: Tree, title: str, cgroup: str, found: bool
) -> None:
    tree.stepd(42, title, cgroup)
    mine = os.geteuid() == 0  # only root's count
    assert tree.groups().untracked("7") is (found and mine)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a process to another user")
def test_a_users_process_may_call_itself_slurmstepd(tree: Tree) -> None:
    tree.stepd(42, "slurmstepd: [7.0]", "/")
    os.chown(tree.proc / "42", 1000, 1000)
    assert not tree.groups().untracked("7")
