"""Workers of an expert: all that compute on rows are somebody's, and a larger load has more."""

import numpy as np
import pytest

import hpmoe
from hpmoe.balance import workers_per_expert

EP, EXPERTS, TOKENS = 2, 8, 96
LOADS = np.array([8.0, 4, 2, 1, 1, 1, 1, 1])


@pytest.mark.parametrize("copies", [0, 1])
def test_workers_follow_the_load(copies):
    rng = np.random.default_rng(0)
    ids = np.argsort(-np.log(LOADS) - rng.gumbel(size=(EP, TOKENS, EXPERTS)), -1)[..., :2].astype(np.int32)
    counts = np.bincount(ids.reshape(-1), minlength=EXPERTS)
    f = hpmoe.replicate_experts(hpmoe.moe_ffn, loads=counts) if copies else hpmoe.moe_ffn
    shapes = (TOKENS, 64), (TOKENS, 2), (TOKENS, 2), (EXPERTS // EP, 64, 64), (EXPERTS // EP, 32, 64)
    avals = [hpmoe.ShapeDtypeStruct((EP, *shape), "int32" if i == 1 else "float32") for i, shape in enumerate(shapes)]
    layer = hpmoe.spmd(hpmoe.assign_queues(hpmoe.tile_partition(f, rows=4, cols=16), machine=hpmoe.cpu(4)), hpmoe.Mesh(EP))
    line = hpmoe.simulate(layer.lower(*avals), routing=list(ids))
    workers = workers_per_expert(line, list(ids))
    computes = np.array([op.domain.is_slots and not op.primitive.is_remote for op in line.flow.ops])
    busy = (line.end - line.begin)[computes[line.flow.tasks["op"][line.task]]]
    of_rows = busy[busy > line.machine.sync.task_us * 1.001].sum()  # a task on an empty slot takes no longer than that
    np.testing.assert_allclose(workers.sum() * line.span, of_rows, rtol=1e-9)
    assert np.corrcoef(workers, counts)[0, 1] > 0.98
