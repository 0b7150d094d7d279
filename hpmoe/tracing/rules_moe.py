"""MindSpore's own product of groups."""

from __future__ import annotations

from typing import NoReturn

from hpmoe.tracing.calls import call
from hpmoe.tracing.errors import not_traceable
from hpmoe.tracing.recorder import Recorder


@call("GroupedMatmul", "GroupedMatmulV2", "GroupedMatmulV4")
def grouped_matmul(r: Recorder, *args: object, **kwargs: object) -> NoReturn:
    raise not_traceable("ops.grouped_matmul", "its groups are not tied to a route",
                        "rows, route = hpmoe.dispatch(...); hpmoe.grouped_matmul(rows, weight, route)")
