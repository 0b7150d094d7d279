"""The text of a Taskflow: provenance, sizes, tile operations, then its tasks by queue, the middle of long lists elided."""

from __future__ import annotations

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.support.known import known

TASKS_SHOWN = 2
AROUND = 2  # tasks on either side of the one that an error is about
QUEUES_SHOWN = 2


def taskflow_text(flow: tf.Taskflow) -> str:
    """Returns a Taskflow's text, with the first tasks of every operation and the last task of each list."""
    sizes = {"ranks": flow.ep_size, "tasks": flow.num_tasks, **flow.deps.sizes(), "slots": flow.num_slots}
    lines = [" | ".join([f"# {flow.name}", *flow.provenance]),
             f"taskflow {flow.name}  " + " ".join(f"{name}={size}" for name, size in sizes.items())]
    for i, route in enumerate(flow.routes):
        what = route.kind.text(flow.buffers[route.ids].name, route.of)
        expected = f", likely {route.expected_rows}," if route.expected_rows != route.max_rows else ""
        lines.append(f"  route {i}: {what}, at most {route.max_rows} received rows{expected} in {route.num_slots} slots of "
                     f"{route.tile_rows}")
    shared = [f"{b.name} in {flow.buffers[b.memory].name}" for b in flow.buffers if b.memory >= 0]
    lines += [f"  memory: {', '.join(shared)}"] if shared else []
    return "\n".join([*lines, *(_queue_lines(flow) if flow.queues else _op_lines(flow))])


def _op_lines(flow: tf.Taskflow) -> list[str]:
    writer, lines = _Lines(flow), []
    for i, op in enumerate(flow.ops):
        tasks = np.flatnonzero(flow.tasks["op"] == i)
        early = ", early" if op.params.is_early else ""
        lines.append(f"  {op.opcode.lower()} ({op.label}, {op.unit}){early}  {_count(len(tasks), 'task')}")
        lines += writer.tasks(tasks)
    return lines


def _queue_lines(flow: tf.Taskflow) -> list[str]:
    """Returns lines for the first queues of each unit with their tasks; other queues are counted."""
    writer, lines, hidden = _Lines(flow), [], 0
    for q, tasks in enumerate(flow.queues):
        unit, number = known(flow.machine).queue_name(q).split(".")
        if int(number) >= QUEUES_SHOWN:
            hidden += 1
            if q + 1 == len(flow.queues) or known(flow.machine).queue_name(q + 1).split(".")[0] != unit:
                lines.append(f"  ... {_count(hidden, 'more queue')} {unit}.{QUEUES_SHOWN} to {unit}.{number}")
                hidden = 0
            continue
        lines.append(f"  queue {unit}.{number}  {_count(len(tasks), 'task')}")
        lines += writer.tasks(np.asarray(tasks))
    return lines


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def taskflow_window(flow: tf.Taskflow, task: int) -> str:
    """Returns the lines of the tasks around one task in its queue, or in program order; errors show them."""
    line = next((q for q in flow.queues if task in q), np.arange(flow.num_tasks))
    here = int(np.flatnonzero(line == task)[0]) if task in line else 0
    near = line[max(0, here - AROUND):here + AROUND + 1]
    texts = task_lines(flow, near)
    return "\n".join((">" if t == task else " ") + text for t, text in zip(near, texts, strict=True))


def task_lines(flow: tf.Taskflow, tasks: np.ndarray) -> list[str]:
    """Returns a line for each of some tasks."""
    return _Lines(flow).tasks(tasks, elide=False)


def task_name(flow: tf.Taskflow, task: int) -> str:
    """Returns a task as printed: `grouped_matmul[slot 0, cols 0:256]`."""
    row = flow.tasks[task]
    op = flow.ops[row["op"]]
    unit = op.domain.unit_text(int(row["row"]), flow.tile_rows)
    parts = [unit] if unit else []
    if row["peer"] >= 0:
        several = len(op.peers_of(row["peer"], flow.ep_size)) > 1
        peers = f"peers {row['peer']}::{op.num_peers}" if several else f"peer {row['peer']}"
        parts[:1] = [f"{parts[0]} -> {peers}" if parts else peers]
    if row["cols"]:
        parts.append(f"cols {row['col']}:{row['col'] + row['cols']}")
    elif op.parts > 1:
        parts.append(f"part {row['col']} of {op.parts}")
    return f"{op.primitive.verb or op.label}[{', '.join(parts)}]"


def buffer_name(flow: tf.Taskflow, buffer: int) -> str:
    """Returns a buffer's name as printed, also for a number without a buffer."""
    return flow.buffers[buffer].name if 0 <= buffer < len(flow.buffers) else f"buffer{buffer}"


