"""Results have the same bits from run to run, on any number of virtual ranks and processes, and after a restart."""

import subprocess
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from forked import start_forked

import hpmoe

FOLDER = Path(__file__).parent
T, H, W, E, K = 48, 16, 12, 8, 2
to_kernel = hpmoe.chain(hpmoe.tile_partition(rows=8), hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)


def results(ep_size):
    """Returns the output and gradients of a layer as bytes, independent of the number of ranks."""
    rng = np.random.default_rng(0)

    def by_rank(array):
        return ms.Tensor(array.reshape(ep_size, -1, *array.shape[1:]))

    x, up, down, weights, cotangent = (by_rank(rng.standard_normal(shape).astype(np.float32)) for shape in
                                       ((T, H), (E, H, 2 * W), (E, W, H), (T, K), (T, H)))
    ids = by_rank(rng.random((T, E)).argsort(-1)[:, :K].astype(np.int32))
    layer = hpmoe.spmd(to_kernel(hpmoe.moe_ffn), hpmoe.Mesh(ep_size))

    def loss_of(*args):
        out = layer(*args)
        return (out * cotangent).sum(), out

    (_, out), grads = ms.value_and_grad(loss_of, (0, 2, 3, 4), has_aux=True)(x, ids, weights, up, down)
    return [array.asnumpy().tobytes() for array in (out, *grads)]


@pytest.mark.parametrize("ep_size", [1, 2, 4, 8])
def test_results_repeat_on_any_number_of_ranks(ep_size):
    assert results(ep_size) == results(ep_size) == results(1)


SCRIPT = str(FOLDER / "training_script.py")


def launched(size, *args):
    """Runs the script under hpmoe launch."""
    command = [sys.executable, "-m", "hpmoe", "launch", "-n", str(size), SCRIPT, *args]
    done = subprocess.run(command, cwd=args[1], capture_output=True, text=True, timeout=200, check=False)
    return done.returncode, done.stdout, done.stderr


def told(start, size, *args):
    """Returns the printed lines of the script's ranks, by rank."""
    status, out, err = start(size, *args)
    lines = sorted(line for line in out.splitlines() if line.startswith("rank"))
    assert status == 0 and len(lines) == size, out + err
    return lines


@pytest.mark.slow
def test_training_repeats_and_survives_a_restart_bitwise(tmp_path, size=2):
    def forked(size, *args):
        return start_forked([SCRIPT, *args], size)

    whole = told(launched, size, "10", str(tmp_path), "whole")
    assert told(forked, size, "10", str(tmp_path), "resumed") == whole == told(forked, size, "10", str(tmp_path), "whole")
