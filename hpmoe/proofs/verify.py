"""verify: proves that a Taskflow is a correct schedule for every routing, or raises with the IR around the fault."""

from __future__ import annotations

import collections

import numpy as np

from hpmoe import taskflow as tf
from hpmoe.dependencies import derive_dependencies
from hpmoe.errors import VerifyError, check_argument
from hpmoe.lifetimes import memory_fault
from hpmoe.native.planner import are_queues, find_runnable, kept_waits, prune_waits
from hpmoe.proofs.counting import Counting
from hpmoe.proofs.cycles import find_stuck
from hpmoe.proofs.form import check_form, check_sizes
from hpmoe.proofs.implied import Implication
from hpmoe.proofs.made_for import over_what_it_was_made_for
from hpmoe.proofs.order import Order
from hpmoe.proofs.regions import region_fault
from hpmoe.proofs.rows import op_spans, spans
from hpmoe.taskflow_text import event_name, task_name, taskflow_window

UNITS = {"aic": 1, "aiv": 2}


def verify(flow: tf.Taskflow) -> None:
    """Raises VerifyError unless the taskflow is a correct schedule whatever the routing.

    Proved of the operations as tile_partition or `hpmoe.taskflow.rebuild` made them, for any rows that the slots have room
    for: they touch what exists, write every element once and read nothing that nobody writes; the tasks are exactly theirs;
    each task is in one queue of its unit, once; what the signals of an event add up to is its threshold; whoever reads a
    region starts after all who write it; and no cycle runs through queue order and events, across ranks too. A wait may be
    missing where what else the task waits for, or what runs before it, implies it; a wait that nothing asks for is no fault.

    Example:
        >>> import hpmoe
        >>> flow = hpmoe.tile_partition(hpmoe.swiglu, rows=4).lower(hpmoe.Aval((8, 6), "float32"))
        >>> hpmoe.verify(flow.replace(tasks=flow.tasks[:1]))
        Traceback (most recent call last):
        ...
        hpmoe.errors.VerifyError: verify: swiglu has 1 tasks of swiglu, its 2 tiles need 2
        >    t0 swiglu[rows 0:4, cols 0:3] x -> a wait -  signal -
    """
    check_argument(isinstance(flow, tf.Taskflow), "hpmoe.verify", "flow", f"a {type(flow).__name__}",
                   "a Taskflow, as f.lower(*args) makes it after tile_partition")
    check_form(flow)
    if len(flow.queues) and flow.machine is None:
        raise VerifyError(f"verify: there are {len(flow.queues)} queues and no machine that has them")
    try:
        if flow.made is None:
            check_sizes(flow)
        _prove(over_what_it_was_made_for(flow))
    except VerifyError:
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise VerifyError(f"verify: operations, buffers and routes do not fit together: {error}") from error


def _prove(flow: tf.Taskflow) -> None:
    _check_tasks(flow)
    _check_regions(flow)
    _check_tokens(flow)
    _check_peer_order(flow)
    _check_memory(flow)
    if flow.queues:
        check_queues(flow)
    tables = dict(zip(("events", "waits", "signals", "blocks"),
                      derive_dependencies(flow.buffers, flow.ops, flow.routes, flow.tile_rows), strict=True))
    if all(getattr(flow, name) is table for name, table in tables.items()):
        _check_acyclic(flow)
        return
    derived = flow.replace(**tables)
    thinned = _thinned(flow, derived)
    if thinned is not None:
        flow, missing = thinned
        if not find_runnable(derived).all():  # with waits that it has not, and would not need to have
            _check_acyclic(flow)
        _check_missing(flow, derived, missing)
        return
    _check_tables(flow)
    flow = _with_blocks(flow)
    _check_acyclic(flow)
    _check_order(flow, derived, _check_counts(flow, derived))


def _fail(flow: tf.Taskflow, what: str, task: int | None = None) -> None:
    window = "" if task is None or not flow.num_tasks else "\n" + taskflow_window(flow, task)
    raise VerifyError(f"verify: {what}{window}")


def _check_regions(flow: tf.Taskflow) -> None:
    fault = region_fault(flow.buffers, flow.ops, flow.routes, flow.inputs, flow.outputs)
    if fault is not None:
        tasks = np.flatnonzero(flow.tasks["op"] == fault[1]) if fault[1] is not None else ()
        _fail(flow, fault[0], int(tasks[0]) if len(tasks) else None)


def _check_tokens(flow: tf.Taskflow) -> None:
    """Tasks leave out padding only where rows are tokens: their events count as many rows as a rank has tokens."""
    num_tokens = max([plan.num_tokens for plan in flow.routes] or [op.clipped_rows for op in flow.ops], default=0)
    for i, op in enumerate(flow.ops):
        if op.clipped_rows not in (0, num_tokens):
            _fail(flow, f"{op.label} leaves out padding, but its rows are {op.clipped_rows} and a rank has {num_tokens} "
                  "tokens", int(np.flatnonzero(flow.tasks["op"] == i)[0]))


