"""Waits, signals and events: they name what exists, and what the signals of an event add up to is its threshold."""

from __future__ import annotations

import collections

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.ir.taskflow_text import event_name, task_name
from hpmoe.support.errors import VerifyError
from hpmoe.verification.counting import Counting
from hpmoe.verification.fault import fail
from hpmoe.verification.order import Order
from hpmoe.verification.rows import spans

# What the kernel knows of the columns of waits and signals, from 0 on.
KNOWN = {"wait": {"kind": (tf.STATIC, tf.SLOT_EXPERT)},
         "signal": {"kind": (tf.STATIC, tf.SLOT_EXPERT, tf.ENTRY_TILE), "amount": (tf.ROWS, tf.COUNT),
                    "remote": (tf.LOCAL, tf.PEER, tf.EVERY_RANK)}}


def check_tables(flow: tf.Taskflow) -> None:
    """Waits and signals name tasks and events that exist, in a way the kernel knows."""
    for name, table in (("wait", flow.waits), ("signal", flow.signals)):
        for column, bound in (("task", flow.num_tasks), ("event", len(flow.events))):
            bad = np.flatnonzero((table[column] < 0) | (table[column] >= bound))
            if len(bad):
                raise VerifyError(f"verify: a {name} names {column} {table[column][bad[0]]}; there are {bound}")
    for name, table in (("wait", flow.waits), ("signal", flow.signals)):
        for column, known in KNOWN[name].items():
            for row in table[(table[column] < 0) | (table[column] > known[-1])][:1]:
                fail(flow, f"a {name} of task t{row['task']} has {column} {row[column]}; it must be one of {known}",
                     int(row["task"]))
        _check_spread(flow, name, table[table["kind"] != tf.STATIC])


def _check_spread(flow: tf.Taskflow, name: str, table: np.ndarray) -> None:
    """The kernel finds the event of such a wait or signal at run time, among as many as there are experts or tiles."""
    with_slot = np.array([op.domain.is_slots and not op.primitive.sends_rows for op in flow.ops], bool)
    for row in table[~with_slot[flow.tasks["op"][table["task"]]]][:1] if name == "wait" else ():
        task = int(row["task"])
        fail(flow, f"task t{task} {task_name(flow, task)} waits by expert and has no slot of its own", task)
    for row in table[table["event"] + spans(flow, table) > len(flow.events)][:1]:
        fail(flow, f"a {name} of task t{row['task']} may be about an event past the last, {len(flow.events) - 1}",
             int(row["task"]))


def with_blocks(flow: tf.Taskflow) -> tf.Taskflow:
    """The same taskflow, with blocks that hold the events which one wait or signal may be about, whatever `blocks` says."""
    of, sizes = flow.events["block"], np.array([b.size for b in flow.blocks], np.int64)
    firsts = np.cumsum(sizes) - sizes
    dynamic = np.concatenate([_ranges(flow, table) for table in (flow.waits, flow.signals)])
    if np.array_equal(of, np.repeat(np.arange(len(sizes)), sizes)) and (of[dynamic[:, 0]] == of[dynamic[:, 1]]).all() \
            and all(b.first == f for b, f in zip(flow.blocks, firsts, strict=True) if b.size):
        return flow
    joined = np.zeros(len(of) + 1, bool)
    for first, last in dynamic:
        joined[first + 1:last + 1] = True
    events = flow.events.copy()
    events["block"] = np.cumsum(~joined[:len(of)]) - 1
    _, firsts, sizes = np.unique(events["block"], return_index=True, return_counts=True)
    return flow.replace(events=events, blocks=tuple(tf.EventBlock(f"event{first}", "", (), int(first), int(size), size > 1)
                                                    for first, size in zip(firsts, sizes, strict=True)))


def _ranges(flow: tf.Taskflow, table: np.ndarray) -> np.ndarray:
    """First and last event of what each wait or signal that is not static may be about, [n, 2]."""
    table = table[table["kind"] != tf.STATIC]
    keys = np.unique(table["event"].astype(np.int64) << 32 | table["event"] + spans(flow, table) - 1)
    return np.stack(np.divmod(keys, 1 << 32), axis=1)


