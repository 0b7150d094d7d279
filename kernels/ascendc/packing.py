"""Packs the plans of a program for the Ascend kernel, which takes one of them when it starts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpmoe.ir.taskflow import Taskflow
from hpmoe.kernels.ascendc.emulator.native import load
from hpmoe.kernels.ascendc.rules import check_flow, check_image
from hpmoe.kernels.packing import pack
from hpmoe.kernels.plan_images import choice_at_start, pack_plans


def pack_all(flows: Sequence[Taskflow], target: str) -> tuple[tuple[Taskflow, ...], np.ndarray]:
    """Returns the taskflows that a launch chooses from, and their image: only the first if there is no choice at the start.

    Raises:
        ArgumentError: the kernel cannot run one of the taskflows.
    """
    chosen = choice_at_start(flows)
    taken = tuple(flows if chosen else flows[:1])
    images = [_pack(flow, target) for flow in taken]
    return taken, pack_plans(images, chosen) if chosen else images[0]


def _pack(flow: Taskflow, target: str) -> np.ndarray:
    check_flow(flow, target, load().hpmoe_emulator_chip())
    image = pack(flow)
    check_image(image)
    return image