def _check_tasks(flow: tf.Taskflow) -> None:
    """Each tile of each operation is a task, once."""
    expected = tf.make_tasks(flow.ops)
    if flow.tasks is expected:
        return
    bad = np.flatnonzero((flow.tasks["op"] < 0) | (flow.tasks["op"] >= len(flow.ops)))
    if len(bad):
        raise VerifyError(f"verify: task t{bad[0]} is of operation {flow.tasks['op'][bad[0]]}, there are {len(flow.ops)}")
    got, want = (np.bincount(t["op"], minlength=len(flow.ops)) for t in (flow.tasks, expected))
    for i in np.flatnonzero(got != want)[:1]:
        _fail(flow, f"{flow.name} has {got[i]} tasks of {flow.ops[i].label}, its {want[i]} tiles need {want[i]}", 0)
    for t in np.flatnonzero(flow.tasks != expected)[:1]:
        _fail(flow, f"task t{t} is {task_name(flow, int(t))}; its place is that of another tile of "
                    f"{flow.ops[flow.tasks[t]['op']].label}", int(t))


def _check_peer_order(flow: tf.Taskflow) -> None:
    order = flow.peer_order
    is_table = isinstance(order, np.ndarray) and order.dtype.kind in "iu" and order.shape == (flow.ep_size, flow.ep_size)
    if not is_table or not _are_permutations(order):
        raise VerifyError(f"verify: peer_order is {np.asarray(order).tolist()}; each row must name each of {flow.ep_size} "
                          "ranks once")


def _are_permutations(rows: np.ndarray) -> bool:
    if rows.size and not 0 <= rows.min() <= rows.max() < len(rows):
        return False
    is_named = np.zeros(rows.shape, bool)
    is_named[np.arange(len(rows))[:, None], rows] = True
    return bool(is_named.all())


def _check_memory(flow: tf.Taskflow) -> None:
    """Only temporaries share memory, one after the other."""
    if fault := memory_fault(flow.buffers, flow.ops, flow.routes):
        raise VerifyError(f"verify: {fault}")


def check_queues(flow: tf.Taskflow) -> None:
    """Raises VerifyError unless each task is in one queue of its unit, once."""
    for q in [q for q, queue in enumerate(flow.queues) if len(queue) and np.asarray(queue).dtype.kind not in "iu"][:1]:
        raise VerifyError(f"verify: queue {q} is of {np.asarray(flow.queues[q]).dtype}; it must be of the numbers of tasks")
    if len(flow.queues) != flow.machine.num_queues:
        raise VerifyError(f"verify: there are {len(flow.queues)} queues, {flow.machine.name} has "
                          f"{flow.machine.num_queues}")
    takes = sum(np.isin(np.arange(len(flow.queues)), flow.machine.queues_of(u)) * bit for u, bit in UNITS.items())
    if are_queues(flow, np.array([UNITS[op.unit] for op in flow.ops], np.uint8), takes):
        return
    listed = np.concatenate([np.asarray(q) for q in flow.queues])
    bad = np.flatnonzero((listed < 0) | (listed >= flow.num_tasks))
    if len(bad):
        raise VerifyError(f"verify: a queue names task t{listed[bad[0]]}; there are {flow.num_tasks}")
    times = np.bincount(listed, minlength=flow.num_tasks)
    for t in np.flatnonzero(times != 1)[:1]:
        _fail(flow, f"task t{t} {task_name(flow, int(t))} is in the queues {times[t]} times, not once", int(t))
    is_aic, lengths = flow.units()[listed], [len(q) for q in flow.queues]
    for unit, is_it in (("aic", is_aic), ("aiv", ~is_aic)):
        refused = [q not in flow.machine.queues_of(unit) for q in range(len(flow.queues))]
        for i in np.flatnonzero(is_it & np.repeat(refused, lengths))[:1]:
            t, queue = int(listed[i]), int(np.repeat(np.arange(len(lengths)), lengths)[i])
            _fail(flow, f"task t{t} {task_name(flow, t)} is {unit} work in queue {flow.machine.queue_name(queue)}", t)


def _check_tables(flow: tf.Taskflow) -> None:
    """Waits and signals name tasks and events that exist, in a way the kernel knows."""
    for name, table in (("wait", flow.waits), ("signal", flow.signals)):
        for column, bound in (("task", flow.num_tasks), ("event", len(flow.events))):
            bad = np.flatnonzero((table[column] < 0) | (table[column] >= bound))
            if len(bad):
                raise VerifyError(f"verify: a {name} names {column} {table[column][bad[0]]}; there are {bound}")


    kinds = {"wait": {"kind": (tf.STATIC, tf.SLOT_EXPERT)},
             "signal": {"kind": (tf.STATIC, tf.SLOT_EXPERT, tf.ENTRY_TILE), "amount": (tf.ROWS, tf.COUNT),
                        "remote": (tf.LOCAL, tf.PEER, tf.EVERY_RANK)}}
    for name, table in (("wait", flow.waits), ("signal", flow.signals)):
        for column, known in kinds[name].items():
            for row in table[(table[column] < 0) | (table[column] > known[-1])][:1]:
                _fail(flow, f"a {name} of task t{row['task']} has {column} {row[column]}; it must be one of {known}",
                      int(row["task"]))
        _check_spread(flow, name, table[table["kind"] != tf.STATIC])


