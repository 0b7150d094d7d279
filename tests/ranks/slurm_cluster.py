"""A Slurm cluster of two nodes on this computer, from Debian's packages slurm-wlm and munge."""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time

from hpmoe.ranks.starting import free_address

DAEMONS = "munged", "slurmctld", "slurmd", "srun"
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
NodeName=127.0.0.1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[0]} CPUs={cpus} State=UNKNOWN
NodeName=127.0.0.2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def missing():
    """Returns why no cluster can be started here, or None."""
    absent = [name for name in DAEMONS if find(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "slurmd must be started by root"


def find(name):
    return shutil.which(name, path=os.pathsep.join([os.environ["PATH"], "/usr/sbin"]))


def on_nodes(nodes, tasks, *command):
    """Returns the options and the command of an srun; nodes have a network and shared memory of their own."""
    return ["--kill-on-bad-exit=0", "--overcommit", f"--nodelist=127.0.0.[1-{nodes}]", "-n", str(tasks),
            "--distribution=block",
            *(["bash", "-c", 'HPMOE_NODE=$SLURM_NODEID exec "$@"', "bash"] if nodes > 1 else []), *command]


def free_port():
    return free_address().rpartition(":")[2]


@contextlib.contextmanager
def slurm_cluster(folder):
    """Starts the daemons of a cluster, with their files in `folder`; yields the variables that srun needs."""
    for name in "munge", "state":
        (folder / name).mkdir(mode=0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    configuration = folder / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(
        host=socket.gethostname().partition(".")[0], port=free_port(), ports=[free_port(), free_port()],
        user=getpass.getuser(), folder=folder, cpus=os.cpu_count()))
    (folder / "mpi.conf").write_text(f"PMIxCliTmpDirBase={folder}\n")  # jobs of another cluster have the same numbers
    munge = [f"--{option}={folder}/munge/{option}" for option in ("socket", "pid-file", "log-file", "seed-file")]
    with contextlib.ExitStack() as daemons:
        def start(name, *arguments):
            with (folder / f"{name}.log").open("ab") as log:
                daemon = subprocess.Popen([find(name), *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                          env=env)
            daemons.callback(daemon.wait)
            daemons.callback(daemon.terminate)

        env = {**os.environ, "SLURM_CONF": str(configuration)}
        start("munged", "--force", "--foreground", f"--key-file={key}", *munge)
        start("slurmctld", "-D")
        for node in "127.0.0.1", "127.0.0.2":
            start("slurmd", "-D", "-N", node)
        await_nodes(folder, env)
        yield {"SLURM_CONF": str(configuration)}


def await_nodes(folder, env):
    """Waits until a step on both nodes runs."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(subprocess.TimeoutExpired):
            if subprocess.run(["srun", "-N", "2", "-n", "2", "true"], env=env, capture_output=True, timeout=20,
                              check=False).returncode == 0:
                return
        time.sleep(0.5)
    raise TimeoutError("".join(path.read_text() for path in sorted(folder.glob("*.log"))))
