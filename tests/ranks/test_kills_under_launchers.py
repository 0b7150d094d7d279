"""Kills a rank at random moments under mpirun, msrun and srun: each surviving rank raises an error that names it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_cluster import missing, on_nodes, slurm_cluster

from hpmoe.ranks.starting import free_address

FOLDER = Path(__file__).parent
SCRIPT = [sys.executable, str(FOLDER / "kill_script.py"), "1"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The variables of a Slurm cluster of two nodes."""
    if missing():
        pytest.skip(missing())
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as variables:
        yield {**variables, "HPMOE_SECRET": "0123456789abcdef"}


def under_mpirun():
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed: apt-get install openmpi-bin")
    return ["mpirun", "--oversubscribe", "--enable-recovery", "-n", "3", *SCRIPT]


def under_msrun(folder):
    port = free_address().rpartition(":")[2]
    msrun = "from mindspore.parallel.cluster.run import main; main()"
    return [sys.executable, "-c", msrun, "--worker_num=3", "--local_worker_num=3", f"--master_port={port}",
            f"--log_dir={folder}", "--join=True", *SCRIPT[1:]]


def assert_survivors_name_it(command, folder, *, causes=("was killed by SIGKILL",), **variables):
    path = [str(FOLDER), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    env = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, path)),
           "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}  # of msrun's python
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=200, check=False)
    text = done.stdout + "".join(path.read_text() for path in folder.glob("worker_*.log"))
    told = {line for line in text.splitlines() if line.startswith("rank") and " told " in line}  # msrun prints logs again
    assert len(told) == 2, (text, done.stderr)
    assert all(any(f"told rank 1 {cause} during" in line for cause in causes) for line in told), told


@pytest.mark.parametrize("kill", range(10))
def test_survivors_name_the_killed_rank_under_mpirun(kill, tmp_path):
    assert_survivors_name_it(under_mpirun(), tmp_path, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


@pytest.mark.parametrize("kill", range(10))
def test_survivors_name_the_killed_rank_under_msrun(kill, tmp_path):
    assert_survivors_name_it(under_msrun(tmp_path), tmp_path, MS_NODE_TIMEOUT="5")  # seconds until msrun ends


@pytest.mark.parametrize("kill", range(5))
@pytest.mark.parametrize("nodes, plugin", [(1, "none"), (2, "pmi2")])
def test_survivors_name_the_killed_rank_under_srun(nodes, plugin, kill, cluster, tmp_path):
    causes = ["was killed by SIGKILL", "died"][:nodes]  # another host sees no signal
    assert_survivors_name_it(["srun", f"--mpi={plugin}", *on_nodes(nodes, 3, *SCRIPT)], tmp_path, causes=causes, **cluster)
