"""schedule_grid.py --row_capacities: how long drawn layers take by plans for any routing, and by plans with limits."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
from sampled_layers import Case, cases

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.kernels.plan_images import taken_up_to
from hpmoe.routing.skewed import SKEWS
from hpmoe.runtime.planned_rows import PlannedRows, rows_at_start
from hpmoe.support.cached_files import Fields
from hpmoe.support.progress import Progress

FACTORS: dict[str, float | None] = {"all": None, "2": 2.0, "1.5": 1.5}  # rank_capacity_factor of each room
DRAWN = 16  # layers of the grid for each that is taken
CHOSEN = "chosen"  # the column of plans chosen at the start
CHOICE_US = 2.1  # of a launch that chooses; `pytest -m slow tests/ascend/test_ascend_prologue.py -k choice` counts it
MOST_RANKS, LEAST_TOKENS, MOST_ENTRIES = 32, 32, 2**18  # of all ranks: plans for any routing are simulated in seconds


def rows(count: int, seed: int, dtype: str, machine: hpmoe.Machine, progress: Progress) -> list[Fields]:
    """Yields, for `count` layers, the time of a plan for the received rows, and the ratio of each larger capacity."""
    out = []
    for i, case in itertools.islice(_taken(count, seed, dtype), count):
        progress(f"{i + 1} of {count}: {case}")
        known = case.layer(machine, seed + i)
        us = known.span_us(known.fused())
        times = {}
        for name, factor in FACTORS.items():
            layer = dataclasses.replace(known, row_capacity="all", rank_capacity_factor=factor)
            if _fullest(known) <= layer.tiles.routes[0].max_rows:
                times[name] = layer.span_us(layer.fused()) / us
        layer = _chosen(known)
        times[CHOSEN] = (layer.span_us(layer.fused()) + CHOICE_US) / us
        out.append({"layer": str(case), "routing": case.routing, "received_us": us, "over_received": times})
    return out


def _fullest(layer: Layer) -> int:
    """Rows of the fullest rank."""
    return int(layer.loads.reshape(layer.o.ep, -1).sum(axis=1).max())


def _chosen(known: Layer) -> Layer:
    """With the plan for any routing that a kernel takes when it starts."""
    layer = dataclasses.replace(known, row_capacity="all")
    route = layer.tiles.routes[0]
    plans = rows_at_start(PlannedRows(route.max_rows, route.expected_rows), route.num_tokens * route.top_k)
    expected = [rows.expected for rows in plans]
    return dataclasses.replace(layer, plan=sum(_fullest(known) > rows for rows in taken_up_to(expected)))


def _taken(count: int, seed: int, dtype: str) -> Iterator[tuple[int, Case]]:
    """The layers of the grid that are of such sizes, numbered."""
    return enumerate(case for case in cases(DRAWN * count, seed, dtype)
                     if case.sizes.ep <= MOST_RANKS and case.sizes.tokens >= LEAST_TOKENS
                     and case.sizes.ep * case.sizes.tokens * case.sizes.top_k <= MOST_ENTRIES)


def text(table: list[Fields], machine: hpmoe.Machine, seed: int) -> str:
    """A line for each layer, and the mean and worst of each room by routing; "-" where the rows have none."""
    columns = *FACTORS, CHOSEN
    lines = [f"{machine.name}, {len(table)} layers drawn with seed {seed}: simulated",
             f"{'':62}{'ms':>8}  times as long with room for" + "".join(f"{name:>8}" for name in columns)]
    for r in table:
        times = r["over_received"]
        cells = "".join(f"{times[name]:8.3f}" if name in times else f"{'-':>8}" for name in columns)
        lines.append(f"{r['layer']:62}{r['received_us'] / 1e3:8.2f}{'':29}{cells}")
    for routing in SKEWS:
        mine = [r["over_received"] for r in table if r["routing"] == routing]
        for what, of in (("mean", np.mean), ("worst", np.max)) if mine else ():
            found = ([times[name] for times in mine if name in times] for name in columns)
            lines.append(f"{f'{routing}, {len(mine)} layers: {what}':99}"
                         + "".join(f"{of(times):8.3f}" if times else f"{'-':>8}" for times in found))
    return "\n".join(lines)
