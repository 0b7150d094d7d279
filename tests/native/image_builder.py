"""Packs images by hand, one buffer, event, op and task at a time."""

import numpy as np

from hpmoe.kernels.image import pack_image
from hpmoe.kernels.protocol import (
    BUFFER,
    EVENT_RUN,
    OP,
    PRIMITIVES,
    ROUTE,
    SHARE,
    SIGNAL,
    TASK,
    TASK_TEMPLATE,
    WAIT,
    Cols,
    Dtype,
    Extent,
    Index,
    Rows,
)

OWN = (Rows.OWN, Cols.OWN)
OWN_ALL = (Rows.OWN, Cols.ALL)


def record(dtype, /, **fields):
    """One element of a structured dtype, zero where not named."""
    value = np.zeros((), dtype)
    for name, item in fields.items():
        value[name] = item
    return value


def table_of(records, dtype):
    """One array of the records."""
    return np.concatenate([np.zeros(0, dtype), *(value[None] for value in records)])


class ImageBuilder:
    """Collects the tables of an image; each method returns the index of what it adds."""

    def __init__(self, ep_size=1, tile_rows=4, num_queues=1):
        self.ep_size, self.tile_rows = ep_size, tile_rows
        self.tables = {name: [] for name in ("ops", "buffers", "event_runs", "waits", "signals", "routes", "shares", "stops",
                                             "templates")}
        self.queues = [[] for _ in range(num_queues)]
        self.places = {}  # the tasks of each op

    def _add(self, table, value):
        self.tables[table].append(value)
        return len(self.tables[table]) - 1

    def buffer(self, cols, rows=0, rows_per_expert=0, dtype=Dtype.FLOAT32):
        return self._add("buffers", record(BUFFER, cols=cols, rows=rows, rows_per_expert=rows_per_expert, dtype=dtype))

    def route(self, num_experts, num_tokens, top_k, num_slots):
        ids = self.buffer(top_k, num_tokens, dtype=Dtype.INT32)
        sizes = {"num_experts": num_experts, "num_local_experts": num_experts // self.ep_size, "top_k": top_k}
        return self._add("routes", record(ROUTE, ids_buffer=ids, of=-1, over=-1, first_stop=-1, num_slots=num_slots,
                                          num_tokens=num_tokens, return_tokens=self.tile_rows, alignment=1, tp_size=1,
                                          **sizes))

    def event(self, extent=Extent.ONE, index=0, mult=1, route=0):
        return self._add("event_runs", record(EVENT_RUN, extent=extent, index=index, mult=mult, route=route))

    def op(self, opcode, domain, *operands, route=-1, num_rows=0, clipped=0, blocks=1, param=()):
        """An operand is a float, or (buffer, rows mode, cols mode[, offset])."""
        value = record(OP, opcode=opcode, domain=domain, route=route, num_rows=num_rows, clipped=clipped, blocks=blocks)
        value["num_operands"] = len(operands)
        value["num_outputs"] = len(PRIMITIVES[opcode].outputs) if opcode in PRIMITIVES else min(len(operands), 1)
        value["param"][: len(param)] = param
        for slot, operand in zip(value["operands"], operands, strict=False):
            if isinstance(operand, float):
                slot["buffer"], slot["value"] = -1, operand
            else:
                slot["buffer"], slot["rows"], slot["cols"] = operand[:3]
                slot["offset"] = operand[3] if len(operand) > 3 else 0
        return self._add("ops", value)

    def task(self, op, row=0, cols=(0, 0), peer=-1, waits=(), signals=(), queue=None):
        """`waits` are event indices or (event, kind); `signals` are events or (event, dict of Signal fields)."""
        template = record(TASK_TEMPLATE, op=op, num_waits=len(waits), num_signals=len(signals))
        template["first_wait"], template["first_signal"] = len(self.tables["waits"]), len(self.tables["signals"])
        for wait in waits:
            event, kind = wait if isinstance(wait, tuple) else (wait, Index.STATIC)
            self._add("waits", record(WAIT, event=event, kind=kind))
        for signal in signals:
            event, fields = signal if isinstance(signal, tuple) else (signal, {})
            self._add("signals", record(SIGNAL, event=event, **fields))
        place = row, peer, *cols
        self.places.setdefault(op, []).append(place)
        shortest = min(range(len(self.queues)), key=lambda q: len(self.queues[q]))
        self.queues[shortest if queue is None else queue].append((self._add("templates", template), op, place))

    def pack(self):
        """Every task has a template of its own, and the grid of an op is the smallest that holds its tasks."""
        dtypes = {"ops": OP, "buffers": BUFFER, "event_runs": EVENT_RUN, "waits": WAIT, "signals": SIGNAL, "routes": ROUTE,
                  "shares": SHARE, "stops": np.dtype("<i4"),
                  "templates": TASK_TEMPLATE}
        sections = {name: table_of(self.tables[name], dtype) for name, dtype in dtypes.items()}
        sections["event_runs"]["first"] = np.arange(len(self.tables["event_runs"]))
        for op, places in self.places.items():
            rows, peers, firsts, widths = map(np.array, zip(*places, strict=True))
            grid = sections["ops"][op]
            grid["first_row"] = min(rows.min(), 0)
            grid["num_units"], grid["num_peers"] = rows.max() - grid["first_row"] + 1, peers.max() + 1
            grid["cols"], grid["tile_cols"] = (firsts + widths).max(), widths.max()
        tasks = [(template, _index(sections["ops"][op], *place)) for queue in self.queues for template, op, place in queue]
        index_bits = max((index for _, index in tasks), default=0).bit_length()
        sections["tasks"] = np.array([template << index_bits | index for template, index in tasks], TASK)
        sections["queues"] = np.cumsum([0, *map(len, self.queues)], dtype=np.int32)
        ranks = np.arange(self.ep_size, dtype=np.int32)
        sections["peer_order"] = np.tile(((ranks[:, None] + ranks) % self.ep_size).reshape(-1), 2).astype(np.int32)
        return pack_image(sections, ep_size=self.ep_size, tile_rows=self.tile_rows, index_bits=index_bits,
                          num_events=len(sections["event_runs"]))


def _index(grid, row, peer, col, cols):
    """Returns the index of a task in the grid of its operation."""
    tiles = -(-int(grid["cols"]) // int(grid["tile_cols"])) if cols else 1
    tile = col // int(grid["tile_cols"]) if cols else 0
    assert not cols or (col, cols) == (tile * grid["tile_cols"], min(grid["tile_cols"], grid["cols"] - col)), "no such tile"
    return ((row - int(grid["first_row"])) * max(int(grid["num_peers"]), 1) + max(peer, 0)) * tiles + tile
