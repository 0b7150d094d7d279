"""What is no schedule at all, told from its tables alone: nothing has to be expanded or run to see it."""

from enum import Enum

import numpy as np
from tile_words import kind as kind_of, moves_copies

from hpmoe.ir import taskflow as tf
from hpmoe.tile_ops.functions import Function

TRANSFERS = ("PUT", "PUT_BACK", "ALL_TO_ALL", "ALL_TO_ALL_BACK", "NOTIFY")


def nonsense(flow):
    """What no runtime can run, or the two of hpmoe would run differently; None where it is a schedule at all."""
    return _odd_classes(flow) or _odd_queues(flow) or _odd_buffers(flow) or _odd_tiles(flow) or _odd_events(flow)


def _odd_classes(flow):
    """Of an operation's domain and params, whose fields no other class has."""
    for new, old in zip(flow.ops, flow.made.ops if flow.made else (), strict=False):
        for mine, theirs in ((new.domain, old.domain), (new.params, old.params)):
            members = {name: type(x) for name, x in vars(theirs).items() if isinstance(x, (bool, Enum, Function))}
            if type(mine) is not type(theirs) or any(type(vars(mine)[name]) is not cls for name, cls in members.items()):
                return "a domain or params of another class"
    return None


def _odd_queues(flow):
    if not flow.queues:
        return None
    listed = np.sort(np.concatenate([np.asarray(q) for q in flow.queues]))
    if not np.array_equal(listed, np.arange(flow.num_tasks)):
        return "a task is not in one queue, once"
    if len(flow.queues) != flow.machine.num_queues:
        return "a queue too many or too few"
    op_of = flow.tasks["op"].tolist()
    for q, queue in enumerate(flow.queues):
        if any(q not in flow.machine.queues_of(flow.ops[op_of[t]].unit) for t in np.asarray(queue).tolist()):
            return "a task is in a queue of the other unit"
    return None


def _odd_buffers(flow):
    roots = [b if buffer.storage == b and buffer.memory < 0 else -1 for b, buffer in enumerate(flow.buffers)]
    if any(buffer.memory >= 0 and (buffer.storage != b or buffer.memory not in roots[:b])
           for b, buffer in enumerate(flow.buffers)):
        return "memory that is not of an earlier buffer"
    if any((buffer.num_rows is None) != (buffer.route >= 0) for buffer in flow.buffers):
        return "rows of a buffer's own, and of a route"
    homes = {buffer.memory for buffer in flow.buffers} - {-1}
    if flow.made and any(new.cols != old.cols and (b in homes or new.memory >= 0)
                         for b, (new, old) in enumerate(zip(flow.buffers, flow.made.buffers, strict=True))):
        return "rows of a shared memory that are not as wide as planned"
    given = {flow.buffers[b].storage for b in flow.inputs}
    if any(flow.buffers[a.buffer].storage in given for op in flow.ops for a in op.outputs):
        return "an input is written"
    users = given | {flow.buffers[b].storage for b in flow.outputs}
    if any(b.memory in users or (b.memory >= 0 and b.storage in users) for b in flow.buffers):
        return "an array of the caller shares memory"
    return None


def _odd_tiles(flow):
    if flow.made and flow.tile_rows != flow.made.tile_rows:
        return "tiles of another height, whose sums may be rounded otherwise"
    if flow.made and any(new.opcode == "GMM" and kind_of(new) == "tiles" and new.domain.clipped != old.domain.clipped
                         for new, old in zip(flow.ops, flow.made.ops, strict=False)):
        return "products of padding, too, or not, in which the sums of other rows may be rounded otherwise"
    if any(plan.return_tokens < 1 or plan.return_tokens % flow.tile_rows for plan in flow.routes):
        return "an event for returned rows of a part of a tile"
    if not np.array_equal(np.sort(flow.peer_orders, axis=2), [[range(flow.ep_size)] * flow.ep_size] * 2):
        return "a rank that is a peer twice, or never"
    return None


