"""Kills a rank at random moments under mpirun, msrun and srun: each surviving rank raises an error that names it.

test_native_faults.py kills ranks at many more moments, without a launcher.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
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
    with (folder / "output").open("w") as output:
        launcher = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=output, start_new_session=True)
    end = time.monotonic() + 200
    while len(told := lines_of_survivors(folder)) < 2 and launcher.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(launcher.pid, signal.SIGKILL)  # msrun waits a minute for its scheduler
    launcher.wait()
    told = lines_of_survivors(folder)
    assert len(told) == 2, (folder / "output").read_text()
    assert all(any(f"told rank 1 {cause} during" in line for cause in causes) for line in told), told


def lines_of_survivors(folder):
    text = "".join(path.read_text() for path in [folder / "output", *folder.glob("worker_*.log")])
    return {line for line in text.splitlines() if line.startswith("rank") and " told " in line}  # msrun prints logs again


@pytest.mark.parametrize("kill", range(3))
def test_survivors_name_the_killed_rank_under_mpirun(kill, tmp_path):
    assert_survivors_name_it(under_mpirun(), tmp_path, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


@pytest.mark.parametrize("kill", range(3))
def test_survivors_name_the_killed_rank_under_msrun(kill, tmp_path):
    assert_survivors_name_it(under_msrun(tmp_path), tmp_path, MS_NODE_TIMEOUT="5")  # seconds until msrun ends


def starts(command, cluster):
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, env={**os.environ, **cluster}, capture_output=True, timeout=60, check=False)
        return done.returncode == 0
    return False


@pytest.mark.parametrize("kill", range(2))
@pytest.mark.parametrize("nodes, plugin", [(1, "none"), (2, "pmi2"), (1, "pmix")])
def test_survivors_name_the_killed_rank_under_srun(nodes, plugin, kill, cluster, tmp_path):
    if not starts(["srun", f"--mpi={plugin}", *on_nodes(nodes, nodes, "true")], cluster):
        pytest.skip(f"srun starts nothing with --mpi={plugin}: apt-get install libpmix-dev")
    causes = ["was killed by SIGKILL", "died"][:nodes]  # another host sees no signal
    command = ["srun", f"--mpi={plugin}", *on_nodes(nodes, 3, *SCRIPT)]
    try:
        assert_survivors_name_it(command, tmp_path, causes=causes, **cluster)
    finally:  # the job of a killed srun keeps its cores
        subprocess.run(["scancel", "--me"], env={**os.environ, **cluster}, timeout=60, check=True)
