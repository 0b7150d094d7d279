"""synchronize: waits for launches that have not ended."""

from __future__ import annotations

from collections.abc import Callable

WAITS: list[Callable[[], None]] = []  # of targets whose calls return before their launches end


def synchronize() -> None:
    """Waits for every launch under way on this process's NPU.

    A kernel bound by fuse_persistent(target="ascend") is launched in the order of MindSpore's stream, and a call returns
    before the kernel has run. If the kernel fails, the next call of the same kernel raises the error, or this function does.
    On other targets a call returns after its launch, so there is nothing to wait for.

    Raises:
        LaunchError: a launch failed; the text names task and event.

    Example:
        >>> import hpmoe
        >>> hpmoe.ranks.synchronize()
    """
    for wait in WAITS:
        wait()
