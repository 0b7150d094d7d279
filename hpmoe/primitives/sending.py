"""Rows on their way from the ranks of tokens to those of experts and back: what all collectives of a route do."""

from __future__ import annotations

import dataclasses

import numpy as np
from mindspore import Tensor, mint, ops

from hpmoe.ir.program import Atom
from hpmoe.ir.tile_op import Access
from hpmoe.primitives.tiler import Tiler
from hpmoe.routing.routing import PADDING, Route
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.transfers import ALL_TO_ALL_BACK


def gather_or_zero(x: Tensor, index: np.ndarray) -> Tensor:
    """Rows of x, zeros where the index is negative."""
    if (index < 0).any():
        x = mint.cat([x, mint.zeros((1, x.shape[1]), dtype=x.dtype)])
        index = np.where(index < 0, x.shape[0] - 1, index)
    return ops.gather(x, Tensor(index.astype(np.int32)), 0)


def send(xs: list[np.ndarray], routes: list[Route], entries_per_row: int) -> list[np.ndarray]:
    """out[d][row] = xs[source of row][entry of row // entries_per_row]; zero for padding."""
    routing, out = routes[0].routing, []
    for rank in range(routing.ep_size):
        rows = np.zeros((routing.num_rows(rank), xs[0].shape[1]), xs[0].dtype)
        for source, x in enumerate(xs):
            mine = (routing.source_of_row[rank] == source) & (routing.entry_of_row[rank] != PADDING)
            rows[mine] = x[routing.entry_of_row[rank][mine] // entries_per_row]
        out.append(rows)
    return out


def send_back(rows: list[np.ndarray], routes: list[Route]) -> list[np.ndarray]:
    """out[rank][entry] = its row; zero for entries of padding tokens and dropped ones."""
    routing, out = routes[0].routing, []
    for destination, row in routing.row_of_entry():
        back = np.zeros((routing.max_tokens * routing.top_k, rows[0].shape[1]), rows[0].dtype)
        for rank in range(routing.ep_size):
            there = np.flatnonzero(destination == rank)
            back[there] = rows[rank][row[there]]
        out.append(back)
    return out


def tile_return(tiler: Tiler, rows: Atom, route: Atom, entries: int) -> Access:
    """Sends rows back to buffer `entries`, one row for each entry; returns how it is accessed."""
    source = tiler.at(rows, cols=col_modes.ALL, dtypes=tiler.MOVED)
    access = dataclasses.replace(source, buffer=entries, rows=row_modes.ENTRIES)
    tiler.emit(ALL_TO_ALL_BACK, tiler.once(route), access, source, cols=0)
    return access
