"""The packed image read back as tables: what each task of its queues is, waits for and signals."""

from __future__ import annotations

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.kernels.image import Sections
from hpmoe.kernels.protocol import Domain, Index

# The kinds whose index the kernel finds from the routing.
FOUND_LATER = (Index.SLOT_EXPERT, Index.ENTRY_TILE)


def read_tasks(header: np.void, sections: Sections) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tasks queue by queue as a taskflow.TASK array, and the template of each."""
    words, ops = sections["tasks"], sections["ops"]
    template, index = words >> header["index_bits"], words & ((1 << int(header["index_bits"])) - 1)
    tasks = np.zeros(len(words), tf.TASK)
    tasks["op"] = sections["templates"]["op"][template]
    op = ops[tasks["op"]]
    tile_cols, peers = np.maximum(op["tile_cols"], 1), np.maximum(op["num_peers"], 1)
    in_parts = (op["cols"] == 0) & np.isin(op["domain"], (Domain["TILES"], Domain["SLOTS"]))
    columns = np.where(in_parts, op["blocks"], np.maximum(-(-op["cols"] // tile_cols), 1))
    place, column = np.divmod(index.astype(np.int64), columns)
    tasks["row"] = place // peers + op["first_row"]
    tasks["peer"] = np.where(op["num_peers"] > 0, place % peers, -1)
    tasks["col"] = column * np.where(op["cols"] > 0, op["tile_cols"], 1)
    tasks["cols"] = np.where(op["cols"] > 0, np.minimum(op["tile_cols"], op["cols"] - tasks["col"]), 0)
    return tasks, template


def read_table(header: np.void, sections: Sections, name: str, dtype: np.dtype) -> np.ndarray:
    """Returns the `name` ("waits" or "signals") of all tasks as a table of taskflow.py: `task` is a place in the queues."""
    tasks, template = read_tasks(header, sections)
    templates, rows, one = sections["templates"][template], sections[name], name[:-1]
    counts = templates[f"num_{name}"].astype(np.int64)
    out = np.zeros(int(counts.sum()), dtype)
    out["task"] = np.repeat(np.arange(len(tasks)), counts)
    which = np.arange(len(out)) - np.repeat(np.cumsum(counts) - counts, counts) + templates[f"first_{one}"][out["task"]]
    row, task = rows[which], tasks[out["task"]]
    op = sections["ops"][task["op"]]
    offset = {Index.UNIT: task["row"], Index.EXPERT: task["row"] // np.maximum(op["blocks"], 1), Index.PEER: task["peer"],
              Index.PEER_UNIT: task["peer"] * op["num_units"] + task["row"]}
    out["event"] = row["event"] + np.select([row["kind"] == k for k in offset], list(offset.values()), 0)
    out["kind"] = np.where(np.isin(row["kind"], FOUND_LATER), row["kind"], Index.STATIC)
    for column in set(dtype.names or ()) - {"task", "event", "kind"}:
        out[column] = row[column]
    return out
