"""Mutations of what is ordered: tasks, ranks, operations and buffers."""

import dataclasses

from mutation import mutation, other
from other_objects import COLS, ROWS, names_of, other_domains

# Ranks.

@mutation(anew=True)
def another_order_of_peers(rng, flow):
    orders = flow.peer_orders.copy()
    orders[rng.integers(2), rng.integers(flow.ep_size)] = rng.permutation(flow.ep_size)
    return flow.replace(peer_orders=orders)


@mutation(0.5, anew=True)
def a_peer_twice(rng, flow):
    orders = flow.peer_orders.copy()
    orders[rng.integers(2), rng.integers(flow.ep_size), rng.integers(flow.ep_size)] = rng.integers(flow.ep_size)
    return flow.replace(peer_orders=orders)


# Regions.

def with_op(flow, i, **changes):
    return flow.replace(ops=(*flow.ops[:i], flow.ops[i].replace(**changes), *flow.ops[i + 1:]))


@mutation(2, anew=True)
def another_region(rng, flow):
    """An operation touches other rows, columns or another buffer."""
    i = int(rng.choice([i for i, op in enumerate(flow.ops) if op.operands]))
    op = flow.ops[i]
    k = int(rng.integers(len(op.operands)))
    access = op.operands[k]
    field = str(rng.choice(["buffer", "rows", "cols", "offset"]))
    value = other(rng, getattr(access, field), {
        "buffer": range(len(flow.buffers)), "offset": range(-1, 4), "cols": COLS, "rows": ROWS}[field])
    operands = (*op.operands[:k], dataclasses.replace(access, **{field: value}), *op.operands[k + 1:])
    return with_op(flow, i, operands=operands)


@mutation(anew=True)
def another_domain(rng, flow):
    i = int(rng.integers(len(flow.ops)))
    domain = flow.ops[i].domain
    field = str(rng.choice([*names_of(domain), "class"]))
    if field == "class":
        others = other_domains(domain)
        return with_op(flow, i, domain=others[rng.integers(len(others))][1])
    value = getattr(domain, field)
    value = not value if isinstance(value, bool) else value + int(rng.choice([-1, 1]))
    return with_op(flow, i, domain=dataclasses.replace(domain, **{field: value}))


@mutation(anew=True)
def another_buffer(rng, flow):
    """A buffer of another size, or in the memory of another."""
    b = int(rng.integers(len(flow.buffers)))
    buffer = flow.buffers[b]
    field = str(rng.choice(["cols", "num_rows", "storage", "rows_per_expert", "route", "memory"]))
    value = getattr(buffer, field)
    if field in ("storage", "memory"):
        value = other(rng, value, range(len(flow.buffers)))
    else:
        value = (value or 0) + int(rng.choice([-1, 1]))
    return flow.replace(buffers=(*flow.buffers[:b], dataclasses.replace(buffer, **{field: value}), *flow.buffers[b + 1:]))


@mutation(0.5, anew=True)
def inputs_or_outputs_exchanged(rng, flow):
    name = str(rng.choice(["inputs", "outputs"]))
    order = rng.permutation(len(getattr(flow, name)))
    return flow.replace(**{name: tuple(getattr(flow, name)[i] for i in order)})


@mutation(0.5, anew=True)
def other_tiles(rng, flow):
    return flow.replace(tile_rows=max(1, flow.tile_rows + int(rng.choice([-1, 1]))))


@mutation(0.5, anew=True)
def what_is_printed(rng, flow):
    """Names, which no result depends on."""
    i, b = int(rng.integers(len(flow.ops))), int(rng.integers(len(flow.buffers)))
    renamed = dataclasses.replace(flow.buffers[b], name="renamed")
    return with_op(flow, i, label="renamed", equation=0).replace(
        buffers=(*flow.buffers[:b], renamed, *flow.buffers[b + 1:]))
