"""A second simulator, in plain Python and small steps of time: what kernels/simulator says of a taskflow, found another way.

Rows, counters and thresholds are those that tests/support/expansion.py counts one by one; nothing here reads a packed image.
"""

import heapq
import itertools
import math

import numpy as np
from expansion import Expansion
from judge import extent_of
from simulator_caches import Caches
from tile_words import kind, moves_copies, params

from hpmoe.costs.footprint import DENSE, WEIGHT, is_transfer
from hpmoe.costs.start import pass_us
from hpmoe.costs.work import Work
from hpmoe.ir import taskflow as tf


class Task:
    """What a task of a rank asks for: rows of its own, rows for each other rank, and whether anybody is told of it."""

    def __init__(self, x, rank, t, waits, signals):
        flow = x.flow
        task, op = flow.tasks[t], flow.ops[flow.tasks["op"][t]]
        self.op, self.row, self.tile = op, int(task["row"]), int(task["col"]) // op.tile_cols if op.tile_cols else 0
        self.expert, self.to, self.rows, self.fans = 0, {}, 0, 0.0
        if op.opcode == "NOTIFY":
            has_rows = bool(x.notified(rank, op, task))
        elif moves_copies(op):
            for peer, _, source, _ in x.matrices(rank, op, task):
                self.to[peer] = self.to.get(peer, 0) + len(source)
            has_rows = bool(self.to)
        elif op.num_peers or op.opcode.startswith("ALL"):
            for peer, *_ in x.moved(rank, op, task):
                self.to[peer] = self.to.get(peer, 0) + 1
            has_rows = bool(self.to)
        elif op.opcode == "LAUNCH":
            which = params(op)[0] if op.domain.route >= 0 else 0
            self.rows = (0, len(x.kept[op.domain.route][rank]), len(x.received[op.domain.route][rank][0]))[which]
            has_rows = True
        elif kind(op) == "experts":
            self.expert = self.row // op.domain.blocks
            self.rows = sum(r[0] == self.expert for r in x.received[op.domain.route][rank][0]) if op.domain.route >= 0 \
                else x.limit(rank, *params(op)[1:3])
            has_rows = True
        else:
            self.rows = len(x.unit(rank, op, task))
            if kind(op) == "slots":
                self.expert = x.received[op.domain.route][rank][1][self.row][0]
            has_rows = self.rows > 0
        self.rows += sum(self.to.values())
        if op.opcode.startswith("FAN"):  # rows of experts, for each token as many as in the mean
            once = flow.routes[op.domain.route].once_of
            self.fans = self.rows * len(x.received[once][rank][0]) / max(1, len(x.received[op.domain.route][rank][0]))
        self.is_empty = self.rows == 0 and kind(op) != "experts" and op.opcode != "LAUNCH"
        self.does_nothing = not has_rows and not any(s["amount"] == tf.COUNT for s in signals)
        self.is_spare = self._is_spare(x, rank, op, waits, signals)
        self.is_wide = op.opcode.startswith("ALL") or (moves_copies(op) and kind(op) == "once")

    def _is_spare(self, x, rank, op, waits, signals):
        """Whether it is of a slot past the last with rows and has nothing to do with anything else."""
        relayed = any(a.rows.name.startswith("relay") for a in op.operands)
        if kind(op) != "slots" or relayed or (is_transfer(op) and not op.opcode.startswith("PUT")):
            return False
        ranks = x.ranks if op.opcode.startswith("PUT") and not op.primitive.is_back else [rank]
        slots, events = [x.received[op.domain.route][r][1] for r in ranks], x.flow.events[[w["event"] for w in waits]]
        return (not any(rows for of_rank in slots for _, rows in of_rank[self.row:])
                and all(s["amount"] != tf.COUNT for s in signals) and not any(w["kind"] for w in waits)
                and all((e["extent"], e["index"], e["route"]) == (tf.SLOT, self.row, op.domain.route) for e in events))


