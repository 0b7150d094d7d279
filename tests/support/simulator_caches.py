"""What the caches of the reference simulator hold, and what memory brings: of a part of an array it is known how much of it
came in since it was last thrown out."""

from tile_words import kind

from hpmoe.costs.footprint import DENSE, FAN, STREAM, TOGETHER, UNIT, WEIGHT


class Caches:
    """Those of all ranks.

    Args:
        x: the Expansion of the taskflow.
        l2_bytes: what one holds.
        home: function of a rank, whose cache it uses.
    """

    def __init__(self, x, l2_bytes, home):
        self.x, self.l2_bytes, self.home = x, l2_bytes, home
        self.parts, self.passed = {}, dict.fromkeys(x.ranks, 0.0)

    def touch(self, rank, task, work, entry):
        """(bytes that a task touches, those of them that memory brings)."""
        total = missed = 0.0
        for first, part, fixed, row, whole in work["footprints"][:int(work["num_footprints"])].tolist():
            size = fixed + (task.fans if part == FAN else task.rows) * row
            total += size
            if part in (STREAM, FAN):
                missed += size
            elif part == TOGETHER:  # rows from anywhere in it
                held = min(self.held_of(rank, first), self.l2_bytes, whole)
                missed += self.bring(rank, first, size * (1 - held / whole) if whole else size)
            elif part in (WEIGHT, DENSE):
                expert = task.expert if part == WEIGHT else 0
                missed += self.fill(rank, first + expert * len(task.op.col_ranges()) + task.tile, size, whole)
            elif part == UNIT and not task.op.opcode.startswith("ALL"):
                unit = len(self.x.unit(rank, task.op, entry)) if kind(task.op) in ("slots", "tiles") else 1
                missed += self.fill(rank, first + task.row, size, unit * whole)
            else:
                slots = self.x.received[task.op.domain.route][rank][1]
                missed += sum(self.fill(rank, first + i, len(rows) * row, len(rows) * whole)
                              for i, (e, rows) in enumerate(slots) if rows and (part == UNIT or e == task.expert))
        return total, missed

    def landings(self, rank, t, work):
        """(rank, bytes that its memory gets) for each piece that a task moves."""
        op = self.x.flow.ops[self.x.flow.tasks["op"][t]]
        first, part, _, row, whole = work["landing"].tolist()
        if not row or not (op.num_peers or op.opcode.startswith("ALL")):
            return
        for piece in self.x.segments(rank, t):
            to, size = piece[0][0], len(piece) * row
            if part == TOGETHER:
                held = self.held_of(to, first)
                landed = self.bring(to, first, size)
                self.parts[to, first][1] = min(whole, held + size)
            else:
                slots = self.x.received[op.domain.route][to][1]
                expert = self.x.received[op.domain.route][to][0][piece[0][1]][0]
                into = [(i, len(rows)) for i, (e, rows) in enumerate(slots)
                        if rows and (i == self.x.flow.tasks["row"][t] if op.num_peers else e == expert)]
                of_all = sum(n for _, n in into)
                landed = sum(self.fill(to, first + i, size * n / of_all, n * whole) for i, n in into)
            yield to, landed

    def held_of(self, rank, place):
        touched, held = self.parts.setdefault((rank, place), [-1.0, 0.0])
        return held if self.passed[self.home(rank)] - touched <= self.l2_bytes else 0.0

    def bring(self, rank, place, size):
        held, home = self.held_of(rank, place), self.home(rank)
        self.passed[home] += size
        self.parts[rank, place] = [self.passed[home], held + size]
        return size

    def fill(self, rank, place, size, whole):
        """What of a part is not there yet, tasks touching all of it in turn."""
        return self.bring(rank, place, min(size, max(0.0, (whole or size) - self.held_of(rank, place))))
