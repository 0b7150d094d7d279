"""moe_ffn and its gradients at every stage of the chain against JAX and hand-derived NumPy, both in float64."""

import numpy as np
import pytest
from helpers import (
    SMALL_NPU,
    Layer,
    assert_close,
    assert_equals_numpy,
    at_stages,
    fused,
    jax_moe_ffn,
    jax_vjp,
    numpy_moe_ffn,
    run_spmd,
    stages,
    token_mask,
)

import hpmoe

LAYERS = {
    "several tiles": Layer(ep=2, T=5),
    "one rank": Layer(ep=1, T=7, E=5, K=3),
    "no tokens": Layer(ep=3, T=0, E=6),
    "one token": Layer(ep=2, T=1, K=1),
    "one token, one rank": Layer(ep=1, T=1, E=5, K=5),
    "three ranks": Layer(ep=3, T=5, E=6, H=5, I=2),
    "four ranks, 12 experts": Layer(ep=4, T=3, E=12, K=3),
    "five ranks": Layer(ep=5, T=2, E=5, K=2),
    "eight ranks": Layer(ep=8, T=3, E=16, K=2),
    "eight of twelve": Layer(ep=2, T=3, E=12, K=8),
    "one expert": Layer(ep=1, T=5, E=1, K=1),
    "256 experts": Layer(ep=4, T=3, H=3, I=2, E=256, K=8),
    "every expert": Layer(ep=2, T=4, E=4, K=4),
    "one expert takes all": Layer(ep=2, T=5, E=4, K=1, routing="one expert"),
    "one rank takes all": Layer(ep=4, T=4, E=12, K=2, routing="one rank"),
    "uneven": Layer(ep=3, T=5, E=6, num_tokens=(5, 2, 3)),
    "an empty rank": Layer(ep=3, T=5, E=6, num_tokens=(0, 4, 1)),
    "only padding": Layer(ep=2, T=3, num_tokens=(0, 0)),
    "one token of a full tile": Layer(ep=2, T=4, num_tokens=(1, 4), K=3),
    "wide": Layer(ep=2, T=9, H=17, I=11, E=6, K=2),
}


@pytest.mark.parametrize("name", ["several tiles", "no tokens", "uneven"])
def test_the_two_oracles_agree(name):
    layer = LAYERS[name]
    args, cotangent = layer.arguments(), layer.cotangent()
    mask = token_mask(cotangent.shape, layer.num_tokens)
    out, grads = jax_vjp(lambda *a: jax_moe_ffn(*a) * mask, args, cotangent, (0, 2, 3, 4))
    want, want_grads = numpy_moe_ffn(args, cotangent, layer.num_tokens)
    assert_close([out, *grads], [want, *want_grads], tolerance=1e-12)


@pytest.mark.parametrize("name, stage", at_stages(LAYERS))
def test_every_stage(name, stage):
    assert_equals_numpy(stages()[stage](hpmoe.moe_ffn), LAYERS[name])


def skewed(flow, machine):
    """A user's policy: everything in the first queue of its unit, in program order."""
    queues = [np.zeros(0, int) for _ in range(machine.num_queues)]
    for unit, mine in (("aic", flow.units()), ("aiv", ~flow.units())):
        first = machine.queues_of(unit)[0]
        queues[first] = np.union1d(queues[first], np.flatnonzero(mine))
    return queues


MACHINES = {"cpu1": hpmoe.cpu(1), "cpu3": hpmoe.cpu(3), "npu": SMALL_NPU}
ORDERS = {"ratr": "ratr", "sequential": "sequential", "user": lambda rank, ep: [(rank * 2 + 1 - i) % ep for i in range(ep)]}


@pytest.mark.parametrize("order, signal, machine, policy", [
    ("ratr", "tile", "cpu1", "critical_path"), ("sequential", "expert", "cpu3", "round_robin"),
    ("user", "peer", "npu", "critical_path"), ("user", "tile", "npu", "stage_order"),
    ("ratr", "expert", "npu", skewed), ("sequential", "peer", "cpu1", skewed)])
def test_every_schedule(order, signal, machine, policy):
    options = {"order": ORDERS[order], "signal": signal, "machine": MACHINES[machine], "policy": policy}
    assert_equals_numpy(fused(**options)(hpmoe.moe_ffn), Layer(ep=3, T=5, E=6, num_tokens=(5, 0, 3)))


@pytest.mark.parametrize("stage, cols, policy, signal, machine", [
    ("fused", 1, "critical_path", "tile", "cpu3"), ("queues", 3, "round_robin", "expert", "npu"),
    ("fused", 3, "expert_barrier", "peer", "cpu1"), ("overlap", 2, "critical_path", "tile", "cpu3"),
    ("fused", 6, "critical_path", "expert", "npu"), ("fused", 1, "round_robin", "expert", "cpu3"),
    ("queues", 2, "expert_barrier", "tile", "npu"), ("overlap", 6, "critical_path", "peer", "cpu1")])
def test_puts_of_some_columns(stage, cols, policy, signal, machine):
    made = stages(signal=signal, cols=3, machine=MACHINES[machine], policy=policy, put_cols=cols)[stage]
    assert_equals_numpy(made(hpmoe.moe_ffn), Layer(ep=3, T=5, E=6, H=7, num_tokens=(5, 0, 3)))


@pytest.mark.parametrize("returns, stage, signal", [
    (1, "overlap", "tile"), (3, "overlap", "expert"), (3, "queues", "tile"), (1, "fused", "expert"), (3, "fused", "tile")])
def test_few_events_for_rows_that_come_back(returns, stage, signal):
    made = stages(rows=1, returns=returns, signal=signal, put_cols=4)[stage]
    assert_equals_numpy(made(hpmoe.moe_ffn), Layer(ep=3, T=5, E=6, H=7, num_tokens=(5, 0, 3)))


@pytest.mark.parametrize("rows, cols", [(1, 1), (1, 100), (3, 2), (4, 4), (100, 1), (128, 256)])
def test_every_tile_size(rows, cols):
    assert_equals_numpy(fused(rows=rows, cols=cols)(hpmoe.moe_ffn), Layer(ep=2, T=5, E=6, K=3))


@pytest.mark.parametrize("stage", ["queues", "fused"])
def test_padding_is_never_read(stage):
    layer = Layer(ep=3, T=5, E=6, num_tokens=(5, 0, 2))
    args, cotangent = layer.arguments(), layer.cotangent()
    want, want_grads = numpy_moe_ffn(args, cotangent, layer.num_tokens)
    padding = ~token_mask(cotangent.shape, layer.num_tokens)[..., 0]
    for a in (args[0], args[2], cotangent):
        a[padding] = np.nan
    args[1][padding] = -7
    outs, grads = run_spmd(stages()[stage](hpmoe.moe_ffn), layer.ep, args, [cotangent], layer.num_tokens)
    assert_close([*outs, *grads], [want, *want_grads])