def check_counts(flow: tf.Taskflow, derived: tf.Taskflow) -> np.ndarray:
    """What the signals of an event add up to is its threshold. Returns the derived event that each stands for, or -1.

    An event that is derived, with the signals that are derived for it, needs no proof; any other is counted, and then stands
    for a derived one that has heard of the same tasks.
    """
    number = derived_events(flow, derived)
    if _signals_as_derived(flow, derived, number):
        return number
    order, counting = Order(flow), Counting(flow)
    of_derived = _abouts(Order(derived))
    alike, heard = ({key: n for n, key in reversed(list(enumerate(keys)))}  # of several that are alike the first
                    for keys in (of_derived, map(_heard, of_derived)))
    for e, key in enumerate(_abouts(order)):
        if number[e] >= 0 and of_derived[number[e]] == key:
            continue
        after = number[e - 1] + 1 if e else 0
        is_next = 0 < after < len(of_derived) and of_derived[after] == key
        found = after if is_next else alike.get(key, -1)
        if found < 0:
            if not counting.is_exact(e, order.signals_about(e)):
                _fail_count(flow, e, key[1], of_derived[number[e]][1] if number[e] >= 0 else ())
            found = heard.get(_heard(key), -1)
        number[e] = found
    return number


def derived_events(flow: tf.Taskflow, derived: tf.Taskflow) -> np.ndarray:
    """The derived event that is equal to each, or -1."""
    if flow.events is derived.events:
        return np.arange(len(flow.events))
    names, wanted = ([(b.name, b.unit, b.columns) for b in f.blocks] for f in (flow, derived))
    index = {name: i for i, name in enumerate(wanted)}
    block = np.array([i if wanted[i:i + 1] == [name] else index.get(name, -1) for i, name in enumerate(names)] or [0])
    keys, wanted = (b.astype(np.int64) << 32 | f.events["index"].astype(np.uint32)
                    for b, f in ((block[flow.events["block"]], flow), (derived.events["block"], derived)))
    place = np.minimum(np.searchsorted(wanted, keys), max(0, len(wanted) - 1))
    same = wanted[place] == keys if len(wanted) else np.zeros(len(keys), bool)
    for column in ("extent", "mult", "route") if len(wanted) else ():
        same &= derived.events[column][place] == flow.events[column]
    return np.where(same, place, -1)


def _signals_as_derived(flow: tf.Taskflow, derived: tf.Taskflow, number: np.ndarray) -> bool:
    """Whether every event is a derived one and the signals are those that are derived for them."""
    if (number < 0).any() or (np.diff(number) <= 0).any():
        return False
    new = np.full(len(derived.events), -1)
    new[number] = np.arange(len(number))
    for first, last in _ranges(derived, derived.signals):
        kept = new[first:last + 1]
        if (kept >= 0).any() and ((kept < 0).any() or kept[-1] - kept[0] != last - first):
            return False
    wanted = derived.signals[new[derived.signals["event"]] >= 0].copy()
    wanted["event"] = new[wanted["event"]]
    return np.array_equal(flow.signals, wanted)


def _abouts(order: Order) -> list[tuple]:
    """(what it counts, all signals about it but for their event) of each event; rows that a rank sends to itself may be
    signalled in either way."""
    out = []
    for e, (*counted, _) in enumerate(order.flow.events.tolist()):
        about = sorted((s.task, e - s.event, s.kind, s.amount, tf.LOCAL if order.is_to_itself(s) else s.remote)
                       for s in order.signals_about(e))
        out.append((tuple(counted), tuple(about)))
    return out


def _heard(about: tuple) -> frozenset:
    """What an exact event has heard of, however often each was counted: a task that is done, or that has made rows."""
    return frozenset(about[1])


def _fail_count(flow: tf.Taskflow, event: int, about: tuple[tuple, ...], wanted: tuple[tuple, ...]) -> None:
    """Names the first signal that is too many or missing, or the event."""
    name = event_name(flow, event)
    for signal, times in collections.Counter(about).items():
        if times > 1:
            fail(flow, f"task t{signal[0]} {task_name(flow, signal[0])} signals {name} twice", signal[0])
    for signal in [s for s in wanted if s not in about][:1]:
        fail(flow, f"task t{signal[0]} {task_name(flow, signal[0])} must signal {name} and does not, or not with that "
             "amount and rank", signal[0])
    for signal in [s for s in about if wanted and s not in wanted][:1]:
        fail(flow, f"task t{signal[0]} {task_name(flow, signal[0])} signals {name}, to which it adds nothing", signal[0])
    columns = ", ".join(f"{c} {flow.events[event][c]}" for c in ("extent", "index", "mult", "route"))
    waiting = flow.waits["task"][flow.waits["event"] == event]
    task = int(waiting[0]) if len(waiting) else about[0][0] if about else None
    fail(flow, f"event {name} has {columns}; what its producers signal does not add up to that", task)
