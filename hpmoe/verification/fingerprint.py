"""Checks a taskflow's fingerprint: its operations, buffers and routes are, in all that matters, those of its tables."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import NoReturn

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.support.errors import VerifyError
from hpmoe.support.known import known
from hpmoe.verification.canonicalize import canonical_buffer, canonical_op, canonical_route, is_alike_in_padding


def as_fingerprinted(flow: tf.Taskflow) -> tf.Taskflow:
    """The taskflow over the operations and buffers that its tables were made for, from which its own may differ in what
    nobody asks for, and in the memory and the rows of buffers: those are judged as they are now."""
    changes = {}
    is_anywhere = not flow.queues or known(flow.machine).unified  # whether a task may be in any queue
    counts_returns = bool((flow.events["extent"] == tf.TILE_ENTRIES).any())
    for name in [f.name for f in dataclasses.fields(tf.Made)] if flow.made is not None else ():
        new, old = getattr(flow, name), getattr(flow.made, name)
        if new is old or new == old:
            continue
        if not isinstance(new, tuple) or not isinstance(old, tuple) or len(new) != len(old):
            now, then = (f"{len(x)} long" if isinstance(x, tuple) else x for x in (new, old))
            raise VerifyError(f"verify: {name} is {now}, the tasks were made for {then}; make them anew with "
                              "hpmoe.rewriting.rebuild")
        if not all(map(_is_of_kind, new, old)):
            _refuse(name, new, old, [_is_of_kind(*pair) for pair in zip(new, old, strict=True)].index(False))
        mine, theirs = (_canonical_forms(f, name, is_anywhere, counts_returns) for f in (flow, known(flow.made)))
        if name == "ops":
            mine = _without_padding(flow, mine, theirs)
        for i in [i for i, (x, y) in enumerate(zip(mine, theirs, strict=True)) if x != y][:1]:
            _refuse(name, new, old, i)
        changes[name] = old if name != "buffers" else tuple(
            dataclasses.replace(b, memory=now.memory, num_rows=now.num_rows) for b, now in zip(old, new, strict=True))
    return flow.replace(**changes) if changes else flow


def _refuse(name: str, new: tuple[object, ...], old: tuple[object, ...], i: int) -> NoReturn:
    then, now = ", ".join(_unlike(old[i], new[i])), ", ".join(_unlike(new[i], old[i]))
    raise VerifyError(f"verify: {name}[{i}] is not what the tasks were made for; make them anew with "
                      f"hpmoe.rewriting.rebuild\n  made for {then}\n  now      {now}")


def _is_of_kind(x: object, model: object) -> bool:
    """Whether a value is of the types of another, part for part, so that the two can be compared."""
    if dataclasses.is_dataclass(model):
        return type(x) is type(model) and all(_is_of_kind(getattr(x, f.name), getattr(model, f.name))
                                              for f in dataclasses.fields(model))
    if isinstance(model, (bool, Enum)):
        return type(x) is type(model)
    if isinstance(model, tuple):
        return isinstance(x, tuple) and all(map(_is_of_kind, x, model))
    if isinstance(model, (int, float, np.number)):
        return isinstance(x, (int, np.integer) if isinstance(model, (int, np.integer)) else (int, float, np.number))
    return isinstance(x, type(model))


def _unlike(x: object, other: object) -> list[str]:
    """The fields of an operation, buffer or route in which it is not like another; an index as it is."""
    if not dataclasses.is_dataclass(x):
        return [str(x)]
    pairs = ((f.name, getattr(x, f.name), getattr(other, f.name, None)) for f in dataclasses.fields(x))
    return [f"{name} {mine}" for name, mine, theirs in pairs if mine != theirs]


def _without_padding(flow: tf.Taskflow, mine: list[tf.TileOp], theirs: list[tf.TileOp]) -> list[tf.TileOp]:
    """The canonical forms of operations, but of those that write rows of padding, too, and may, what they were made for."""
    tasks = flow.signals["task"]
    known = flow.tasks["op"][tasks[(tasks >= 0) & (tasks < flow.num_tasks)]]
    clips = any(op.domain.clipped for op in flow.ops) or not np.isin(flow.events["extent"], (tf.TILE, tf.TOKENS)).any()

    def is_free(i: int) -> bool:
        if not (clips and i not in known and is_alike_in_padding(flow.ops[i], flow.buffers)):
            return False
        return mine[i].replace(domain=dataclasses.replace(mine[i].domain, clipped=theirs[i].domain.clipped)) == theirs[i]
    return [theirs[i] if is_free(i) else op for i, op in enumerate(mine)]


def _canonical_forms(flow: tf.Taskflow | tf.Made, name: str, is_anywhere: bool, counts_returns: bool) -> list:
    if name == "ops":
        ops = [canonical_op(op, flow.buffers, flow.routes) for op in flow.ops]
        return [op.replace(unit="") for op in ops] if is_anywhere else ops
    if name == "buffers":
        return [canonical_buffer(b, flow) for b in range(len(flow.buffers))]
    if name == "routes":
        return [canonical_route(plan, counts_returns) for plan in flow.routes]
    return getattr(flow, name)
