"""What a proof that fails says: the fault, and the tasks around it."""

from __future__ import annotations

from typing import NoReturn

from hpmoe import taskflow as tf
from hpmoe.errors import VerifyError
from hpmoe.taskflow_text import taskflow_window


def fail(flow: tf.Taskflow, what: str, task: int | None = None) -> NoReturn:
    """Raises VerifyError, with the tasks around `task` in its queue where one is to blame."""
    window = "" if task is None or not flow.num_tasks else "\n" + taskflow_window(flow, task)
    raise VerifyError(f"verify: {what}{window}")
