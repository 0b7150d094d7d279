"""Kills a rank at random moments under mpirun, msrun and srun: each surviving rank raises an error that names it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpmoe.ranks.starting import free_address

FOLDER = Path(__file__).parent
SCRIPT = [sys.executable, str(FOLDER / "kill_script.py"), "1"]
pytestmark = pytest.mark.slow


def under_mpirun():
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed: apt-get install openmpi-bin")
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        os.environ[name] = "1"
    return ["mpirun", "--oversubscribe", "--enable-recovery", "-n", "3", *SCRIPT]


def under_srun(plugin):
    """Returns the srun command; skips the test without a Slurm cluster, which may consist of only this computer."""
    if shutil.which("srun") is None:
        pytest.skip("srun is not installed: apt-get install slurm-wlm munge, and start munged, slurmctld and slurmd")
    command = ["srun", f"--mpi={plugin}", "--overcommit", "-n", "3"]
    try:
        tried = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("srun waits for a cluster")
    if tried.returncode:
        pytest.skip(f"srun has no cluster with --mpi={plugin}: {tried.stderr.splitlines()[:1]}")
    return [*command, *SCRIPT]


def under_msrun(folder):
    port = free_address().rpartition(":")[2]
    msrun = "from mindspore.parallel.cluster.run import main; main()"
    return [sys.executable, "-c", msrun, "--worker_num=3", "--local_worker_num=3", f"--master_port={port}",
            f"--log_dir={folder}", "--join=True", *SCRIPT[1:]]


@pytest.mark.parametrize("kill", range(10))
@pytest.mark.parametrize("launcher", ["mpirun", "msrun", "srun none", "srun pmi2"])
def test_survivors_name_the_killed_rank(launcher, kill, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))  # of msrun's python
    monkeypatch.setenv("MS_NODE_TIMEOUT", "5")  # seconds after which msrun ends for a lost worker
    name, *plugin = launcher.split()
    command = under_mpirun() if name == "mpirun" else under_msrun(tmp_path) if name == "msrun" else under_srun(*plugin)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    text = done.stdout + "".join(path.read_text() for path in tmp_path.glob("worker_*.log"))
    told = {line for line in text.splitlines() if line.startswith("rank") and " told " in line}  # msrun prints logs again
    assert len(told) == 2, (text, done.stderr)
    assert all("told rank 1 was killed by SIGKILL during" in line for line in told), told
