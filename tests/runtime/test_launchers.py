"""Processes that a launcher started: ranks are threads of one, so that several would each compute all of them."""

import numpy as np
import pytest
from helpers import stages
from mindspore import Tensor

from hpmoe import ArgumentError, Mesh, spmd
from hpmoe.support.launchers import launched_processes

STARTED = {
    "msrun": {"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "4"},
    "mpirun": {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"},
    "mpirun of MPICH": {"PMI_RANK": "0", "PMI_SIZE": "4"},
    "msrun with a rank table": {"RANK_ID": "1", "RANK_SIZE": "4"},
    "srun": {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"},
}
ALONE = {
    "nobody": {},
    "msrun of one": {"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "1"},
    "mpirun of one": {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
    "a Slurm allocation of many tasks": {"SLURM_NTASKS": "16", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"},
    "an srun of one there": {"SLURM_NTASKS": "16", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
    "a variable that somebody exports": {"MS_WORKER_NUM": "8", "RANK_SIZE": "8", "PMI_SIZE": "8"},
    "what is no number": {"RANK_ID": "0", "RANK_SIZE": "many", "PMI_RANK": "", "PMI_SIZE": ""},
}


@pytest.mark.parametrize("launcher", STARTED)
@pytest.mark.parametrize("stage", ["plain", "tiles", "fused"])
def test_no_process_of_several_computes_all_ranks(monkeypatch, launcher, stage):
    f, x = stages()[stage](lambda x: x * 2.0), Tensor(np.ones((2, 4, 3), np.float32))
    for name, value in STARTED[launcher].items():
        monkeypatch.setenv(name, value)
    name = launcher.partition(" ")[0]
    what = f"spmd: the number of processes that {name} started is 4; it must be 1: ranks are threads of one process"
    with pytest.raises(ArgumentError, match=what):
        spmd(f, Mesh(2))(x)
    assert (spmd(f, Mesh(1))(x[:1]).asnumpy() == 2.0).all()  # each its own data


@pytest.mark.parametrize("launcher", ALONE)
def test_a_process_on_its_own_computes_them(monkeypatch, launcher):
    for name, value in ALONE[launcher].items():
        monkeypatch.setenv(name, value)
    assert launched_processes() is None
    assert (spmd(lambda x: x * 2.0, Mesh(2))(Tensor(np.ones((2, 4, 3), np.float32))).asnumpy() == 2.0).all()