def _odd_events(flow):
    op_of = [flow.ops[i] for i in flow.tasks["op"].tolist()]
    for t, event, kind, *_ in (*flow.waits.tolist(), *flow.signals.tolist()):
        if not (0 <= t < flow.num_tasks and 0 <= event < len(flow.events)):
            return "a wait or signal of no task or event"
        if event + _reach(flow, op_of[t], kind) > len(flow.events):
            return "a wait or signal may go past the last event"
    for t, _, kind in flow.waits.tolist():
        if kind == tf.SLOT_EXPERT and (kind_of(op_of[t]) != "slots" or op_of[t].opcode == "PUT"):
            return "a task without a slot of its own waits by expert"
        if kind not in (tf.STATIC, tf.SLOT_EXPERT):
            return "a wait of unknown kind"
    tokens = [op.domain.num_rows for op in flow.ops if kind_of(op) == "tiles" and op.domain.clipped]
    if not all(_event_exists(flow, tokens, *event) for event in flow.events.tolist()):
        return "an event about nothing"
    faults = (_odd_signal(flow, op_of[t], *how) for t, _, *how in flow.signals.tolist())
    return next((f for f in faults if f), None)


def _reach(flow, op, kind):
    """How many events a wait or signal may be about."""
    if kind == tf.STATIC or op.domain.route < 0:
        return 1
    plan = flow.routes[op.domain.route]
    if kind == tf.ENTRY_TILE and op.opcode == "FAN_OUT":
        return flow.routes[plan.once_of].num_slots
    return plan.num_local_experts if kind == tf.SLOT_EXPERT else max(1, plan.num_returns)


def _event_exists(flow, tokens, extent, index, mult, route, block):
    if not (0 <= extent <= tf.RELAYED and mult >= 0):
        return False
    if extent in (tf.ONE, tf.STATIC_TILE):
        return True
    if extent in (tf.TILE, tf.TOKENS):
        return bool(tokens) and (extent == tf.TOKENS or 0 <= index < -(-tokens[0] // flow.tile_rows))
    if not 0 <= route < len(flow.routes):
        return False
    plan = flow.routes[route]
    if extent == tf.RELAYED:
        return not plan.node_size and any(p.node_size and p.once_of in (route, plan.once_of) for p in flow.routes)
    if extent in (tf.REPLICA, tf.REPLICAS):
        return plan.placement is not None and 0 <= index < plan.num_local_experts
    sizes = {tf.RECEIVED: None, tf.ENTRIES: None, tf.SLOT: plan.num_slots, tf.EXPERT: plan.num_local_experts,
             tf.TILE_ENTRIES: plan.num_returns, tf.SENT_TO: flow.ep_size, tf.RETURNED_TO: flow.ep_size}
    size = sizes.get(extent, plan.num_local_experts * flow.ep_size)
    return size is None or 0 <= index < size


def _odd_signal(flow, op, kind, amount, remote):
    """A signal that the interpreter and the kernel take differently, or refuse."""
    if kind not in (0, 1, 2) or amount not in (0, 1) or remote not in (0, 1, 2):
        return "a signal of unknown kind"
    if kind == tf.SLOT_EXPERT and kind_of(op) == "slots" and flow.routes[op.domain.route].num_local_experts == 1:
        kind = tf.STATIC  # there is only one event it can be about
    if op.opcode in TRANSFERS:
        if amount == tf.COUNT and (remote != tf.LOCAL or kind != tf.STATIC):
            return "a transfer counts tasks, and not one for itself"
        if kind == tf.SLOT_EXPERT and kind_of(op) != "slots":
            return "a transfer of no slot signals by expert"
        return "a notification signals by tile" if kind == tf.ENTRY_TILE and op.opcode == "NOTIFY" else None
    if moves_copies(op):
        is_alone = (kind, amount, remote) == (tf.STATIC, tf.COUNT, tf.LOCAL)
        return None if is_alone or (kind, amount, remote) == (tf.SLOT_EXPERT, tf.ROWS, tf.PEER) else "a copy by another way"
    if remote == tf.PEER or (remote != tf.LOCAL and flow.ep_size > 1):
        return "a local task signals another rank"
    if op.opcode == "FAN_OUT" and kind == tf.ENTRY_TILE:
        return None if amount == tf.ROWS else "a fan_out counts tasks by slot"
    if kind == tf.ENTRY_TILE or (kind == tf.SLOT_EXPERT and kind_of(op) != "slots"):
        return "a local task signals by what it has not"
    return "a task over experts signals rows" if kind_of(op) == "experts" and amount == tf.ROWS else None
