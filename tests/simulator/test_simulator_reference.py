"""The simulator against tests/support/simulator_reference.py, over layers and machines that are as odd as they get."""

import numpy as np
import pytest
from random_machines import COSTS, RATES
from simulator_reference import Reference, differences, from_memory

import hpmoe
from hpmoe import Aval, Mesh
from hpmoe.autodiff.vjp import linearize
from hpmoe.machines.machine import Body
from hpmoe.runtime.planned_rows import PlannedRows, with_planned_rows
from hpmoe.transforms.assign_queues import POLICIES
from hpmoe.transforms.deduplicate_rows import can_deduplicate
from hpmoe.transforms.overlap_comm import ORDERS, SIGNALS

TIES = 12  # orders of what happens at the same time that are tried before a difference counts


def machine_of(rng):
    """Constants up to a thousand times off, of a device, or of a computer whose threads serve all ranks."""
    changes = {n: getattr(hpmoe.ascend_a3, n) * 2.0 ** rng.uniform(-8, 4) for n in (*RATES, *COSTS)}
    changes |= {n: 0.0 for n in COSTS if rng.random() < 0.2}
    # Without poll_us two that look in turn may meet to the last digit.
    looks = rng.choice([0.0, 0.3, 20.0]) if changes["poll_us"] else 0.0
    if rng.random() < 0.3:
        bodies = tuple(Body(k, "bfloat16", *rng.uniform(0.2, 1, 1), *rng.uniform(0, 9, 3), most)
                       for k in ("GMM", "SWIGLU", "PUT") for most in (0.0, 2.0) if rng.random() < 0.3)
        return hpmoe.cpu(num_workers=int(rng.integers(1, 5))).replace(
            **changes, host_cores=float(rng.choice([0.4, 1.0, 2.0, 2.5, 40.0])),
            l2_bytes=float(rng.choice([0.0, 1e3, 1e18])),
            bodies=bodies)
    return hpmoe.ascend_a3.replace(**changes, num_aic=int(rng.integers(1, 4)), num_aiv=int(rng.integers(1, 6)),
                                   node_size=int(rng.choice([1, 2, 3, 384])),
                                   l2_bytes=float(rng.choice([0.0, 1e3, 2e4, 1e18])),
                                   repoll_us=float(looks), launch_us=float(rng.uniform(0, 9)))


def ids_of(rng, ep, tokens, top_k, experts):
    """Any experts, few of them, one and the same for all, or those of one rank."""
    liked = rng.random((ep, tokens, experts))
    kind = rng.integers(4)
    liked[..., :{0: 0, 1: top_k, 2: 1, 3: experts // ep}[int(kind)]] -= 1
    return liked.argsort(-1)[..., :top_k].astype(np.int32)


def case(seed):
    """(flow, ids, tokens of each rank) of a layer on a machine."""
    rng = np.random.default_rng(seed)
    ep, tokens = int(rng.choice([1, 2, 3, 5])), int(rng.integers(0, 24))
    experts = ep * int(rng.choice([1, 2, 3]))
    top_k = int(rng.integers(1, min(experts, 4) + 1))
    machine, ids, hidden, inter = machine_of(rng), ids_of(rng, ep, tokens, top_k, experts), 6, 5
    avals = [Aval(s, d) for s, d in (((tokens, hidden), "bfloat16"), ((tokens, top_k), "int32"),
                                     ((tokens, top_k), "float32"),
                                     ((experts // ep, hidden, 2 * inter), "bfloat16"),
                                     ((experts // ep, inter, hidden), "bfloat16"))]
    program = hpmoe.trace(hpmoe.moe_ffn, *avals, mesh=Mesh(ep))
    if rng.random() < 0.3:
        loads = np.bincount(ids.reshape(-1), minlength=experts) + 1
        program = hpmoe.replicate_experts.apply_to(program, loads=loads, replicas=int(rng.integers(1, 3)), min_load=0)
    program = getattr(linearize(program), str(rng.choice(["forward", "backward"])))
    program = with_planned_rows(program, [PlannedRows(tokens * top_k * ep, tokens * top_k)])
    if can_deduplicate(program) and rng.random() < 0.3:
        program = hpmoe.deduplicate_rows.apply_to(program)
    tiled = hpmoe.tile_partition.apply_to(program, rows=int(rng.choice([2, 3, 8])), cols=int(rng.choice([2, 4, 16])))
    policy = str(rng.choice(list(POLICIES)))
    if rng.random() < 0.25:
        flow = hpmoe.launch_kernels.apply_to(tiled)
    else:
        flow = hpmoe.overlap_comm.apply_to(tiled, signal=str(rng.choice(list(SIGNALS))), order=str(rng.choice(list(ORDERS))))
        flow = hpmoe.prefetch_weights.apply_to(flow) if seed % 2 else flow
    lengths = rng.integers(0, tokens + 1, ep) if rng.random() < 0.3 else np.full(ep, tokens)
    return hpmoe.assign_queues.apply_to(flow, machine=machine, policy=policy), ids, [int(n) for n in lengths]


def assert_both_agree(seed):
    """The same times and traffic, and from memory what some order of what happens at the same time brings, within 2 %: of
    two tasks that read parts of one thing the first finds it in memory, and the other in the cache."""
    flow, ids, lengths = case(seed)
    line, found, fetched = hpmoe.simulate(flow, routing=ids, num_tokens=lengths), ["nothing was tried"], []
    for ties in range(TIES):
        reference = Reference(flow, flow.machine, ids, lengths, ties)
        fetched.append(from_memory(reference))
        found = found and differences(line, reference)
        least, most, mine = np.min(fetched, axis=0), np.max(fetched, axis=0), line.traffic[:, 1, 0]
        if not found and (mine >= 0.98 * least).all() and (mine <= 1.02 * most).all():
            return
    raise AssertionError(f"seed {seed}: {found[:5]}; from memory {mine}, expected {least} to {most}")


@pytest.mark.parametrize("seeds", [range(i, i + 10) for i in range(0, 30, 10)], ids=str)
def test_both_simulators_agree(seeds):
    for seed in seeds:
        assert_both_agree(seed)
