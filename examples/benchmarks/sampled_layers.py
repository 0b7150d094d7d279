"""Layers of many shapes and routings, drawn."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.routing.skewed import SKEWS, skewed_ids

FEW, MANY = "few rows", "many rows"
TOKENS = {FEW: tuple(2**i for i in range(10)), MANY: (1024, 2048, 4096, 8192)}
RANKS = {FEW: (16, 32, 64, 128, 256), MANY: (8, 16, 32, 64)}
WIDTHS = (7168, 2048), (5120, 1536), (4096, 1536), (2048, 1024), (2048, 768), (4096, 14336)  # hidden and intermediate size
TOP_K, LOCAL_EXPERTS = (4, 6, 8), (1, 2, 4, 8)
MOST_ENTRIES = 2**19  # of all ranks; a larger layer is drawn again


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer of the grid."""

    rows: str
    routing: str
    direction: str
    sizes: SimpleNamespace

    def __str__(self) -> str:
        o = self.sizes
        return (f"EP {o.ep:<3} T {o.tokens:<4} H {o.hidden} I {o.intermediate:<4} E/rank {o.experts // o.ep} K {o.top_k} "
                f"{self.direction:8} {self.routing}")

    def layer(self, machine: hpmoe.Machine, seed: int, prefetch: bool = False) -> Layer:
        o = self.sizes
        return Layer(o, self.direction, machine, skewed_ids(self.routing, o.ep, o.tokens, o.top_k, o.experts, seed),
                     tuned=True, prefetch=prefetch)


def cases(count: int, seed: int, dtype: str) -> Iterator[Case]:
    """Returns a number of sampled layers, half of them with few rows; routings and directions alternate."""
    rng = np.random.default_rng(seed)
    kinds = itertools.cycle(itertools.product((FEW, MANY), SKEWS, ("forward", "backward")))
    for rows, routing, direction in itertools.islice(kinds, count):
        while True:
            ep, tokens, top_k, local = (int(rng.choice(sizes)) for sizes in (
                RANKS[rows], TOKENS[rows], TOP_K, LOCAL_EXPERTS))
            hidden, intermediate = WIDTHS[rng.integers(len(WIDTHS))]
            if ep * tokens * top_k <= MOST_ENTRIES and ep // 2 * local >= top_k:
                break
        yield Case(rows, routing, direction, SimpleNamespace(
            ep=ep, tokens=tokens, top_k=top_k, experts=local * ep, hidden=hidden, intermediate=intermediate, dtype=dtype))
