"""The error of a proof that fails: the fault, and the tasks around it."""

from __future__ import annotations

from typing import NoReturn

from hpmoe.ir import taskflow as tf
from hpmoe.ir.taskflow_text import taskflow_window
from hpmoe.support.errors import VerifyError


def fail(flow: tf.Taskflow, what: str, task: int | None = None) -> NoReturn:
    """Raises VerifyError, with the tasks around `task` in its queue where one is to blame."""
    window = "" if task is None or not flow.num_tasks else "\n" + taskflow_window(flow, task)
    raise VerifyError(f"verify: {what}{window}")