class Reference:
    """A run of a taskflow's queues on a machine.

    Attributes:
        times: {(rank, task): [came, began, ended]}.
        traffic: {(rank, name of a rate): bytes}.
        missed: {(rank, task): bytes}.
    """

    def __init__(self, flow, machine, ids, num_tokens=None, ties=0):
        """`ties` says in which order goes on what happens at the same time, where there is a choice."""
        self.flow, self.m, self.now = flow, machine, 0.0
        self.ties = itertools.count() if ties == 0 else iter(np.random.default_rng(ties).random, None)
        self.x = x = Expansion(flow, [list(ids)] * len(flow.routes), num_tokens)
        work = Work(flow, machine)
        work.table = work.by_routing
        self.work = work.entries(flow.tasks)
        self.waits, self.signals = ([[] for _ in range(flow.num_tasks)] for _ in range(2))
        for rows, of in ((flow.waits, self.waits), (flow.signals, self.signals)):
            for row in rows:
                of[int(row["task"])].append(row)
        self.missing = {(r, e): int(v["mult"]) * extent_of(x, r, int(v["extent"]), int(v["index"]), int(v["route"]))
                        for r in x.ranks for e, v in enumerate(flow.events)}
        self.workers = [(r, [int(t) for t in q]) for r in x.ranks for q in flow.queues]
        self.at, self.met, self.looked, self.since = ([0] * len(self.workers) for _ in range(4))
        self.asleep, self.parts, self.tasks, self.held = {}, {}, {}, {}
        self.early, self.reading, self.woken = [0] * len(self.workers), set(), set()
        num_threads = min(math.ceil(machine.host_cores), len(self.workers))
        self.threads = [self.thread(i, num_threads) for i in range(num_threads)]
        self.idle = set()
        self.heap, self.order = [], itertools.count()
        self.users = {}  # {(rank, rate): {(worker, a number): bytes left}}
        self.caches = Caches(x, machine.l2_bytes, self.home)
        self.times, self.traffic, self.missed = {}, {}, {}
        self.run()

    # Time.

    def later(self, time, what, *args):
        heapq.heappush(self.heap, (round(time, 7), next(self.ties), next(self.order), time, what, args))

    def home(self, rank):
        """Whose L2 and memory a rank uses."""
        return 0 if self.threads else rank

    def share(self, key):
        if key[1] == "cores":
            return min(1.0, self.m.host_cores / len(self.users[key]))
        rate, most = {"l2": (self.m.l2_bytes_per_us, self.m.worker_l2_bytes_per_us),
                      "memory": (self.m.memory_bytes_per_us, self.m.worker_memory_bytes_per_us)}.get(
            key[1], (self.m.node_link_bytes_per_us if "node" in key[1] else self.m.link_bytes_per_us,
                     self.m.worker_link_bytes_per_us))
        users = self.users[key]
        return rate / len(users) if any(self.task_of(w).is_wide for w, _ in users) else min(most, rate / len(users))

    def run(self):
        for serve, who in ((self.serve, self.threads),) if self.threads else ((self.walk, self.workers),):
            for i in range(len(who)):
                self.later(0.0, serve, i)
        while self.heap or self.users:
            shares = {key: self.share(key) for key in self.users}
            ends = [(self.now + left / shares[key], key, w) for key, users in self.users.items()
                    for w, left in users.items()]
            end = min(ends, key=lambda e: e[0], default=(math.inf,))
            until = min(end[0], self.heap[0][3] if self.heap else math.inf)
            for key, users in self.users.items():
                for w in users:
                    users[w] -= max(0.0, until - self.now) * shares[key]
            self.now = max(self.now, until)
            done = [(key, w) for time, key, w in ends if time <= until * (1 + 1e-12) + 1e-9]
            for key, w in done:
                del self.users[key][w]
                if not self.users[key]:
                    del self.users[key]
            for _, (w, _) in sorted(done, key=lambda _: next(self.ties)):
                self.end_part(w)
            if not done:
                *_, what, args = heapq.heappop(self.heap)
                what(*args)

    # Threads of a host, each a generator that says whose task it takes next, or None where it finds none.

    def thread(self, i, num_threads):
        own = range(i, len(self.workers), num_threads)
        others = [w for w in range(len(self.workers)) if w not in own]
        while True:
            has_moved = False
            for w in [*own, *others]:
                if has_moved and w in others:
                    break
                while self.can_run(w):
                    has_moved = True
                    yield w
            if not has_moved:
                yield None

    def can_run(self, w):
        rank, queue = self.workers[w]
        if w in self.held or self.at[w] == len(queue):
            return False
        task = queue[self.at[w]]
        waits = self.waits[task]
        self.looked[w] = max(self.looked[w], self.now)
        while self.met[w] < len(waits) and self.missing[rank, self.x.awaited(rank, task, waits[self.met[w]])] <= 0:
            self.met[w] += 1
            self.looked[w] += self.m.wait_us
        return self.met[w] == len(waits)

    def serve(self, i):
        w = next(self.threads[i])
        if w is None:
            self.idle.add(i)
            return
        rank, queue = self.workers[w]
        self.held[w] = i
        self.times[rank, queue[self.at[w]]] = [self.since[w], self.looked[w]]
        self.later(self.looked[w], self.begin, w)

    # Workers.

    def task_of(self, w):
        rank, queue = self.workers[w]
        t = queue[self.at[w]]
        if (rank, t) not in self.tasks:
            self.tasks[rank, t] = Task(self.x, rank, t, self.waits[t], self.signals[t])
        return self.tasks[rank, t]

    def walk(self, w):
        rank, queue = self.workers[w]
        if self.at[w] == len(queue):
            return
        t = queue[self.at[w]]
        times = self.times.setdefault((rank, t), [self.now])
        if self.task_of(w).is_spare:
            times.append(self.now)
            self.later(self.now + pass_us(self.m), self.finish, w)
            return
        if self.met[w] < len(self.waits[t]):
            key = rank, self.x.awaited(rank, t, self.waits[t][self.met[w]])
            if self.missing[key] > 0:
                self.since[w] = self.now
                self.asleep.setdefault(key, []).append(w)
                self.read_early(w)
                return
            self.met[w] += 1
            self.later(self.now + self.m.wait_us, self.walk, w)
            return
        if self.now < self.due(w) and not self.task_of(w).does_nothing:
            self.later(self.due(w), self.walk, w)
            return
        times.append(self.now)
        if self.task_of(w).does_nothing:
            self.later(self.now + self.m.task_us, self.finish, w)
        else:
            self.begin(w)

    def due(self, w):
        """When the first rank that a paced put has rows for could have those of its slots before, in microseconds."""
        (rank, _), task = self.workers[w], self.task_of(w)
        pace = getattr(task.op.params, "row_ps", 0)
        if not pace or not task.to or next(iter(task.to)) == rank:
            return 0.0
        rows, slots = self.x.received[task.op.domain.route][next(iter(task.to))]
        before = sum(row[0] < slots[task.row][0] for row in rows)  # and the slots before of the expert, as if full
        place = sum(expert == slots[task.row][0] and len(own) > 0 for expert, own in slots[:task.row])
        return pace * 1e-6 * (before + place * self.flow.tile_rows)

    def read_early(self, w):
        """The next 128 KiB of the weight of a task that an AIC waits for, where it is one of the first half of them."""
        (rank, queue), task, queues = self.workers[w], self.task_of(w), len(self.flow.queues)
        is_early = getattr(task.op.params, "is_early", False) and task.rows > 0 and not self.m.unified
        if not is_early or w in self.reading or w % queues >= -(-self.m.num_aic // 2):
            return
        if len(task.op.operands) > 3 and task.expert >= self.flow.routes[task.op.domain.route].num_own_experts:
            return
        work = self.work[queue[self.at[w]]]
        first, part, whole, *_ = next(f for f in work["footprints"].tolist() if f[1] in (WEIGHT, DENSE))
        size = min(128 * 1024, whole - self.early[w])
        if size > 0:
            place = first + (task.expert * len(task.op.col_ranges()) if part == WEIGHT else 0) + task.tile
            self.early[w] += size
            self.reading.add(w)
            self.parts[w] = 0
            self.demand(w, (rank, "l2"), size)
            missed = min(size, max(0.0, self.early[w] - self.caches.held_of(rank, place)))
            self.demand(w, (rank, "memory"), self.caches.bring(rank, place, missed))

    def wake(self, w):
        if w in self.reading:
            self.woken.add(w)
        else:
            self.walk(w)

    def begin(self, w):
        (rank, queue), task = self.workers[w], self.task_of(w)
        t = queue[self.at[w]]
        work = self.work[t]
        granules = math.ceil(task.rows / int(work["granule"])) * int(work["granule"])
        self.parts[w] = 1
        for to, landed in self.caches.landings(rank, t, work):
            self.demand(w, (self.home(to), "memory"), landed)
        for peer, rows in task.to.items():
            if peer != rank:
                node = "" if peer // self.m.node_size == rank // self.m.node_size else "node_"
                self.demand(w, (rank, f"{node}egress"), rows * work["link_row"])
                self.demand(w, (peer, f"{node}ingress"), rows * work["link_row"])
        core = 0.0
        if not task.is_empty:
            is_few = 0 < work["skinny_rows"] >= task.rows
            few = work["few_fixed"] + granules * work["few_row"] if task.rows else 0.0
            core = float(few if is_few else work["core_fixed"] + granules * work["core_row"])
            total, missed = self.caches.touch(rank, task, work, self.flow.tasks[t])
            core += task.fans * float(work["core_fan"])
            total += task.to.get(rank, 0) * float(work["link_row"])
            self.missed[rank, t] = missed
            self.demand(w, (self.home(rank), "l2"), total)
            self.demand(w, (self.home(rank), "memory"), missed)
        if self.threads:
            self.demand(w, ("host", "cores"), self.m.task_us + core)
            self.end_part(w)
        else:
            self.later(self.now + self.m.task_us + core, self.end_part, w)

    def demand(self, w, key, amount):
        if amount > 0:
            self.traffic[key] = self.traffic.get(key, 0.0) + float(amount)
            self.users.setdefault(key, {})[w, next(self.order)] = float(amount)
            self.parts[w] += 1

    def end_part(self, w):
        self.parts[w] -= 1
        if self.parts[w] > 0:
            return
        if w not in self.reading:
            return self.finish(w)
        self.reading.remove(w)
        if w in self.woken:
            self.woken.remove(w)
            return self.walk(w)
        return self.read_early(w)

    def finish(self, w):
        rank, queue = self.workers[w]
        t, end = queue[self.at[w]], self.now
        for target, event, amount in [] if self.task_of(w).does_nothing else self.sent(rank, t):
            end += self.m.signal_us
            near = target // self.m.node_size == rank // self.m.node_size
            way = 0.0 if target == rank else self.m.remote_us if near else self.m.node_remote_us
            self.later(end + way + self.m.poll_us, self.count, (target, event), amount)
        self.times[rank, t].append(end)
        self.at[w], self.met[w], self.since[w], self.early[w] = self.at[w] + 1, 0, end, 0
        if self.threads:
            self.looked[w] = end
            self.later(end, self.leave, w)
        elif end > self.now:
            self.later(end, self.walk, w)
        else:
            self.walk(w)

    def leave(self, w):
        self.serve(self.held.pop(w))

    def sent(self, rank, t):
        """(rank, event, amount) in the order in which a task signals: for each piece that it moved, then for itself; where
        rows are fanned out, first for the slots that they go to, one after the other."""
        op = self.flow.ops[self.flow.tasks["op"][t]]
        moves = op.opcode == "NOTIFY" or moves_copies(op) or op.num_peers or op.opcode.startswith("ALL")
        fans = op.opcode == "FAN_OUT"
        of_rows = sorted((s for s in self.signals[t] if s["amount"] == tf.ROWS), key=lambda s: fans
                         and s["kind"] != tf.ENTRY_TILE)
        adds = [self.x.added(rank, t, s, piece) for piece in (self.x.segments(rank, t) if moves else [None])
                for s in of_rows]
        adds += [self.x.added(rank, t, s) for s in self.signals[t] if s["amount"] == tf.COUNT]
        return [(*key, amount) for added in adds for key, amount in (sorted(added.items()) if fans else added.items())
                if amount]

    def count(self, key, amount):
        self.missing[key] -= amount
        if self.missing[key] <= 0:
            for i in sorted(self.idle):
                self.later(self.now, self.serve, i)
            self.idle.clear()
            for w in self.asleep.pop(key, ()):
                step = self.m.repoll_us
                at = self.since[w] + math.ceil((self.now - self.since[w]) / step) * step if step > 0 else self.now
                self.later(at, self.wake, w)


def differences(line, reference):
    """Where a Timeline differs from the reference by more than the clock can tell, as lines of text."""
    out = []
    for i in range(line.task.size):
        key = int(line.rank[i]), int(line.task[i])
        mine, other = (line.wait_begin[i], line.begin[i], line.end[i]), reference.times[key]
        if not np.allclose(mine, other, rtol=1e-6, atol=0.003):
            out.append(f"task t{key[1]} of rank {key[0]}: {np.round(mine, 3)} and {np.round(other, 3)}")
    names = ("l2", None, "egress", "ingress", "node_egress", "node_ingress")
    for rank, traffic in enumerate(line.traffic[:, :, 0]):
        for name, amount in zip(names, traffic, strict=True):
            found = reference.traffic.get((rank, name), 0.0)
            if name and not np.isclose(amount, found, rtol=1e-9, atol=1e-6):
                out.append(f"{name} of rank {rank}: {amount} bytes and {found}")
    return out


def from_memory(reference):
    """Bytes that each rank's cache did not hold."""
    return np.array([reference.traffic.get((rank, "memory"), 0.0) for rank in reference.x.ranks])
