"""The shared expert of moe_ffn: values and gradients against JAX, and its place in the matrix units' queues."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Layer, assert_close, at_stages, jax_moe_ffn, jax_vjp, run_spmd, stages, token_mask

import hpmoe

POSITIONS = (0, 2, 3, 4, 5, 6)
LAYERS = {"even": Layer(ep=2, T=7), "one rank": Layer(ep=1, T=5, E=3, K=3), "no tokens": Layer(ep=2, T=0),
          "uneven": Layer(ep=3, T=5, E=6, num_tokens=(5, 0, 2))}


def arguments(layer, width=5, seed=0):
    rng = np.random.default_rng(seed + 100)
    shapes = (layer.ep, layer.H, 2 * width), (layer.ep, width, layer.H)
    return [*layer.arguments(seed), *(rng.standard_normal(s).astype(np.float32) for s in shapes)]


def with_shared_expert(x, ids, w, up, down, shared_up, shared_down):
    gate, value = jnp.split(jnp.einsum("rth,rhn->rtn", x, shared_up), 2, axis=-1)
    return jax_moe_ffn(x, ids, w, up, down) + jnp.einsum("rti,rih->rth", jax.nn.silu(gate) * value, shared_down)


@functools.cache
def expected(name):
    layer = LAYERS[name]
    mask = token_mask((layer.ep, layer.T), layer.num_tokens)
    return jax_vjp(lambda *a: with_shared_expert(*a) * mask, arguments(layer), layer.cotangent(), POSITIONS)


@pytest.mark.parametrize("name, stage", at_stages(LAYERS))
def test_every_stage(name, stage):
    layer = LAYERS[name]
    args, cotangent = arguments(layer), layer.cotangent()
    want, want_grads = expected(name)
    outs, grads = run_spmd(stages()[stage](hpmoe.moe_ffn), layer.ep, args, [cotangent], layer.num_tokens, POSITIONS)
    assert_close([*outs, *grads], [want, *want_grads])


def test_shared_matmuls_run_while_rows_are_sent():
    """On A3 every AIC queue begins with tasks of the shared expert, which wait for nothing."""
    shapes = [((1024, 512), "float32"), ((1024, 2), "int32"), ((1024, 2), "float32"), ((8, 512, 512), "float32"),
              ((8, 256, 512), "float32"), ((512, 1024), "float32"), ((512, 512), "float32")]
    tiled = hpmoe.overlap_comm(hpmoe.tile_partition(hpmoe.moe_ffn, rows=128, cols=256))
    flow = hpmoe.assign_queues(tiled, machine=hpmoe.machines.ascend_a3).lower(*(hpmoe.ShapeDtypeStruct(*s) for s in shapes),
                                                                     mesh=hpmoe.Mesh(2))
    labels = np.array([op.label for op in flow.ops])[flow.tasks["op"]]
    waiting = np.zeros(flow.num_tasks, bool)
    waiting[flow.deps.waits["task"]] = True
    for queue in flow.machine.queues_of("aic"):
        line = np.asarray(flow.queues[queue])
        is_shared = labels[line] == "matmul"
        first_routed = int(np.argmin(is_shared))
        assert first_routed >= 1 and not waiting[line[0]]
