"""Scripts as several processes: the numbers of virtual ranks, groups, launchers, and what survivors are told."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from forked import start_forked
from running_time import running_clock

import hpmoe
from hpmoe.ranks.starting import Hosts, free_address, start_ranks

FOLDER = Path(__file__).parent
SCRIPT, FAULTS = (str(FOLDER / name) for name in ("ranks_script.py", "fault_script.py"))


@pytest.fixture
def launch(tmp_path, monkeypatch, capfd):
    """Returns a function that runs a script on ranks, forked or started: exit status, stdout lines, stderr."""
    monkeypatch.chdir(tmp_path)  # MindSpore writes there what it knows of graphs

    def launched(size, *command, forked=True):
        if forked:
            status, out, err = start_forked(command, size)
        else:
            status = start_ranks([sys.executable, *command], size)
            out, err = capfd.readouterr()
        return status, sorted(line for line in out.splitlines() if "WARNING" not in line), err

    with running_clock(monkeypatch):
        yield launched


def test_not_launched_it_is_one_rank():
    mesh = hpmoe.world()
    assert (mesh.rank, mesh.size, mesh.ep, mesh.ep_rank, mesh.report()) == (0, 1, 1, 0, "1 rank")
    assert isinstance(mesh, hpmoe.Mesh)


@pytest.mark.slow
@pytest.mark.parametrize("size, ranks, bad", [
    (4, "2", "ids"), (4, "4", "shape"), (3, "1", "ids"), (4, "2x2", "ids"), (4, "1x2", "ids")])
def test_groups_of_processes_have_the_numbers_of_virtual_ranks(launch, size, ranks, bad):
    status, lines, err = launch(size, SCRIPT, ranks, bad)
    assert (status, [line for line in lines if line.endswith("ok")]) == (
        0, [f"rank {rank} of {size} ok" for rank in range(size)]), err
    if bad == "shape":
        reason = "rank 3 failed: a call of moe_ffn: ArgumentError: hpmoe.dispatch: hidden_states"
        assert [reason in line for line in lines if "Error" in line] == [True, True, True, False], lines


@pytest.mark.slow
def test_training_for_long_holds_no_more_and_repeats_itself(launch):
    status, lines, err = launch(2, str(FOLDER / "soak_script.py"), "120")
    held = [line for line in lines if line.endswith("holds no more than before")]
    assert (status, held) == (0, [f"rank {rank} holds no more than before" for rank in range(2)]), (lines, err)


@pytest.mark.slow
def test_a_killed_rank_is_named_by_all_in_time(launch):
    status, lines, err = launch(4, str(FOLDER / "kill_script.py"), "2")
    died = float(next(line for line in lines if line.startswith("at ")).split()[1])
    told = [line for line in lines if " told " in line]
    assert status == 137 and len(told) == 3, (lines, err)
    for line in told:
        assert "told rank 2 was killed by SIGKILL during" in line and float(line.split()[-1]) - died < 2


@pytest.mark.slow
def test_too_many_received_rows_are_one_error_on_all_ranks(launch):
    status, lines, err = launch(3, str(FOLDER / "row_capacity_script.py"))
    text = "told limit_rows: the number of rows that rank 2 receives is 12; it must be at most 6, as " \
           "rank_capacity_factor=1.5 has it. Give a rank_capacity_factor of at least 3: balanced, a rank receives 4."
    assert (status, lines) == (0, [f"rank {rank} {text}" for rank in range(3) for _ in range(3)]), err


@pytest.mark.slow
@pytest.mark.parametrize("what, status, told", [
    ("kill", 137, "rank 1 was killed by SIGKILL during"), ("raise", 1, "rank 1 has ended its program"),
    ("leave", 0, "rank 1 has ended its program"),
    ("shape", 0, "moe_ffn: hidden_states is of shape (4, 8) on rank 0 and (4, 16) on rank 1; it must be of one shape on all "
     "ranks."),
])
def test_survivors_are_told_of_the_rank_and_go_on_to_their_end(launch, what, status, told):
    found, lines, err = launch(3, FAULTS, what, forked=False)
    named = [line for line in lines if " told " in line and not line.startswith("rank 1")]
    assert found == status and len(named) == 2, (lines, err)
    for line in named:
        assert re.match(rf"rank \d told {re.escape(told)}.* 1 \S+$", line)


@pytest.mark.slow
def test_a_rank_without_tokens_takes_part_in_the_others_calls(launch):
    status, lines, err = launch(2, str(FOLDER / "empty_script.py"))
    told = "ArgumentError moe_ffn: hidden_states is of shape (6, 8) on rank 0 and (5, 8) on rank 1; it must be of one " \
           "shape on all ranks. Pad the rank that has fewer rows, and pass num_tokens=, the number of its real rows."
    assert (status, lines) == (0, [f"rank {rank} {said}" for rank in range(2) for said in (told, told, "ends")]), err


@pytest.mark.slow
def test_a_stopped_rank_is_waited_for(launch):
    assert launch(3, FAULTS, "stop")[:2] == (0, [f"rank {rank} ends" for rank in range(3)])


def under_msrun(folder, *script):
    """(exit status, the log of each of two ranks)."""
    port = free_address().rpartition(":")[2]
    command = [sys.executable, "-c", "from mindspore.parallel.cluster.run import main; main()", "--worker_num=2",
               "--local_worker_num=2", f"--master_port={port}", "--log_dir=log", "--join=True", *script]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    return done.returncode, [(folder / "log" / f"worker_{rank}.log").read_text() for rank in range(2)]


@pytest.mark.slow
def test_msrun_starts_a_world_and_its_scheduler_ends(tmp_path):
    status, logs = under_msrun(tmp_path, SCRIPT, "2", "shape")
    assert status == 0 and all(f"rank {rank} of 2 ok" in log for rank, log in enumerate(logs)), logs


@pytest.mark.slow
def test_ranks_of_mindspores_world_find_each_other_in_it(tmp_path):
    status, logs = under_msrun(tmp_path, str(FOLDER / "gathered_script.py"))
    assert status == 0 and all(re.search(rf"rank {rank} has sent [1-9]\d* rows", log) for rank, log in enumerate(logs)), logs


@pytest.mark.slow
@pytest.mark.parametrize("nodes, tasks", [(1, 2), (2, 3)])
def test_the_tasks_of_a_slurm_step_are_a_world(nodes, tasks, tmp_path, monkeypatch):
    monkeypatch.setenv("HPMOE_SECRET", "0123456789abcdef")
    script = [sys.executable, str(FOLDER / "layer_script.py"), "eager", "2"]
    command = [sys.executable, str(FOLDER / "fake_srun.py"), str(nodes), str(tasks), *script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0 and done.stdout.count("is as virtual ranks after 2 steps") == tasks, done


@pytest.mark.slow
def test_hosts_without_a_secret_are_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.delenv("HPMOE_SECRET", raising=False)
    command = [sys.executable, str(FOLDER / "fake_srun.py"), "2", "2", sys.executable, "-c", "import hpmoe; hpmoe.world()"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1 and done.stderr.count(
        "hpmoe.world: HPMOE_SECRET is missing in the environment, or too short; it must be 16 characters or more") == 2


@pytest.mark.parametrize("mode", ["eager", pytest.param("graph", marks=pytest.mark.slow)])
def test_a_cell_trains_as_on_virtual_ranks(launch, mode, size=2):
    status, lines, err = launch(size, str(FOLDER / "layer_script.py"), mode, "3")
    assert (status, [line for line in lines if line.startswith("rank")]) == (
        0, [f"rank {rank} is as virtual ranks after 3 steps" for rank in range(size)]), err


@pytest.mark.slow
def test_gradients_of_changed_values_on_processes(launch, size=2):
    status, lines, err = launch(size, str(FOLDER / "transform_script.py"))
    found = [line for line in lines if line.endswith("has the gradients of relu_squared, normalize_rows, scale_rows")]
    assert (status, len(found)) == (0, size), (lines, err)


@pytest.mark.slow
@pytest.mark.parametrize("mode, size", [("graph", 2), ("eager", 4)])
def test_losses_of_processes_are_those_of_all_tokens(launch, mode, size, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent / "support"))
    status, lines, err = launch(size, str(FOLDER / "losses_script.py"), mode)
    assert (status, [line for line in lines if line.startswith("rank")]) == (
        0, [f"rank {rank} has its part of the loss of all tokens" for rank in range(size)]), err


@pytest.mark.slow
def test_graphs_and_calls_keep_one_order_on_all_ranks(launch):
    status, lines, err = launch(2, str(FOLDER / "graphs_script.py"))
    assert (status, lines) == (0, ["rank 0 ends", "rank 1 ends"]), err


EXAMPLE = str(FOLDER.parents[1] / "examples" / "11_ranks_are_processes.py")


def losses(lines):
    return [line for line in lines if line.startswith("step")]


@pytest.mark.slow
def test_the_example_prints_the_same_on_any_number_of_ranks(launch):
    (_, alone, _), (status, four, err) = (launch(size, EXAMPLE) for size in (1, 4))
    assert status == 0 and len(losses(alone)) == 4 and losses(alone) == losses(four), err
    assert float(losses(alone)[-1].split()[-1]) < 0.6 * float(losses(alone)[0].split()[-1])
    assert sum(re.match(r"rank \d( +\d+\.\d){4}$", line) is not None for line in four) == 4


@pytest.mark.slow
def test_schemes_between_declared_hosts_send_the_formulas_bytes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent / "support"))
    status, out, err = start_forked([FOLDER / "relay_script.py", "2"], 4, Hosts(node_size=2))
    assert status == 0 and out.count(": [") == 16, err
    assert len(set(re.findall(r"(\d+) bytes of the last rank's rows", out))) == 1
