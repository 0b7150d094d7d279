"""A process finds the launcher that started it, and processes of one run find the same run name."""

import os
import subprocess
import sys

import pytest
from fake_srun import variables

from hpmoe.ranks.launchers import find_fault, find_launched, is_scheduler

RUN = {"MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": "8118"}
TORCH = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
STARTED = {
    "torchrun": {**TORCH, "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"},
    "torchrun, or who sets its variables": TORCH,
    "hpmoe launch": {"RANK": "3", "WORLD_SIZE": "4", "HPMOE_SECRET": "00"},
    "msrun": {"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "4", "RANK_ID": "3", **RUN},
    "msrun, with a rank table": {"RANK_ID": "3", "RANK_SIZE": "4"},
    "mpirun": {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"},
    "mpirun, MPICH's": {"PMI_RANK": "3", "PMI_SIZE": "4"},
    "srun": {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7",
             "SLURM_STEP_ID": "0"},
}
HOSTS = {**STARTED["srun"], "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "node[07-08]"}
ALONE = {
    "nobody": {},
    "msrun of one": {"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "1", "RANK_ID": "0", **RUN},
    "mpirun of one": {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
    "a Slurm allocation of many tasks": {"SLURM_NTASKS": "16", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"},
    "an srun of one there": {"SLURM_NTASKS": "16", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_JOB_ID": "7",
                             "SLURM_STEP_ID": "0"},
    "a variable that somebody exports": {"MS_WORKER_NUM": "8", "RANK_SIZE": "8", "PMI_SIZE": "8", "WORLD_SIZE": "8"},
    "torchrun without an address": {"RANK": "3", "WORLD_SIZE": "4"},
    "what is no number": {"RANK_ID": "0", "RANK_SIZE": "many", "PMI_RANK": "", "PMI_SIZE": ""},
    "hpmoe launch -n 1 in a step": {"RANK": "0", "WORLD_SIZE": "1", "HPMOE_LAUNCHER": "00", **STARTED["srun"]},
    "a rank too many": {"PMI_RANK": "4", "PMI_SIZE": "4"},
}


@pytest.mark.parametrize("launcher", STARTED)
def test_a_process_of_several_knows_its_rank(launcher):
    found = find_launched(STARTED[launcher])
    assert (found.launcher, found.rank, found.size) == (launcher.partition(",")[0], 3, 4)


@pytest.mark.parametrize("launcher", ALONE)
def test_a_process_on_its_own_is_none_of_several(launcher):
    assert find_launched(ALONE[launcher]) is None


def test_hpmoe_launch_comes_first():
    assert find_launched({**STARTED["srun"], **STARTED["hpmoe launch"], "RANK": "1"}).rank == 1


@pytest.mark.parametrize("tasks, launcher", [("4", "srun"), ("2", "mpirun")])
def test_slurm_comes_before_pmi_in_a_step_of_as_many_tasks(tasks, launcher):
    """srun --mpi=pmi2 sets PMI_RANK; mpirun starts a daemon on each host with srun."""
    told = {**HOSTS, **STARTED["mpirun, MPICH's"], "SLURM_STEP_NUM_TASKS": tasks}
    found = find_launched({**told, "SLURM_PROCID": "3" if tasks == "4" else "1"})
    assert (found.launcher, found.rank, found.size, bool(found.rendezvous)) == (launcher, 3, 4, launcher == "srun")


def test_a_restart_of_torchrun_is_another_run():
    told = STARTED["torchrun"]
    assert find_launched(told).run != find_launched({**told, "TORCHELASTIC_RESTART_COUNT": "1"}).run
    assert find_launched({**told, "HPMOE_LAUNCHER": "00"}).launcher == "hpmoe launch"


LARGER = "{} are of a world of {} ranks, and this process would be a world of {}: start the script with one of hpmoe "
HOSTS_OF = "{} started {} ranks on several hosts ({}), and HPMOE_RENDEZVOUS is missing: set HPMOE_RENDEZVOUS=ADDRESS:PORT"


@pytest.mark.parametrize("told, fault", [
    ({"RANK": "3", "WORLD_SIZE": "4"}, LARGER.format("RANK=3 and WORLD_SIZE=4", 4, 1)),
    ({"PMI_RANK": "4", "PMI_SIZE": "4"}, LARGER.format("PMI_RANK=4 and PMI_SIZE=4", 4, 1)),
    ({**STARTED["msrun"], "RANK": "3", "WORLD_SIZE": "8"}, LARGER.format("RANK=3 and WORLD_SIZE=8", 8, 4)),
    ({**TORCH, "LOCAL_WORLD_SIZE": "2"}, HOSTS_OF.format("torchrun", 4, "LOCAL_WORLD_SIZE=2")),
    ({**STARTED["mpirun"], "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
     HOSTS_OF.format("mpirun", 4, "OMPI_COMM_WORLD_LOCAL_SIZE=2")),
    ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "1"},
     HOSTS_OF.format("torchrun", 2, "LOCAL_WORLD_SIZE=missing")),
])
def test_variables_that_cannot_be_are_listed(told, fault):
    assert find_fault(told).startswith(fault), find_fault(told)


def test_variables_of_a_launcher_are_no_fault():
    for told in (*STARTED.values(), *ALONE.values()):
        assert find_fault(told) == "" or "4 ranks, and this process would be a world of 1" in find_fault(told)
    for told in STARTED.values():
        assert find_fault(told) == "" == find_fault({**told, "HPMOE_LAUNCHER": "00", "RANK": "0", "WORLD_SIZE": "2"})
    assert find_fault({**TORCH, "LOCAL_WORLD_SIZE": "2", "HPMOE_RENDEZVOUS": "10.0.0.1:80"}) == ""


def test_a_step_on_several_hosts_uses_the_first_and_its_own_port():
    ports = {}
    for step in ("0", "1"):
        found = find_launched({**HOSTS, "SLURM_STEP_ID": step, "HPMOE_SECRET": "x" * 16})
        host, _, ports[step] = found.rendezvous.partition(":")
        assert host == "node07" and 20_000 <= int(ports[step]) < 30_000
    assert ports["0"] != ports["1"]
    assert find_launched({**HOSTS, "HPMOE_RENDEZVOUS": "10.0.0.1:80"}).rendezvous == "10.0.0.1:80"
    assert find_launched({**HOSTS, "SLURM_STEP_NUM_NODES": "1"}).rendezvous == ""
    one, other = (find_launched({**HOSTS, "HPMOE_SECRET": secret * 16}).run for secret in "ab")
    assert one != other


def test_the_tasks_of_a_step_are_ranks():
    for nodes, tasks in ((1, 3), (2, 3), (3, 8)):
        told = [variables(nodes, tasks, task) for task in range(tasks)]
        found = [find_launched(mine) for mine in told]
        assert [(f.launcher, f.rank, f.size) for f in found] == [("srun", task, tasks) for task in range(tasks)]
        assert len({f.rendezvous for f in found}) == len({f.run for f in found}) == 1
        assert {f.rendezvous.partition(":")[0] for f in found} == {"127.0.0.1" if nodes > 1 else ""}


def test_the_scheduler_of_msrun_is_told_from_ranks():
    assert is_scheduler({"MS_ROLE": "MS_SCHED"}) and not is_scheduler(STARTED["msrun"]) and not is_scheduler({})


def test_another_secret_port_or_job_is_another_run():
    changed = {"hpmoe launch": ("HPMOE_SECRET", "01"), "msrun": ("MS_SCHED_PORT", "8119"), "srun": ("SLURM_STEP_ID", "1")}
    for launcher, (name, value) in changed.items():
        told = STARTED[launcher]
        assert find_launched(told).run == find_launched(dict(told)).run != find_launched({**told, name: value}).run


def test_only_processes_of_one_launcher_share_a_run():
    """The launcher here is a shell, which says nothing of itself; the second rank stands behind a shell of its own."""
    code = ("import sys; sys.path.insert(0, sys.argv[1]); import launchers; "
            "print(launchers.find_launched().run.hex())")
    folder = os.path.dirname(sys.modules[find_launched.__module__].__file__)
    rank = f"{sys.executable} -S -c '{code}' {folder}"
    script = f"export PMI_SIZE=2; PMI_RANK=0 {rank}; PMI_RANK=1 sh -c \"{rank}; true\""
    runs = [subprocess.run(["sh", "-c", script + "; true"], capture_output=True, text=True, check=True).stdout.split()
            for _ in range(2)]
    assert len({*runs[0]}) == len({*runs[1]}) == 1 and len(runs[0]) == 2 and runs[0][0] != runs[1][0]
