"""Random mutants of a taskflow."""

import collections

import mutations_in_pairs  # noqa: F401  registers its kinds
import mutations_of_checkers  # noqa: F401
import mutations_of_programs  # noqa: F401
import mutations_of_schedules  # noqa: F401
import numpy as np
from judge import Judge
from mutation import MUTATIONS

import hpmoe


def mutant(rng, flow):
    """(kind, mutant of the flow): one random mutation, now and then two."""
    names = list(MUTATIONS)
    weights = np.array([MUTATIONS[name][1] for name in names])
    while True:
        chosen = [str(n) for n in rng.choice(names, size=1 if rng.random() < 0.9 else 2, p=weights / weights.sum())]
        out = MUTATIONS[chosen[0]][0](rng, flow)
        if len(chosen) == 1 and out is not None:
            return chosen[0], out
        if len(chosen) == 2 and out is not None and _names_what_exists(out) and not any(MUTATIONS[n][2] for n in chosen):
            out = MUTATIONS[chosen[1]][0](rng, out)
            if out is not None:
                return "two at once", out


def _names_what_exists(flow):
    return all(((0 <= table[name]) & (table[name] < bound)).all() for table in (flow.waits, flow.signals)
               for name, bound in (("task", flow.num_tasks), ("event", len(flow.events))))


def changes(flow, other):
    """What of a mutant is not as in its flow, for the reader of a failed test."""
    out = []
    for name in ("waits", "signals", "events"):
        before, after = (collections.Counter(getattr(f, name).tolist()) for f in (flow, other))
        out += [f"{name} - {row}" for row in (before - after).elements()]
        out += [f"{name} + {row}" for row in (after - before).elements()]
    for name in ("queues", "ops", "buffers", "routes", "blocks", "peer_orders", "inputs", "outputs"):
        pairs = zip(getattr(flow, name), getattr(other, name), strict=False)
        out += [f"{name}[{i}]: {a} -> {b}" for i, (a, b) in enumerate(pairs) if not np.array_equal(a, b)]
    return "; ".join(out)


def assert_accepted_mutants_are_harmless(flow, cases, rng, number):
    """Of so many mutants of a schedule, less than half are accepted, and those change no case."""
    judge, accepted = Judge(flow, cases), 0
    assert judge.harm(flow) is None
    for _ in range(number):
        kind, other = mutant(rng, flow)
        if kind in MUTATIONS and MUTATIONS[kind][2]:  # of the operations, which make another program
            continue
        try:
            hpmoe.verify(other)
        except hpmoe.VerifyError:
            continue
        accepted += 1
        assert judge.harm(other) is None, (kind, changes(flow, other))
    assert accepted < number / 2
