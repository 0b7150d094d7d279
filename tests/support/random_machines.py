"""Any machine, and any taskflow and routing to simulate on it."""

import numpy as np
import random_programs
import variants
from helpers import Layer
from hypothesis import strategies as st
from simulated_layers import plan

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct
from hpmoe.routing.workload import balanced_ids
from hpmoe.transforms.overlap_comm import SIGNALS

RATES = ("cube.flops_per_us", "vector.bytes_per_us", "vector.copy_bytes_per_us", "l2.bytes_per_us", "l2.worker_bytes_per_us",
         "memory.bytes_per_us", "memory.worker_bytes_per_us", "link.bytes_per_us", "link.worker_bytes_per_us",
         "link.node_bytes_per_us")
COSTS = ("cube.fill_us", "sync.task_us", "sync.wait_us", "sync.poll_us", "sync.signal_us", "sync.remote_us",
         "sync.node_remote_us", "sync.pass_us")
NS = 0.002  # times are rounded to a nanosecond


@st.composite
def machines(draw):
    """Any machine: constants of ascend_a3, each some binary orders off."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    changes = {n: hpmoe.machines.ascend_a3[n] * 2.0 ** rng.uniform(-6, 3) for n in (*RATES, *COSTS, "l2.bytes")}
    machine = hpmoe.machines.ascend_a3.replace(changes, num_aic=int(rng.integers(1, 5)), num_aiv=int(rng.integers(1, 7)))
    return machine.replace({"link.node_size": int(rng.choice([1, 2, 384]))})


@st.composite
def layers(draw):
    """(flow, ids) of a MoE-FFN of any sizes, direction, schedule and routing, for a machine."""
    machine, rng = draw(machines()), np.random.default_rng(draw(st.integers(0, 10_000)))
    ep, tokens = draw(st.sampled_from((1, 2, 4))), draw(st.integers(1, 300))
    experts = ep * draw(st.sampled_from((1, 2, 4)))
    top_k = draw(st.integers(1, min(experts, 4)))
    early = draw(st.booleans())
    policy, signal = draw(st.sampled_from(("critical_path", "round_robin", "stage_order"))), draw(st.sampled_from(SIGNALS))

    def make(tiled):
        puts = hpmoe.overlap_comm(tiled, signal=signal)
        return hpmoe.assign_queues(hpmoe.prefetch_weights(puts) if early else puts, machine=machine, policy=policy)
    flow = plan(ep, tokens, 256, 128, experts, top_k, draw(st.sampled_from(("forward", "backward"))), machine, make=make)
    even = draw(st.booleans())
    ids = balanced_ids(ep, tokens, top_k, experts) if even else rng.random((ep, tokens, experts)).argsort(-1)[..., :top_k]
    return flow, ids.astype(np.int32)


@st.composite
def others(draw):
    """(flow, ids) of any other layer: a random program, or one of tests/support/variants.py; ids are the same for every
    route."""
    machine, direction = draw(machines()), draw(st.sampled_from(("forward", "backward")))
    layer = Layer(ep=2, T=5, H=4, I=3, E=4, K=2)
    if draw(st.booleans()):
        f, args = random_programs.in_mindspore(draw(random_programs.programs)), random_programs.arguments(layer, 0)
    else:
        f = variants.VARIANTS[draw(st.sampled_from(sorted(variants.VARIANTS)))][0]
        args = variants.arguments(f, layer)
    avals = [ShapeDtypeStruct(a.shape[1:], str(a.dtype)) for a in args]
    staged = hpmoe.assign_queues(hpmoe.overlap_comm(hpmoe.tile_partition(f, rows=2, cols=3)), machine=machine)
    ids = layer.ids(np.random.default_rng(draw(st.integers(0, 100))))
    return staged.lower(*avals, mesh=Mesh(layer.ep), direction=direction), ids


anything = st.one_of(layers(), others())
