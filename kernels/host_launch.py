"""Places the arrays of a launch from this process, and gathers its outputs; how the kernel is launched is its target's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hpmoe.ir.layout import received_rows
from hpmoe.ir.taskflow import Taskflow
from hpmoe.kernels.buffers import Placed, Places
from hpmoe.kernels.link import Link
from hpmoe.kernels.memory import Pool
from hpmoe.runtime.targets import Arrays, Executable, explained
from hpmoe.support.errors import LaunchError, check_argument

POOL = Pool()


def place_all(executable: Executable, places: Places, inputs: Sequence[Arrays], num_tokens: Sequence[int] | None,
              into: Mapping[int, Arrays], received: Sequence[Sequence[int]] | None) -> tuple[Placed, list[int]]:
    """Returns the buffers of a launch of all ranks, and the tokens of each rank; see Executable.run."""
    flow = executable.flow
    given = None if num_tokens is None else [int(n) for n in num_tokens]
    results = {flow.outputs[j]: arrays for j, arrays in into.items()}
    rows = received_rows(flow, inputs, given, received)
    placed = Placed(places, POOL, inputs, rows, given is not None, results)
    return placed, [executable.num_tokens] * flow.ep_size if given is None else given


def place_one(executable: Executable, places: Places, link: Link, inputs: Arrays, counts: Arrays,
              num_tokens: Sequence[int] | None, into: Mapping[int, np.ndarray]) -> tuple[Placed, int]:
    """Returns the buffers of a launch of this process's rank, and the rank's tokens; see Executable.run_rank."""
    flow = executable.flow
    check_argument(link.size == flow.ep_size, "launch", "link.size", link.size, f"{flow.ep_size}, as the kernel")
    results = {flow.outputs[j]: [array] for j, array in into.items()}
    routes = (plan for plan in flow.routes if not plan.kind.is_of_tokens)
    received = [plan.kind.by_ids.received_of(np.sum(c, axis=0)) for c, plan in zip(counts, routes, strict=True)]
    rows = received_rows(flow, [inputs], num_tokens, received)[link.rank]
    placed = Placed(places, link.pool, [inputs], [rows], num_tokens is not None, results)
    return placed, executable.num_tokens if num_tokens is None else int(num_tokens[link.rank])


def outputs_of(flow: Taskflow, placed: Placed) -> list[list[np.ndarray]]:
    """Returns the outputs of each rank that was launched."""
    return [[flow.buffers[b].user_view(placed.array(rank, b)) for b in flow.outputs]
            for rank in range(len(placed.addresses))]


class Explaining:
    """The context of a launch, whose errors name kernel, task and event."""

    def __init__(self, executable: Executable):
        self._executable = executable

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, LaunchError):
            raise explained(error, self._executable.flows) from None
