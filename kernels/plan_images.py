"""Several plans of one program in one image, of which a launch takes one by the rows that the fullest rank receives."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from hpmoe.ir.taskflow import Taskflow
from hpmoe.kernels import protocol

SIZE = protocol.HEADER.itemsize


def choice_at_start(flows: Sequence[Taskflow]) -> list[int] | None:
    """Returns, for each plan but the last, the most rows of the fullest rank with which a launch takes the plan.

    Returns None if there is no choice: with several routes, or if the plans differ in capacity.

    Args:
        flows: plans of one program, by rising expected rows.
    """
    routes = [route for flow in flows for route in flow.routes]
    if len(flows) < 2 or len(routes) != len(flows) or len({route.max_rows for route in routes}) > 1:
        return None
    return taken_up_to([route.expected_rows for route in routes])


def taken_up_to(expected: Sequence[int]) -> list[int]:
    """Returns, for each number but the last, the most rows with which a launch takes the plan for that number.

    The limit lies a quarter of the way to the next number: a plan for too few rows loses more time than one for too many.

    Example:
        >>> taken_up_to([10, 25, 40])
        [13, 28]
    """
    return [(3 * rows + more) // 4 for rows, more in itertools.pairwise(expected)]


def pack_plans(images: Sequence[np.ndarray], most_received: Sequence[int]) -> np.ndarray:
    """Returns the bytes of all images, one after the other, with the choice among them in their headers.

    `most_received` are, for each image but the last, the most rows of the fullest rank with which a launch takes the plan.
    """
    out = np.concatenate(images)
    for plan, most in enumerate((*most_received, 0)):
        header = image_of(out, plan)[:SIZE].view(protocol.HEADER)
        header["num_behind"], header["most_received"] = len(most_received) - plan, most
    return out


def image_of(images: np.ndarray, plan: int) -> np.ndarray:
    """Returns plan number `plan` of packed plans, see `pack_plans`: a view of its bytes, uint8, in `images`."""
    start = 0
    for _ in range(plan):
        start += _bytes_at(images, start)
    return images[start:start + _bytes_at(images, start)]


def _bytes_at(images: np.ndarray, start: int) -> int:
    return int(images[start:start + SIZE].view(protocol.HEADER)["image_bytes"][0])


def in_words(flows: Sequence[Taskflow], of_buffers: Sequence[Sequence], nothing: object) -> list:
    """Returns the values of each plan's buffers in the order of their table on a device; `nothing` for capacities of
    routes."""
    return [word for flow, words in zip(flows, of_buffers, strict=True) for word in (*words, *[nothing] * len(flow.routes))]