def event_name(flow: tf.Taskflow, event: int) -> str:
    """Returns an event as printed: `!c.0` for a unit of buffer c, `!c.all`, `!c.e1` for an expert's rows."""
    events, blocks = flow.deps.events, flow.deps.blocks
    if not 0 <= event < len(events) or not 0 <= events[event]["block"] < len(blocks):
        return f"!event{event}"
    block, index = blocks[events[event]["block"]], int(events[event]["index"])
    unit = {"expert": f"e{index}", "all": "all", "count": "all", "sent": f"sent{index}"}.get(block.unit, str(index))
    columns = "[" + ",".join(f"{a}:{b}" for a, b in block.columns) + "]" if block.columns else ""
    return f"!{block.name}.{unit}{columns}"


class _Lines:
    def __init__(self, flow: tf.Taskflow):
        self.flow, self.events = flow, flow.deps.events
        self.waits = tf.by_task(flow.deps.waits, flow.num_tasks)
        self.signals = tf.by_task(flow.deps.signals, flow.num_tasks)

    def tasks(self, tasks: np.ndarray, elide: bool = True) -> list[str]:
        """Returns a line for each shown task, and one for each run of tasks left out."""
        shown = self._shown(tasks) if elide else np.ones(len(tasks), bool)
        texts = [self._task(int(t)) for t in tasks[shown]]
        widths = [max((len(t[i]) for t in texts), default=0) for i in range(3)]
        lines, skipped, left = [], 0, iter(texts)
        for is_shown in shown:
            if not is_shown:
                skipped += 1
                continue
            if skipped:
                lines.append(f"    ... {skipped} more")
                skipped = 0
            text = next(left)
            lines.append("    " + " ".join([*(f"{c:<{w}}" for c, w in zip(text, widths, strict=False)), text[3]]))
        return lines

    def _shown(self, tasks: np.ndarray) -> np.ndarray:
        """Returns the printed tasks: the first of each operation, the last of all, and single tasks between printed ones."""
        shown = np.zeros(len(tasks), bool)
        ops = self.flow.tasks["op"][tasks]
        for op in np.unique(ops):
            shown[np.flatnonzero(ops == op)[:TASKS_SHOWN]] = True
        shown[-1:] = True
        gap_of_one = ~shown[1:-1] & shown[:-2] & shown[2:]
        shown[1:-1] |= gap_of_one
        return shown

    def _task(self, t: int) -> tuple[str, str, str, str]:
        flow = self.flow
        op = flow.ops[flow.tasks[t]["op"]]
        reads, writes = (" ".join(dict.fromkeys(buffer_name(flow, a.buffer) for a in accesses))
                         for accesses in (op.inputs, op.outputs))
        waits = " ".join(self._wait(w) for w in self.waits(t)) or "-"
        signals = " ".join(self._signal(s) for s in self.signals(t)) or "-"
        return (f"t{t}", task_name(flow, t), f"{reads} -> {writes}" if writes else "", f"wait {waits}  signal {signals}")

    def _wait(self, wait: np.void) -> str:
        name = event_name(self.flow, int(wait["event"]))
        if not 0 <= wait["event"] < len(self.events):
            return name
        event = self.events[wait["event"]]
        if wait["kind"] == tf.SLOT_EXPERT:
            name = name.replace(f".e{event['index']}", ".e(slot)")
        return f"{name} >= {self._threshold(event)}"

    def _threshold(self, event: np.void) -> str:
        mult = int(event["mult"])
        if event["extent"] in (tf.ONE, tf.STATIC_TILE):
            return str(mult)
        return "rows" if mult == 1 else f"{mult}*rows"

    def _signal(self, signal: np.void) -> str:
        name = event_name(self.flow, int(signal["event"]))
        if not 0 <= signal["event"] < len(self.events):
            return name
        event = self.events[signal["event"]]
        if signal["kind"] != tf.STATIC:
            op = self.flow.ops[self.flow.tasks["op"][signal["task"]]]
            dynamic = "e(slot)" if signal["kind"] == tf.SLOT_EXPERT else f"({op.index_text})"
            unit = f"e{event['index']}" if f".e{event['index']}" in name else str(event["index"])
            name = name.replace(f".{unit}", f".{dynamic}", 1)
        remote = int(signal["remote"])
        at = {tf.LOCAL: "", tf.PEER: "@peer", tf.EVERY_RANK: "@every"}.get(remote, f"@{remote}")
        return f"{name}{at} += {'1' if signal['amount'] == tf.COUNT else 'rows'}"


tf.Taskflow.text = taskflow_text
