"""Orders of tasks that the ablation sets beside each other, as policies made from another policy."""

from __future__ import annotations

import heapq
from collections import defaultdict

import numpy as np

import hpmoe
from hpmoe.costs.task_costs import task_costs
from hpmoe.ir import taskflow as tf
from hpmoe.transforms.assign_queues import Policy


def by_destination(policy: Policy) -> Policy:
    """Changes a policy so that rows are put destination by destination, not slot by slot to all destinations."""
    def ordered(flow: hpmoe.rewriting.Taskflow, machine: hpmoe.Machine) -> list[np.ndarray]:
        queues = [np.array(q) for q in policy(flow, machine)]
        for i in (i for i, op in enumerate(flow.ops) if op.primitive.sends_rows):
            puts = np.flatnonzero(flow.tasks["op"] == i)
            puts = puts[np.lexsort((flow.tasks["row"][puts], flow.tasks["peer"][puts]))]
            places = [(n, q, k) for q, tasks in enumerate(queues)
                      for n, k in enumerate(np.flatnonzero(flow.tasks["op"][tasks] == i))]
            for task, (_, q, k) in zip(puts, sorted(places), strict=True):
                queues[q][k] = task
        return queues
    return ordered


def interleaved(policy: Policy) -> Policy:
    """Changes a policy so that an expert's weight gradients follow the matmul tiles that read the same rows, which L2 may
    still hold, but not before their waits can be over under every routing."""
    def ordered(flow: hpmoe.rewriting.Taskflow, machine: hpmoe.Machine) -> list[np.ndarray]:
        queues = [np.asarray(q) for q in policy(flow, machine)]
        pairs = [(i, j) for i, grad in enumerate(flow.ops) if grad.primitive.makes_blocks and grad.domain.route >= 0
                 for j, tile in enumerate(flow.ops) if tile.primitive.is_matmul and tile.domain.is_slots
                 and tile.operands[1].buffer == grad.operands[2].buffer]
        if not pairs:
            return queues
        costs = task_costs(flow, machine)
        start, earliest = _times(flow, queues, costs)
        key = start.copy()
        for grad, tile in pairs:
            grads, tiles = (np.flatnonzero(flow.tasks["op"] == op) for op in (grad, tile))
            last = np.zeros(flow.routes[flow.ops[grad].domain.route].num_local_experts)
            np.maximum.at(last, _planned_expert(flow, tiles), start[tiles])
            key[grads] = np.maximum(last[flow.tasks["row"][grads] // flow.ops[grad].domain.blocks], earliest[grads])
        return _dealt(flow, machine, queues, key, costs)
    return ordered


def _planned_expert(flow: hpmoe.rewriting.Taskflow, tiles: np.ndarray) -> np.ndarray:
    """The expert of each tile's slot where every expert gets the same."""
    plan = flow.routes[flow.ops[flow.tasks["op"][tiles[0]]].domain.route]
    per_expert = max(1, -(-plan.max_rows // (plan.num_local_experts * flow.tile_rows)))
    return np.minimum(flow.tasks["row"][tiles] // per_expert, plan.num_local_experts - 1)


def _dealt(flow: hpmoe.rewriting.Taskflow, machine: hpmoe.Machine, queues: list[np.ndarray], key: np.ndarray,
           costs: np.ndarray) -> list[np.ndarray]:
    """The matrix tasks in the order of their keys, each to the queue with the least so far; other queues as they are."""
    units = machine.queues_of("aic")
    tasks = np.flatnonzero(flow.units())
    is_grad = np.array([op.primitive.makes_blocks for op in flow.ops])[flow.tasks["op"][tasks]]
    heap, dealt = [(0.0, q) for q in units], defaultdict(list)
    for t in tasks[np.lexsort((is_grad, key[tasks]))]:
        load, q = heapq.heappop(heap)
        dealt[q].append(t)
        heapq.heappush(heap, (load + costs[t], q))
    return [np.array(dealt[q], np.int64) if q in units else mine for q, mine in enumerate(queues)]


def _times(flow: hpmoe.rewriting.Taskflow, queues: list[np.ndarray], costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """When each task starts if all take as long as estimated, and when all it waits for has ended."""
    (fed, needed), num_events = _gates(flow.deps), len(flow.deps.events)
    missing, ready = np.bincount(fed, minlength=num_events).tolist(), [0.0] * num_events
    feeds, needs = _by_task(flow, flow.deps.signals["task"], fed), _by_task(flow, flow.deps.waits["task"], needed)
    start, earliest = np.zeros((2, flow.num_tasks))
    lines, heads, clock = [q.tolist() for q in queues], [0] * len(queues), [0.0] * len(queues)
    asleep, awake = defaultdict(list), list(range(len(queues)))
    while awake:
        q = awake.pop()
        while heads[q] < len(lines[q]):
            t = lines[q][heads[q]]
            closed = next((g for g in needs[t] if missing[g] > 0), None)
            if closed is not None:
                asleep[closed].append(q)
                break
            earliest[t] = max((ready[g] for g in needs[t]), default=0.0)
            start[t] = max(earliest[t], clock[q])
            clock[q], heads[q] = start[t] + costs[t], heads[q] + 1
            for g in feeds[t]:
                missing[g], ready[g] = missing[g] - 1, max(ready[g], clock[q])
                awake += asleep.pop(g, ()) if missing[g] == 0 else ()
    return start, earliest


def _gates(deps: tf.Dependencies) -> tuple[np.ndarray, np.ndarray]:
    """The event of each signal and of each wait; a block of events that are found at run time counts as one, its first, so
    that the order holds for every routing."""
    of = deps.events["block"]
    found_later = np.zeros(len(deps.blocks), bool)
    for table in (deps.waits, deps.signals):
        found_later[of[table["event"][table["kind"] != tf.STATIC]]] = True
    first = np.array([b.first for b in deps.blocks], np.int64)
    gate = np.where(found_later[of], first[of], np.arange(len(of)))
    return gate[deps.signals["event"]], gate[deps.waits["event"]]


def _by_task(flow: hpmoe.rewriting.Taskflow, tasks: np.ndarray, gates: np.ndarray) -> list[list[int]]:
    out: list[list[int]] = [[] for _ in range(flow.num_tasks)]
    for t, g in zip(tasks.tolist(), gates.tolist(), strict=True):
        out[t].append(g)
    return out
