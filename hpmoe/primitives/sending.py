"""Rows on their way from the ranks of tokens to those of experts and back: what all collectives of a route do."""

from __future__ import annotations

import dataclasses

import numpy as np
from mindspore import Tensor, mint, ops

from hpmoe.ir.avals import as_route
from hpmoe.ir.program import Atom
from hpmoe.ir.tile_op import Access
from hpmoe.primitives.tiler import Tiler
from hpmoe.routing.relayed_rows import RelayedRows
from hpmoe.routing.routing import PADDING, Routing
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.transfers import ALL_TO_ALL_BACK


def gather_or_zero(x: Tensor, index: np.ndarray) -> Tensor:
    """Returns rows of x, and zeros for negative indices."""
    if (index < 0).any():
        x = mint.cat([x, mint.zeros((1, x.shape[1]), dtype=x.dtype)])
        index = np.where(index < 0, x.shape[0] - 1, index)
    return ops.gather(x, Tensor(index.astype(np.int32)), 0)


def send(xs: list[np.ndarray], sent: Routing | RelayedRows, entries_per_row: int) -> list[np.ndarray]:
    """Returns out[d][row] = xs[source of row][entry of row // entries_per_row]; zero for padding."""
    out = [np.zeros((len(source), xs[0].shape[1]), xs[0].dtype) for source in sent.source_of_row]
    for rows, sources, entries in zip(out, sent.source_of_row, sent.entry_of_row, strict=True):
        for source, x in enumerate(xs):
            mine = (sources == source) & (entries != PADDING)
            rows[mine] = x[entries[mine] // entries_per_row]
    return out


def send_back(rows: list[np.ndarray], sent: Routing | RelayedRows) -> list[np.ndarray]:
    """Returns out[rank][entry] = its row; zero for entries of padding tokens and dropped ones."""
    sizes = [len(k) for k in sent.kept] if isinstance(sent, RelayedRows) else [sent.max_tokens * sent.top_k] * sent.ep_size
    out = [np.zeros((size, rows[0].shape[1]), rows[0].dtype) for size in sizes]
    for mine, sources, entries in zip(rows, sent.source_of_row, sent.entry_of_row, strict=True):
        for source, back in enumerate(out):
            there = (sources == source) & (entries != PADDING)
            back[entries[there]] = mine[there]
    return out


def sum_entries(back: np.ndarray, kept: np.ndarray, top_k: int, weights: np.ndarray | None = None) -> np.ndarray:
    """Returns each row's sum of its entries in the order of choices, weighted if there are weights [rows, top_k].

    Entries that are not kept are zeros; their weights are not read.
    """
    parts, total = back.reshape(-1, top_k, back.shape[1]), np.zeros_like(back[:len(back) // top_k])
    if weights is not None:
        is_kept = np.zeros(weights.size, bool)
        is_kept[:len(kept)] = kept
        parts = parts * np.where(is_kept.reshape(weights.shape), weights, np.zeros_like(weights))[:, :, None]
    for k in range(top_k):
        total += parts[:, k]
    return total


def tile_return(tiler: Tiler, rows: Atom, route: Atom, out: Atom) -> Access:
    """Sends rows back to a buffer with one row for each entry, of which `out` is made; returns how it is accessed."""
    source, sent, aval = tiler.at(rows, cols=col_modes.ALL, dtypes=tiler.MOVED), tiler.buffer(rows), as_route(route.aval)
    entries = tiler.hidden(f"{tiler.names(out)}.entries", aval.num_tokens * aval.top_k, sent.cols, sent.dtype)
    access = dataclasses.replace(source, buffer=entries, rows=row_modes.ENTRIES)
    tiler.emit(ALL_TO_ALL_BACK, tiler.once(route), access, source, cols=0)
    return access
