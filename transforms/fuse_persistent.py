"""fuse_persistent: queues -> one launch of a persistent kernel for each direction."""

from __future__ import annotations

import functools
from typing import Any

from hpmoe.ir.taskflow import Taskflow
from hpmoe.runtime.targets import Target, check_usable, find_target
from hpmoe.runtime.transform import Transform
from hpmoe.support.errors import check_argument, check_flags, is_number

TIMEOUT = 60.0


def _check(target: str = "cpu", timeout: float = TIMEOUT, keep_plans: bool = False) -> None:
    check_usable(target)
    check_argument(is_number(timeout) and timeout > 0, "fuse_persistent", "timeout", repr(timeout),
                   "a positive number of seconds")
    check_flags("fuse_persistent", keep_plans=keep_plans)


def _bound(target: str = "cpu", timeout: float = TIMEOUT, keep_plans: bool = False) -> tuple[Target, bool]:
    return find_target(target), keep_plans


@functools.partial(Transform, requires="queues", makes="kernel", once=True, check=_check, binds=_bound)
def fuse_persistent(flow: Taskflow, *, target: str = "cpu", timeout: float = TIMEOUT, keep_plans: bool = False) -> Any:
    """Packs the queues into a binary image and binds the persistent kernel, forward and backward.

    The callable takes MindSpore tensors and is differentiable with ms.grad, ms.value_and_grad and inside a Cell. A call is
    one native launch of all workers of all ranks; routing may change from call to call without a new plan.

    Rewrite:
        queue worker.0: t0 t1 ...   queue worker.1: ...
        ->
        kernel cpu  image=... bytes

    Requires: assign_queues.
    Ensures: an Executable; the outermost transform of a chain, to which only spmd may be added.

    Args:
        f: the staged function.
        target: "cpu", threads of this process; "ascend", the NPU of this process, with machine=hpmoe.machines.ascend_a3 or
            another machine of two AIV for each AIC; "ascend-emulator", the source of the Ascend kernel run on an emulator
            of an NPU, for tests. `hpmoe doctor --target=ascend` lists what the Ascend kernel runs and what it refuses.
        timeout: seconds without any task ending, on any rank, after which a call raises an error that names the task and
            the event that lost its signal.
        keep_plans: True stores plans that take long to make in the user's cache folder and reads stored plans, in calls
            and in `warm_up`; see hpmoe/runtime/README.md.

    Raises:
        ArgumentError: target is unknown, this machine cannot run it, or it has no tile body for an operation of f; timeout
            is not positive; or keep_plans is no bool.
        TransformError: applied out of order or twice.
        LaunchError: raised by a call if the launch does not finish.

    Example:
        >>> import mindspore as ms, hpmoe
        >>> f = hpmoe.fuse_persistent(hpmoe.assign_queues(hpmoe.tile_partition(lambda x: hpmoe.swiglu(x) * 2.0)))
        >>> f(ms.Tensor([[0.0, 5.0], [20.0, 2.0]], ms.float32)).asnumpy().round(3).tolist()
        [[0.0], [80.0]]
    """
    return find_target(target).compile([flow], timeout)
