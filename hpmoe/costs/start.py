"""The time of a launch before its first task."""

from __future__ import annotations

import math

from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine


def start_us(flow: tf.Taskflow, machine: Machine) -> float:
    """Returns microseconds of a launch of a taskflow until its first task can begin: the launch and the kernel's prologue.

    Example:
        >>> import hpmoe
        >>> moe = hpmoe.tile_partition(hpmoe.moe_ffn, rows=128, cols=256)
        >>> shapes = (4096, 7168), (4096, 8), (4096, 8), (64, 7168, 4096), (64, 2048, 7168)
        >>> avals = [hpmoe.ShapeDtypeStruct(s, "int32" if i == 1 else "bfloat16") for i, s in enumerate(shapes)]
        >>> flow = hpmoe.overlap_comm(moe).lower(*avals)
        >>> a3 = hpmoe.machines.ascend_a3
        >>> round(start_us(flow, a3)), round(start_us(flow, a3.replace({"host.prologue_us": 0.0})))
        (164, 102)
    """
    host, workers = machine.host, len(machine.queues_of("aiv"))
    asked, out = {plan.of for plan in flow.routes}, host.launch_us
    if flow.routes:
        out += host.prologue_us + host.expert_us * max(plan.num_local_experts for plan in flow.routes)
    for number, plan in enumerate(flow.routes):
        if number in asked or not _is_gathered(plan):
            entries = math.ceil(plan.num_tokens / workers) * plan.top_k
            out += host.sort_us + host.entry_us * (entries + plan.num_local_experts * plan.ep_size)
    return out


def _is_gathered(plan: tf.RoutePlan) -> bool:
    """Returns whether vector instructions sort the entries: is_gathered of kernels/ascendc/gather_sort.h."""
    return not plan.kind.is_of_tokens and plan.placement is None and not plan.drops_by_weight
