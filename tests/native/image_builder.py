"""Packs images by hand, one buffer, event, op and task at a time, and MoE layers made of them."""

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
    Amount,
    Cols,
    Domain,
    Dtype,
    Extent,
    Index,
    Opcode,
    Remote,
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


class MoeLayer:
    """dispatch, GMM, SWIGLU, GMM, return and weighted sum; `style` is how rows travel: put, notify or all_to_all."""

    def __init__(
        self, *, ep_size, num_queues, style, num_tokens, num_experts=4, top_k=2, hidden=6, inner=5, tile_rows=4
    ):
        b = self.builder = ImageBuilder(ep_size, tile_rows, num_queues)
        self.style, self.shape = style, (num_tokens, num_experts, top_k, hidden, inner)
        local, entries = num_experts // ep_size, num_tokens * top_k
        self.num_slots = -(-entries * ep_size // tile_rows) + local
        received = self.num_slots * tile_rows
        self.route = b.route(num_experts, num_tokens, top_k, self.num_slots)
        self.x, self.weights = b.buffer(hidden, num_tokens), b.buffer(top_k, num_tokens)
        self.w1, self.w2 = (b.buffer(n, local * k, k) for k, n in ((hidden, 2 * inner), (inner, hidden)))
        self.a, self.b, self.c, self.d = (b.buffer(n, received) for n in (hidden, 2 * inner, inner, hidden))
        self.back, self.out = b.buffer(hidden, entries), b.buffer(hidden, num_tokens)
        self.num_tiles = -(-num_tokens // tile_rows)
        self.slots, self.peers = range(self.num_slots), range(ep_size)
        self.add_dispatch()
        self.add_experts()
        self.add_return()
        self.image = b.pack()

    def add_dispatch(self):
        b, remote = self.builder, {"remote": Remote.PEER}
        there = ((self.a, Rows.PEER, Cols.ALL), (self.x, Rows.TOKENS, Cols.ALL))
        if self.style == "put":
            self.arrived = [b.event(Extent.SLOT, s) for s in self.slots]
            put = b.op(Opcode.PUT, Domain.SLOTS, *there, route=self.route)
            for j in self.peers:
                for s in self.slots:
                    b.task(put, s, peer=j, signals=[(self.arrived[s], remote)])
            return
        self.arrived = [b.event(Extent.RECEIVED)] * self.num_slots
        if self.style == "all_to_all":
            exchange = b.op(Opcode.ALL_TO_ALL, Domain.ONCE, *there, route=self.route)
            b.task(exchange, signals=[(self.arrived[0], {"remote": Remote.EVERY})])
            return
        put = b.op(Opcode.PUT, Domain.SLOTS, *there, route=self.route)
        notify = b.op(Opcode.NOTIFY, Domain.ONCE, route=self.route)
        local = self.shape[1] // len(self.peers)
        for j in self.peers:
            sent = [b.event(Extent.SENT_TO_EXPERT, j * local + e) for e in range(local)]
            for s in self.slots:
                b.task(put, s, peer=j, signals=[(sent[0], {"kind": Index.SLOT_EXPERT})])
            for e in range(local):
                b.task(notify, e, peer=j, waits=[sent[e]], signals=[(self.arrived[0], remote)])

    def add_experts(self):
        b, inner, hidden = self.builder, self.shape[4], self.shape[3]
        expert = (Rows.SLOT_EXPERT, Cols.OWN)
        up = b.op(Opcode.GMM, Domain.SLOTS, (self.b, *OWN), (self.a, *OWN_ALL), (self.w1, *expert), route=self.route)
        act = b.op(Opcode.SWIGLU, Domain.SLOTS, (self.c, *OWN), (self.b, *OWN), (self.b, *OWN, inner), route=self.route)
        down = b.op(Opcode.GMM, Domain.SLOTS, (self.d, *OWN), (self.c, *OWN_ALL), (self.w2, *expert), route=self.route)
        self.done = [b.event(Extent.SLOT, s) for s in self.slots]
        for s in self.slots:
            up_done, act_done = b.event(Extent.SLOT, s, mult=2), b.event(Extent.SLOT, s)
            for half in (0, inner):
                b.task(up, s, (half, inner), waits=[self.arrived[s]], signals=[up_done])
            b.task(act, s, (0, inner), waits=[up_done], signals=[act_done])
            b.task(down, s, (0, hidden), waits=[act_done], signals=[self.done[s]])

    def add_return(self):
        b, remote = self.builder, {"remote": Remote.PEER}
        here = ((self.back, Rows.ENTRIES, Cols.ALL), (self.d, *OWN_ALL))
        by_tile = {"kind": Index.ENTRY_TILE}
        if self.style == "put":
            home = [b.event(Extent.TILE_ENTRIES, i) for i in range(self.num_tiles)]
            back = b.op(Opcode.PUT_BACK, Domain.SLOTS, *here, route=self.route)
            for j in self.peers:
                for s in self.slots:
                    b.task(back, s, peer=j, waits=[self.done[s]], signals=[(home[0], by_tile | remote)])
        elif self.style == "all_to_all":
            home = [b.event(Extent.TILE_ENTRIES, i) for i in range(self.num_tiles)]
            back = b.op(Opcode.ALL_TO_ALL_BACK, Domain.ONCE, *here, route=self.route)
            b.task(back, waits=self.done, signals=[(home[0], by_tile | {"remote": Remote.EVERY})])
        else:
            home = [b.event(Extent.ENTRIES)] * self.num_tiles
            back = b.op(Opcode.PUT_BACK, Domain.SLOTS, *here, route=self.route)
            notify = b.op(Opcode.NOTIFY, Domain.ONCE, route=self.route, param=(1,))
            for j in self.peers:
                gone = b.event(Extent.RETURNED_TO, j)
                for s in self.slots:
                    b.task(back, s, peer=j, waits=[self.done[s]], signals=[gone])
                b.task(notify, -1, peer=j, waits=[gone], signals=[(home[0], remote)])
        total = (self.out, *OWN), (self.back, Rows.ENTRIES, Cols.OWN), (self.weights, *OWN_ALL)
        rows = {"num_rows": self.shape[0], "clipped": 1, "route": self.route}
        reduce = b.op(Opcode.REDUCE, Domain.TILES, *total, **rows)
        finished = b.event(Extent.ONE, mult=self.num_tiles)
        for i in range(self.num_tiles):
            b.task(reduce, i, (0, self.shape[3]), waits=[home[i]], signals=[(finished, {"amount": Amount.COUNT})])

    def make_buffers(self, rng, num_tokens):
        """Random inputs and empty outputs of every rank; each token's experts are distinct."""
        tokens, num_experts, top_k, *_ = self.shape
        ranks = []
        for count in num_tokens:
            arrays = []
            for table in self.builder.tables["buffers"]:
                kind = np.int32 if table["dtype"] == Dtype.INT32 else np.float32
                arrays.append(np.zeros((table["rows"], table["cols"]), kind))
            arrays[0][:] = np.argsort(rng.random((tokens, num_experts)))[:, :top_k]
            for index in (self.x, self.weights, self.w1, self.w2):
                arrays[index][:] = rng.standard_normal(arrays[index].shape)
            arrays[0][count:] = -1  # padding is never read
            ranks.append(arrays)
        return ranks

    def expected(self, ranks, num_tokens):
        """The layer in float64, a row of each rank's output a token."""
        tokens, num_experts, top_k, hidden, inner = self.shape
        w1 = np.concatenate([arrays[self.w1] for arrays in ranks]).reshape(num_experts, hidden, 2 * inner)
        w2 = np.concatenate([arrays[self.w2] for arrays in ranks]).reshape(num_experts, inner, hidden)
        w1, w2 = w1.astype(float), w2.astype(float)
        outputs = []
        for arrays, count in zip(ranks, num_tokens, strict=True):
            out = np.zeros((tokens, hidden))
            for t in range(count):
                for k, e in enumerate(arrays[0][t]):
                    h = arrays[self.x][t] @ w1[e]
                    act = h[:inner] / (1 + np.exp(-h[:inner])) * h[inner:]
                    out[t] += arrays[self.weights][t, k] * (act @ w2[e])
            outputs.append(out)
        return outputs
