"""Starts a command as the tasks of a Slurm step, with the variables that srun sets: fake_srun.py NODES TASKS COMMAND...

Tasks are numbered node by node, as `srun --distribution=block` does. A host of a step has a network and shared memory of its
own: HPMOE_NODE has those of one computer do without them. The exit status is that of the task that failed first by number.
"""

import os
import subprocess
import sys


def variables(nodes, tasks, task, job="4711", step="3"):
    """Those of a task of a step; see OUTPUT ENVIRONMENT VARIABLES of srun(1)."""
    sizes = [tasks // nodes + (n < tasks % nodes) for n in range(nodes)]
    of_tasks = [(node, local) for node, size in enumerate(sizes) for local in range(size)]
    node, local = of_tasks[task]
    names = f"127.0.0.[1-{nodes}]" if nodes > 1 else "127.0.0.1"
    per_node = ",".join(map(str, sizes))
    return {
        "SLURM_JOB_ID": job, "SLURM_JOBID": job, "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_NNODES": str(nodes),
        "SLURM_JOB_NODELIST": names, "SLURM_NODELIST": names, "SLURM_TASKS_PER_NODE": per_node,
        "SLURM_STEP_ID": step, "SLURM_STEPID": step, "SLURM_STEP_NUM_NODES": str(nodes), "SLURM_STEP_NODELIST": names,
        "SLURM_STEP_NUM_TASKS": str(tasks), "SLURM_STEP_TASKS_PER_NODE": per_node, "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks), "SLURM_PROCID": str(task), "SLURM_LOCALID": str(local), "SLURM_NODEID": str(node),
        "SLURMD_NODENAME": f"127.0.0.{node + 1}", "SLURM_SRUN_COMM_HOST": "127.0.0.1",
    }


def main(nodes, tasks, *command):
    nodes, tasks = int(nodes), int(tasks)
    job = str(os.getpid())
    here = {} if nodes == 1 else {"HPMOE_NODE": ""}
    started = []
    for task in range(tasks):
        of_task = variables(nodes, tasks, task, job)
        own = {name: of_task["SLURM_NODEID"] for name in here}
        started.append(subprocess.Popen(command, env={**os.environ, **of_task, **own}))
    statuses = [process.wait() for process in started]
    return next((status for status in statuses if status), 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
