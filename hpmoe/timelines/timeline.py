"""Timeline: a run, measured or simulated, and the ways to look at it."""

from __future__ import annotations

import os

import numpy as np

from hpmoe.ir.taskflow import Taskflow
from hpmoe.support.errors import check_argument, is_int
from hpmoe.support.keywords import suggests_keywords
from hpmoe.timelines import chrome, html, picture, text
from hpmoe.timelines.critical_path import CriticalPath, critical_path
from hpmoe.timelines.releases import waiting_for
from hpmoe.timelines.run import Run, rows_of


@suggests_keywords
class Timeline(Run):
    """One measured or simulated run of a Taskflow's queues on all ranks, with views, summaries and pictures.

    Times are in microseconds. The attributes are those of hpmoe.timelines.run.Run.

    Example:
        >>> import hpmoe
        >>> tiles = hpmoe.tile_partition(hpmoe.swiglu, rows=128)
        >>> flow = hpmoe.assign_queues(tiles, machine=hpmoe.machines.ascend_a3).lower(hpmoe.ShapeDtypeStruct((512, 1024),
        ...                                                                                                  "bfloat16"))
        >>> line = hpmoe.simulate(flow)
        >>> len(line.task) == flow.num_tasks, line.span == line.end.max(), line.simulated is not None
        (True, True, True)
    """

    @classmethod
    def from_trace(cls, flow: Taskflow, trace: np.ndarray, moved: np.ndarray | None = None) -> Timeline:
        """Returns the Timeline of a launch.

        Args:
            flow: Taskflow that was launched.
            trace: int64 [ep, num_tasks, 3] nanoseconds, tasks in the order of the queues.
            moved: [ep, ep] bytes from rank to rank, see Run; or None.

        Raises:
            ArgumentError: the taskflow has no queues, or the trace is of another shape.

        Example:
            >>> import numpy as np, hpmoe
            >>> staged = hpmoe.assign_queues(hpmoe.tile_partition(hpmoe.swiglu, rows=4), machine=hpmoe.cpu(1))
            >>> flow = staged.lower(hpmoe.ShapeDtypeStruct((8, 6), "float32"))
            >>> trace = np.array([[[0, 1000, 3000], [3000, 3000, 4000]]])
            >>> print(Timeline.from_trace(flow, trace).text(width=8))
            # swiglu | tile_partition(rows=4, cols=1024) | assign_queues(cpu, critical_path)
            timeline swiglu  ranks=1 workers=1 tasks=2  4.0 us, 75 % busy, 1.0 us waiting summed over 1 worker
              rank 0 worker.0 |..SSSSSS|  75 %
              S SwiGLU   . waiting
        """
        check_argument(bool(flow.queues), "Timeline.from_trace", "flow", "without queues", "what assign_queues made")
        shape = (flow.ep_size, flow.num_tasks, 3)
        check_argument(trace.shape == shape, "Timeline.from_trace", "trace", f"of shape {trace.shape}",
                       f"of shape {shape}")
        first = int(trace.min()) if trace.size else 0
        times = np.subtract(trace, first, dtype=float)
        times /= 1e3
        wait_begin, begin, end = times.reshape(-1, 3).T
        return cls(flow, *rows_of(flow), wait_begin, begin, end, first / 1e3, None, moved)

    def waiting_for(self) -> dict[str, float]:
        """Returns the microseconds that all workers together waited, by cause, the longest first; they add up to `waiting`.

        What a worker waited for is the tile operation whose signal ended its wait, see `critical_path`; "events already
        counted" is what looking at events took that needed no waiting.

        Example:
            >>> import hpmoe
            >>> f = hpmoe.tile_partition(lambda x, w: hpmoe.swiglu(x @ w), rows=128, cols=256)
            >>> flow = hpmoe.assign_queues(f, machine=hpmoe.machines.ascend_a3).lower(
            ...     hpmoe.ShapeDtypeStruct((512, 1024), "bfloat16"), hpmoe.ShapeDtypeStruct((1024, 1024), "bfloat16"))
            >>> list(hpmoe.simulate(flow).waiting_for())
            ['matmul -> a']
        """
        return waiting_for(self)

    def critical_path(self) -> CriticalPath:
        """Returns the chain of waits from the end of the run back to its beginning; see CriticalPath."""
        return critical_path(self)

    def chrome_json(self, max_arrows: int = 10_000) -> str:
        """Returns the run as a Chrome trace: open it in ui.perfetto.dev or chrome://tracing; see timelines.chrome."""
        return chrome.chrome_json([self], max_arrows=max_arrows)

    def text(self, width: int = 72) -> str:
        """Returns a row of `width` letters for each worker: the kind of work it did most of in each `span / width`."""
        return text.gantt_text(self, width)

    def report(self) -> str:
        """Returns a text of the use of each unit, exposed communication, waiting by its cause, and the critical path."""
        return text.report_text(self)

    def picture(self, path: str | os.PathLike[str], *, rank: int | None = None, until: float | None = None,
                title: str = "") -> None:
        """Draws the run into a file whose suffix is its format (.png, .svg, .pdf); needs the extra `hpmoe[plot]`.

        Args:
            path: the file.
            rank: draws the workers of one rank only; some ranks and the use of units if None.
            until: with `rank`, the end of the axis of time in microseconds, to compare pictures; the run's end if None.
            title: with `rank`, words before the time; the function's name if empty.

        Raises:
            ArgumentError: rank is not a rank of the run.
        """
        if rank is None:
            picture.draw(self, path)
            return
        most = self.flow.ep_size - 1
        check_argument(is_int(rank, 0, most), "Timeline.picture", "rank", rank, f"an int in 0..{most}")
        picture.draw_side_by_side([self], [title or self.flow.name], "", path, rank=rank, until=until)

    def html(self) -> str:
        """Returns the run as one self-contained HTML page."""
        return html.html([self])

    def _repr_html_(self) -> str:
        return html.fragment(self)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__
