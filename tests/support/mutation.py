"""What kinds of mutations there are: the registry, and what several kinds are made with."""

import numpy as np

MUTATIONS = {}


def mutation(weight=1.0, anew=False):
    """Registers `f(rng, flow) -> flow or None`; `anew` where the operations, tasks or ranks are no longer the same."""
    def keep(f):
        register(f.__name__.replace("_", " "), f, weight, anew)
        return f
    return keep


def register(words, f, weight=1.0, anew=False):
    """Adds a kind of mutation, named by words."""
    MUTATIONS[words] = (f, weight, anew)


def changed(table, place, **columns):
    table = table.copy()
    for name, value in columns.items():
        table[name][place] = value
    return table


def with_queue(flow, q, tasks):
    return flow.replace(queues=(*flow.queues[:q], np.asarray(tasks), *flow.queues[q + 1:]))


def pick(rng, table):
    return int(rng.integers(len(table))) if len(table) else None


def other(rng, value, choices):
    """One of `choices` that is not `value`, or None."""
    left = [c for c in choices if c != value]
    return left[rng.integers(len(left))] if left else None


def in_table(rng, flow, table, column, choices):
    """One row of a table with another value in one column."""
    rows = getattr(flow, table)
    i = pick(rng, rows)
    if i is None:
        return None
    value = other(rng, rows[column][i], choices(rows[i]))
    return None if value is None else flow.replace(**{table: changed(rows, i, **{column: value})})