def _check_spread(flow: tf.Taskflow, name: str, table: np.ndarray) -> None:
    """The kernel finds the event of such a wait or signal at run time, among as many as there are experts or tiles."""
    with_slot = np.array([op.domain.kind == "slots" and op.opcode != "PUT" for op in flow.ops], bool)
    for row in table[~with_slot[flow.tasks["op"][table["task"]]]][:1] if name == "wait" else ():
        task = int(row["task"])
        _fail(flow, f"task t{task} {task_name(flow, task)} waits by expert and has no slot of its own", task)
    for row in table[table["event"] + spans(flow, table) > len(flow.events)][:1]:
        _fail(flow, f"a {name} of task t{row['task']} may be about an event past the last, {len(flow.events) - 1}",
              int(row["task"]))


def _with_blocks(flow: tf.Taskflow) -> tf.Taskflow:
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


def _check_counts(flow: tf.Taskflow, derived: tf.Taskflow) -> np.ndarray:
    """What the signals of an event add up to is its threshold. Returns the derived event that each stands for, or -1.

    An event that is derived, with the signals that are derived for it, needs no proof; any other is counted, and then stands
    for a derived one that has heard of the same tasks.
    """
    number = _derived_events(flow, derived)
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


def _derived_events(flow: tf.Taskflow, derived: tf.Taskflow) -> np.ndarray:
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
            _fail(flow, f"task t{signal[0]} {task_name(flow, signal[0])} signals {name} twice", signal[0])
    for signal in [s for s in wanted if s not in about][:1]:
        _fail(flow, f"task t{signal[0]} {task_name(flow, signal[0])} must signal {name} and does not, or not with that "
                    "amount and rank", signal[0])
    for signal in [s for s in about if wanted and s not in wanted][:1]:
        _fail(flow, f"task t{signal[0]} {task_name(flow, signal[0])} signals {name}, to which it adds nothing", signal[0])
    columns = ", ".join(f"{c} {flow.events[event][c]}" for c in ("extent", "index", "mult", "route"))
    waiting = flow.waits["task"][flow.waits["event"] == event]
    task = int(waiting[0]) if len(waiting) else about[0][0] if about else None
    _fail(flow, f"event {name} has {columns}; what its producers signal does not add up to that", task)


def _thinned(flow: tf.Taskflow, derived: tf.Taskflow) -> tuple[tf.Taskflow, np.ndarray] | None:
    """A flow that is `derived` with fewer waits and events, in its blocks, and which derived waits it has not; else None.

    Its tables need no further proof but that of these waits.
    """
    of = flow.events["block"]
    if len(of) and not 0 <= of.min() <= of.max() < len(flow.blocks):
        return None
    number = _derived_events(flow, derived)
    if (number < 0).any() or (np.diff(number) <= 0).any():
        return None
    has = kept_waits(flow, derived, number, op_spans(derived))
    return None if has is None else (flow.replace(events=derived.events[number], blocks=derived.blocks), ~has)


def _check_order(flow: tf.Taskflow, derived: tf.Taskflow, number: np.ndarray) -> None:
    """Whoever reads a region starts after all who write it: it waits for their event, or that is implied."""
    first, last = flow.waits["event"], flow.waits["event"] + spans(flow, flow.waits) - 1
    breaks = np.cumsum(np.diff(number, prepend=number[:1]) != 1)  # no more where every next event is the next derived one
    known = flow.waits[(number[first] >= 0) & (breaks[first] == breaks[last])].copy()
    known["event"] = number[known["event"]]
    _check_missing(flow, derived, ~np.isin(tf.row_keys(derived.waits), tf.row_keys(known)))


def _check_missing(flow: tf.Taskflow, derived: tf.Taskflow, absent: np.ndarray) -> None:
    """The derived waits that a flow has not are implied by those it has."""
    missing = _needed(derived, ~absent)
    unordered = Implication(flow, derived).unordered(missing) if missing.any() else None
    if unordered is not None:
        t, event, p = unordered
        _fail(flow, f"task t{t} {task_name(flow, t)} reads what {event_name(derived, event)} stands for, which t{p} "
                    f"{task_name(flow, p)} writes, and neither it nor what runs before it waits for it", t)


def _needed(derived: tf.Taskflow, present: np.ndarray) -> np.ndarray:
    """Which derived waits are neither present nor implied by queue order and by waits that are, [derived waits] bool."""
    missing = np.zeros(len(present), bool)
    while derived.queues and not present.all():
        kept = ~missing
        needed = missing.copy()
        asked = derived if kept.all() else derived.replace(waits=derived.waits[kept])
        needed[kept] = prune_waits(asked) & ~present[kept]
        if (needed == missing).all():
            return missing
        missing = needed
    return ~present


def _check_acyclic(flow: tf.Taskflow) -> None:
    """No cycle through events and queue order, across ranks too."""
    for t in find_stuck(flow)[:1]:
        _fail(flow, f"task t{t} {task_name(flow, int(t))} can never run: a cycle leads through what it waits for", int(t))
