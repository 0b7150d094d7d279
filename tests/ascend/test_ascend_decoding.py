"""Time that scalar units of the Ascend kernel take to decode a task, by an emulator clock that counts their reads."""

import numpy as np
import pytest
from ascend_helpers import from_seed, npu

import hpmoe
from hpmoe import ShapeDtypeStruct, assign_queues, overlap_comm, tile_partition
from hpmoe.kernels.ascendc.emulator.target import EMULATOR
from hpmoe.support.dtypes import numpy_dtype

MOST_CYCLES, CYCLES_PER_US = 60, 1815.0


def decoded(tokens, num_experts, hidden, inner, machine, rows, cols=16):
    """(AIC, AIV) of a layer with as many tiles of columns as a wide one has: neighbours in a queue are of few slots."""
    shapes = (tokens, hidden), (tokens, 8), (tokens, 8), (num_experts, hidden, 2 * inner), (num_experts, inner, hidden)
    avals = [ShapeDtypeStruct(s, "int32" if i == 1 else "bfloat16") for i, s in enumerate(shapes)]
    tiles = overlap_comm(tile_partition(hpmoe.moe_ffn, rows=rows, cols=cols))
    flow = assign_queues(tiles, machine=machine).lower(*avals)
    kernel, rng = EMULATOR.compile([flow], 100.0), np.random.default_rng(0)
    ids = np.argsort(rng.random((tokens, num_experts)), 1)[:, :8].astype(np.int32)
    kernel.run([[ids if flow.buffers[b].dtype == "int32" else
                 np.ones(flow.buffers[b].shape, numpy_dtype(flow.buffers[b].dtype)) for b in flow.inputs]])
    return kernel.state.counts.aic, kernel.state.counts.aiv


def show(capsys, **units):
    with capsys.disabled():
        for name, d in units.items():
            print(f"\n{name}: {d.tasks} tasks; of each {d.words / d.tasks:.1f} words that the scalar unit reads, "
                  f"{d.lines / d.tasks:.2f} lines that its cache waits for, {d.cycles / d.tasks:.0f} cycles, simulated")


def test_a_task_of_a_long_queue_is_decoded_in_few_words(capsys, monkeypatch):
    """Its own, its slot's, and the target of what it waits for: all else is that of the task before, or in its registers."""
    from_seed(monkeypatch, 0)
    aic, aiv = decoded(64, 16, 256, 64, npu(2), rows=16)
    show(capsys, AIC=aic, AIV=aiv)
    assert aic.tasks > 400 and aic.words < 4 * aic.tasks and aic.cycles < MOST_CYCLES * aic.tasks
    assert aiv.tasks > 50 and aiv.words < 8 * aiv.tasks


@pytest.mark.slow
def test_a_task_is_decoded_in_sixty_cycles(capsys, monkeypatch):
    """Queues are as long as those of 512 tokens with 7168 columns, on all cores of an ascend_a3."""
    from_seed(monkeypatch, 0)
    aic, aiv = decoded(512, 64, 448, 128, hpmoe.machines.ascend_a3, rows=64)
    show(capsys, AIC=aic, AIV=aiv)
    for unit in (aic, aiv):  # of what the model charges for decoding a task and beginning its body
        assert unit.cycles / unit.tasks / CYCLES_PER_US < hpmoe.machines.ascend_a3.sync.task_us
    assert aic.cycles < 1.1 * MOST_CYCLES * aic.tasks and aiv.cycles < 2 * MOST_CYCLES * aiv.tasks
