"""Every task of every rank of a taskflow for one routing: which cells it touches and what it adds to which counter.

Nothing here uses the library's layouts or orderings: rows, cells and counts are told one by one.
"""

import numpy as np
from received_rows import ZEROS, ReceivedRows
from tile_words import kind as kind_of, moves_copies, params

from hpmoe.ir import taskflow as tf

TRANSFERS = ("PUT", "PUT_BACK", "ALL_TO_ALL", "ALL_TO_ALL_BACK", "NOTIFY")


class Expansion(ReceivedRows):
    """Every task of every rank with the cells it touches and the counters it waits for and adds to."""

    def __init__(self, flow, ids, num_tokens=None, weights=None):
        super().__init__(flow, ids, num_tokens, weights)
        self.bases, self.num_cells = {}, 0
        self.homes = {b.memory for b in flow.buffers} - {-1}
        for r in self.ranks:
            for b, buffer in enumerate(flow.buffers):
                if buffer.storage == b:
                    self.bases[r, b] = self.num_cells
                    self.num_cells += self._num_rows(r, b) * buffer.cols

    def _num_rows(self, rank, b):
        buffer = self.flow.buffers[b]
        return buffer.num_rows if buffer.route < 0 else len(self.received[buffer.route][rank][0])

    def cells(self, rank, b, rows, cols=None):
        """Global numbers of the cells in `rows` and `cols` (all where None) of a buffer of a rank."""
        buffer = self.flow.buffers[b]
        whole = cols is None
        cols = range(buffer.cols) if whole else cols
        assert _within(rows, self._num_rows(rank, b)), "rows out of bounds"
        assert _within(cols, buffer.cols), "columns out of bounds"
        base = self.bases[rank, buffer.storage]
        if whole and isinstance(rows, range):
            return np.arange(base + rows.start * buffer.cols, base + rows.stop * buffer.cols)
        rows, cols = (np.arange(x.start, x.stop) if isinstance(x, range) else np.array(x, int) for x in (rows, cols))
        return (base + rows[:, None] * buffer.cols + cols[None, :]).reshape(-1)

    def pieces(self, accesses):
        """{(rank, memory, piece): {storage: nodes}} of the shared memories, from rows of (cell, node)."""
        starts = sorted((base, key) for key, base in self.bases.items())
        owner = np.searchsorted([base for base, _ in starts], accesses[:, 0], side="right") - 1
        halves = {"float16": 1, "bfloat16": 1}
        finest = min([halves.get(b.dtype, 2) for b in self.flow.buffers])
        out = {}
        for i in np.unique(owner).tolist():
            base, (rank, b) = starts[i]
            buffer = self.flow.buffers[b]
            home = b if buffer.memory < 0 else buffer.memory
            if home in self.homes:
                width = halves.get(buffer.dtype, 2) // finest
                for cell, node in accesses[owner == i].tolist():
                    for piece in range((cell - base) * width, (cell - base + 1) * width):
                        out.setdefault((rank, home, piece), {}).setdefault(b, set()).add(node)
        return out

    # Units.

    def limit(self, rank, num_rows, is_clipped):
        """Returns how many of `num_rows` rows exist; if `is_clipped`, only those of tokens."""
        return min(num_rows, self.tokens[rank]) if is_clipped and self.tokens[rank] is not None else num_rows

    def unit(self, rank, op, task):
        """Rows of the task's unit."""
        row, domain = int(task["row"]), op.domain
        if kind_of(op) == "slots":
            return self.part(op, task, self.received[domain.route][rank][1][row][1])
        if kind_of(op) == "tiles":
            start, limit = row * self.flow.tile_rows, self.limit(rank, domain.num_rows, domain.clipped)
            return self.part(op, task, list(range(start, max(start, min(start + self.flow.tile_rows, limit)))))
        return [0]

    def part(self, op, task, rows):
        """The rows of a unit that a task has: all, or those of one of equal parts of a full unit."""
        height = -(-self.flow.tile_rows // op.parts)
        return rows[task["col"] * height:(task["col"] + 1) * height] if op.parts > 1 else rows

    def fanned_out(self, rank, op, task):
        """The rows that a FAN_OUT writes: with the first unit's those that are zeros."""
        experts = self.received[self.flow.routes[op.domain.route].of][rank][0]
        zeros = [i for i, row in enumerate(experts) if row[2] == ZEROS] if task["row"] == 0 else []
        return [*self.fan(rank, op.domain.route, self.unit(rank, op, task)), *zeros]

    def order(self, rank, back):
        """The ranks in the order in which one sends rows out, or back."""
        return self.flow.peer_orders[int(back), rank].tolist()

    def moved(self, rank, op, task):
        """For data sent: (destination rank, row of the receiver, entry of the token's rank) of each row."""
        back = op.opcode.endswith("BACK")
        peers = self.ranks
        if not op.opcode.startswith("ALL"):
            peers = self.order(rank, back)[task["peer"]::op.num_peers]
        out = []
        for peer in peers:
            owner, source = (rank, peer) if back else (peer, rank)
            rows, slots = self.received[op.domain.route][owner]
            chosen = range(len(rows)) if op.opcode.startswith("ALL") else slots[task["row"]][1]
            if any(a.rows.name.startswith("relay") for a in op.operands):
                relayed = [(i, *self.relayed(op.domain.route, owner, i)) for i in chosen]
                out += [(peer, i, entry) for i, at, entry in relayed if at == source]
                continue
            out += [(peer, i, rows[i][2]) for i in chosen if rows[i][1] == source]
        return out

    def notified(self, rank, op, task):
        """The data a notify task speaks for, as `moved`."""
        back = bool(params(op)[0])
        peer = self.order(rank, back)[task["peer"]]
        owner, source = (rank, peer) if back else (peer, rank)
        rows, _ = self.received[op.domain.route][owner]
        return [(peer, i, r[2]) for i, r in enumerate(rows) if r[1] == source and task["row"] in (-1, r[0])]

    def matrices(self, rank, op, task):
        """For matrices on their way: (peer, local expert there, rows of the source, rows there) of each block."""
        placement, (block, height) = self.flow.routes[op.domain.route].placement, params(op)
        own, blocks = placement.num_experts // self.flow.ep_size, -(-height // block)
        copies = [(e // own, e % own, host, slot) for host, slots in enumerate(placement.experts)
                  for slot, e in enumerate(slots) if e >= 0]
        out = []
        for owner in self.ranks:
            for i, (_, expert, host, slot) in enumerate(c for c in copies if c[0] == owner):
                if op.opcode == "REPLICATE":
                    here, number, move = owner, i, (host, own + slot, expert, slot)
                else:
                    here, number, move = host, slot, (owner, expert, slot, i)
                for b in range(blocks):
                    rows = range(b * block, min((b + 1) * block, height))
                    if here == rank and (kind_of(op) == "once" or task["row"] == number * blocks + b):
                        out.append((*move[:2], *([m * height + k for k in rows] for m in move[2:])))
        return out

    # What a task touches.

    def footprint(self, rank, t):
        """(cells read, cells written) by task t of a rank."""
        task = self.flow.tasks[t]
        op = self.flow.ops[task["op"]]
        if op.opcode == "NOTIFY":
            return [], []
        if moves_copies(op):
            parts = [(self.cells(rank, op.operands[1].buffer, source), self.cells(peer, op.operands[0].buffer, target))
                     for peer, _, source, target in self.matrices(rank, op, task)]
            return [p[0] for p in parts], [p[1] for p in parts]
        if op.opcode in ("PUT", "PUT_BACK", "ALL_TO_ALL", "ALL_TO_ALL_BACK"):
            return self._transfer(rank, op, task)
        special = {"REDUCE": self._reduce, "KEEP": self._reduce, "WGRAD": self._sum, "COL_SUM": self._sum,
                   "RELAY_SUM": self._relay_sum}.get(op.opcode)
        if special:
            return special(rank, op, task)
        unit = self.unit(rank, op, task)
        if not unit:
            return [], []
        both = [self._access(rank, op, task, a, unit) for a in op.operands if a.buffer >= 0]
        return both[op.num_outputs:], both[:op.num_outputs]

    def _own_cols(self, task, access):
        return range(task["col"] + access.offset, task["col"] + access.offset + task["cols"])

    def _access(self, rank, op, task, a, unit):
        buffer = self.flow.buffers[a.buffer]
        cols = {"own": self._own_cols(task, a) if op.cols else None, "all": None, "block": None, "one": [0]}[a.cols.name]
        if a.rows.name in ("slot_expert", "replica"):
            height = buffer.rows_per_expert or 1
            expert = self.received[op.domain.route][rank][1][task["row"]][0]
            if any(b.rows.name == "replica" for b in op.operands):
                first = self.flow.routes[op.domain.route].num_experts // self.flow.ep_size
                if (expert >= first) != (a.rows.name == "replica"):
                    return np.zeros(0, int)
                expert -= first if a.rows.name == "replica" else 0
            rows = range(expert * height, (expert + 1) * height)
            if op.opcode == "GMM" and params(op)[0]:  # transposed: rows of the matrix are the columns of the result
                rows, cols = [expert * height + c for c in self._own_cols(task, a)], None
        elif a.rows.name == "one" and op.opcode == "GMM":
            rows = range(buffer.num_rows)
            if params(op)[0]:
                rows, cols = self._own_cols(task, a), None
        else:
            fan = None if a.rows.name != "fan" else self.fanned_out(rank, op, task) if op.opcode == "FAN_OUT" else \
                self.fan(rank, op.domain.route, unit)
            rows = {"own": unit, "one": [0], "all": range(self._num_rows(rank, a.buffer)), "fan": fan}[a.rows.name]
        return self.cells(rank, a.buffer, rows, cols)

    def _transfer(self, rank, op, task):
        out, source = op.operands
        top_k, read, written = self.flow.routes[op.domain.route].top_k, [], {}
        for peer, row, entry in self.moved(rank, op, task):
            back = op.opcode.endswith("BACK")
            if entry != ZEROS:
                read.append(row if back else entry if source.rows.name == "entries" else entry // top_k)
            if entry != ZEROS or not back:
                written.setdefault(peer, []).append(entry if back else row)
        there, here = (self._own_cols(task, a) if a.cols.name == "own" and op.cols else None for a in (out, source))
        writes = [self.cells(peer, out.buffer, rows, there) for peer, rows in written.items()]
        return [self.cells(rank, source.buffer, read, here)] if read else [], writes

    def _relay_sum(self, rank, op, task):
        out, entries, *weights = op.operands
        unit, route, cols = self.unit(rank, op, task), params(op)[0], self._own_cols(task, op.operands[0])
        top_k = self.flow.routes[route].top_k
        came = [self.relayed(route, d, i) for d in self.ranks for i in range(len(self.received[route][d][0]))]
        mine = [entry for at, entry in came if at == rank and entry // top_k in unit]
        reads = [self.cells(rank, entries.buffer, mine, cols)] + [self.cells(rank, w.buffer, unit) for w in weights]
        return (reads, [self.cells(rank, out.buffer, unit, cols)]) if unit else ([], [])

    def _reduce(self, rank, op, task):
        out, entries, *weights = op.operands
        tile, top_k = self.unit(rank, op, task), self.flow.routes[op.domain.route].top_k
        cols = self._own_cols(task, out) if op.cols else None
        rows = [t * top_k + k for t in tile for k in range(top_k)]
        reads = [self.cells(rank, entries.buffer, [e for e in rows if e in self.kept[op.domain.route][rank]], cols)]
        reads += [self.cells(rank, w.buffer, tile) for w in weights]
        return reads, [self.cells(rank, out.buffer, tile, cols)]

    def _sum(self, rank, op, task):
        """WGRAD and COL_SUM: rows of an expert, or all rows, into a block of rows of the result."""
        out, *sources = op.operands
        returned = [s for s in sources if s.rows.name == "returned"]
        sources = [s for s in sources if s.rows.name != "returned"]
        sources, mains = (sources[:2], sources[2:]) if op.opcode == "WGRAD" else (sources, [])
        expert, block = divmod(int(task["row"]), op.domain.blocks)
        if op.domain.route >= 0:
            rows = [i for i, r in enumerate(self.received[op.domain.route][rank][0]) if r[0] == expert]
        else:
            rows = range(self.limit(rank, *params(op)[1:3]))
        cols, low, high = self._own_cols(task, out), expert, expert + 1
        reads = [self.cells(rank, sources[-1].buffer, rows, cols)]
        if op.opcode == "WGRAD":
            width = self.flow.buffers[sources[0].buffer].cols
            low, high = block * params(op)[0], min((block + 1) * params(op)[0], width)
            reads.append(self.cells(rank, sources[0].buffer, rows, range(low, high)))
            if returned:
                placement = self.flow.routes[op.domain.route].placement
                mine = [e for slots in placement.experts for e in slots if e // placement.num_own == rank]
                reads += [self.cells(rank, returned[0].buffer, range(i * width + low, i * width + high), cols)
                          for i, e in enumerate(mine) if e % placement.num_own == expert]
            low, high = (x + (expert - params(op)[3]) * width for x in (low, high))
        reads += [self.cells(rank, main.buffer, range(low, high), cols) for main in mains]
        return reads, [self.cells(rank, out.buffer, range(low, high), cols)]

    # Counters.

    def segments(self, rank, t):
        """Returns the data that a transfer moves or signals, by peer and expert: items of `moved` or `matrices`."""
        task = self.flow.tasks[t]
        op = self.flow.ops[task["op"]]
        if moves_copies(op):
            return [[m] for m in sorted(self.matrices(rank, op, task),
                                        key=lambda m: m[op.opcode == "REPLICATE" and 3 or 2][0])]
        data = self.notified(rank, op, task) if op.opcode == "NOTIFY" else self.moved(rank, op, task)
        back = op.opcode.endswith("BACK") or (op.opcode == "NOTIFY" and params(op)[0])
        order = self.order(rank, back)
        out = {}
        for row in data:
            expert = self.received[op.domain.route][rank if back else row[0]][0][row[1]][0]
            out.setdefault((order.index(row[0]), expert), []).append(row)
        return [out[key] for key in sorted(out)]

    def added(self, rank, t, signal, data=None):
        """{(rank, event): amount} that one signal of a task adds; of a transfer, for the rows in `data` where given."""
        task, out = self.flow.tasks[t], {}
        op = self.flow.ops[task["op"]]
        event, kind, where = int(signal["event"]), signal["kind"], int(signal["remote"])

        def add(target, index, amount):
            out[target, index] = out.get((target, index), 0) + amount

        if moves_copies(op):
            if (kind, signal["amount"], where) == (tf.STATIC, tf.COUNT, tf.LOCAL):
                return {(rank, event): 1}
            assert (kind, where) == (tf.SLOT_EXPERT, tf.PEER) and signal["amount"] == tf.ROWS
            for peer, expert, rows, _ in data or self.matrices(rank, op, task):
                add(peer, event + expert, len(rows))
        elif op.opcode in TRANSFERS:
            self._add_moved(rank, op, task, signal, data, add)
        else:
            self._add_made(rank, op, task, signal, add)
        return out

    def _add_made(self, rank, op, task, signal, add):
        """Adds a task's signal for its own rank: its rows, or one; fanned-out rows each at their slot's event."""
        event, kind, unit = int(signal["event"]), signal["kind"], self.unit(rank, op, task)
        assert signal["remote"] == tf.LOCAL or self.flow.ep_size == 1
        if kind == tf.ENTRY_TILE:
            assert op.opcode == "FAN_OUT" and signal["amount"] == tf.ROWS
            slots = self.received[self.flow.routes[op.domain.route].of][rank][1]
            for row in self.fanned_out(rank, op, task):
                add(rank, event + next(s for s, (_, rows) in enumerate(slots) if row in rows), 1)
            return
        place = self.received[op.domain.route][rank][1][task["row"]][0] if kind == tf.SLOT_EXPERT else 0
        add(rank, event + place, 1 if signal["amount"] == tf.COUNT else len(unit))

    def _add_moved(self, rank, op, task, signal, data, add):
        """Adds a transfer's signal: one for each row at the row's event."""
        event, kind, is_local = int(signal["event"]), signal["kind"], signal["remote"] == tf.LOCAL
        plan = self.flow.routes[op.domain.route]
        if signal["amount"] == tf.COUNT:
            assert is_local and (kind == tf.STATIC or (kind == tf.SLOT_EXPERT and plan.num_local_experts == 1))
            add(rank, event, 1)
            return
        for peer, _, entry in data or (self.notified if op.opcode == "NOTIFY" else self.moved)(rank, op, task):
            place = 0
            if kind == tf.SLOT_EXPERT:
                owner = rank if op.opcode == "PUT_BACK" else peer
                place = self.received[op.domain.route][owner][1][task["row"]][0]
            elif kind == tf.ENTRY_TILE:
                place = 0 if entry == ZEROS else entry // plan.top_k // plan.return_tokens
            add(rank if is_local else peer, event + place, 1)

    def awaited(self, rank, t, wait):
        if wait["kind"] != tf.SLOT_EXPERT:
            return int(wait["event"])
        task = self.flow.tasks[t]
        route = self.flow.ops[task["op"]].domain.route
        return int(wait["event"]) + self.received[route][rank][1][task["row"]][0]


def _within(numbers, size):
    """Returns True if all numbers are in 0..size - 1; a range counts upwards."""
    if not numbers:
        return True
    least, most = (numbers[0], numbers[-1]) if isinstance(numbers, range) else (min(numbers), max(numbers))
    return least >= 0 and most < size
