"""Puts into words what went wrong in a launch: the native status read beside the image it came from."""

from __future__ import annotations

import ctypes
import enum

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.kernels.image import unpack_image
from hpmoe.kernels.plan_images import image_of
from hpmoe.kernels.protocol import PRIMITIVES, Code, Dtype, MapCode, Opcode, Reduction
from hpmoe.kernels.unpacking import read_table, read_tasks
from hpmoe.support.cached_files import Fields
from hpmoe.support.errors import LaunchError
from hpmoe.support.known import known
from hpmoe.tile_ops.params import ByColumns, Elementwise

MAX_NAMED = 8


def make_error(status: ctypes.Structure, image: np.ndarray | None = None, fault: str = "", plan: int = 0) -> LaunchError:
    """Returns the LaunchError of a failed native Status, which its `status` attribute has as a dict.

    The image names its tasks, those of the `plan` that a launch took where it holds several; `fault` says what is wrong
    with a broken one.
    """
    fields: Fields = {field[0]: getattr(status, field[0]) for field in status._fields_}
    fields["code"], fields["plan"] = Code(fields["code"]), plan
    error = LaunchError(_sentence(fields, image if image is None else image_of(image, plan), fault))
    error.status = fields
    return error


def _sentence(status: Fields, image: np.ndarray | None, fault: str) -> str:
    rank, value, threshold = status["rank"], status["value"], status["threshold"]
    match status["code"]:
        case Code.TIMEOUT if status["event"] < 0:
            return f"rank {rank} waited too long for the other ranks' routing to begin."
        case Code.TIMEOUT:
            return (
                f"{_task(status, image)} waited too long: event {status['event']} stands at {value}, "
                f"its threshold is {threshold}. {_signallers(status['event'], image)}"
            )
        case Code.ABORTED_PEER:
            return f"rank {rank} gave up because another rank failed, which says why."
        case Code.OUT_OF_MEMORY:
            return "the system has no more memory or threads for the launch."
        case Code.BAD_IMAGE if not fault and status["task"] >= 0:
            return f"{_task(status, image)} has no body in this kernel: it asks for {_asked(status['task'], image)}."
        case Code.BAD_IMAGE if not fault and status["event"] >= 0:
            return f"event {status['event']} of rank {rank} counts what this kernel does not know."
        case Code.BAD_IMAGE:
            return f"the packed image is broken: {fault or 'it does not fit the ranks it was launched on'}."
        case Code.INTERRUPTED:
            return f"the launch was interrupted; rank {rank} was at task {status['task']}."
        case Code.WRONG_COUNT:
            return (
                f"every worker has left, but event {status['event']} of rank {rank} received {value} where its "
                f"threshold is {threshold}. {_signallers(status['event'], image)}"
            )
        case Code.SLOT_OVERFLOW:
            return (
                f"rank {rank} would receive {value} rows through route {status['wait']}, and can hold {threshold}. "
                "Give limit_rows a larger rank_capacity_factor, or plan for these ids."
            )
        case Code.NO_ROW_CAPACITY:
            return (
                f"rank {rank} would receive {value} rows through route {status['wait']}, and its arrays can hold "
                f"{threshold}: topk_ids changed after these were made for them. Nothing may write to ids during a call."
            )
        case Code.OVER_CAPACITY:
            return (
                f"{value} tokens of rank {rank} chose expert {status['wait']}; its capacity is {threshold}. Give a larger "
                "capacity_factor, or drop what is over: drop_policy=\"position\" or \"probs\"."
            )
        case Code.NOT_A_NUMBER:
            return f"topk_weights[{value}, {threshold}] of rank {rank} is NaN, and decides what drop_policy=\"probs\" keeps."
        case Code.INDEX_OUT_OF_RANGE if status["task"] < 0:
            return f"topk_ids of rank {rank} names expert {value}; there are {threshold}."
        case Code.INDEX_OUT_OF_RANGE:
            return f"{_task(status, image)} read an index past the rows it gathers from."
        case code:
            return f"the launch ended with code {code.name}."


def _task(status: Fields, image: np.ndarray | None) -> str:
    header, sections = unpack_image(known(image))
    task = read_tasks(header, sections)[0][status["task"]]
    opcode = _name(Opcode, sections["ops"][task["op"]]["opcode"])
    return (
        f"rank {status['rank']}, queue {status['queue']}, task {status['task']} "
        f"({opcode} of op {task['op']}, row {task['row']}, peer {task['peer']}, columns from {task['col']})"
    )


def _asked(place: int, image: np.ndarray | None) -> str:
    """Returns the body that a task asks for: its opcode, its function, and the dtypes of its operands."""
    header, sections = unpack_image(known(image))
    op = sections["ops"][read_tasks(header, sections)[0][place]["op"]]
    primitive = PRIMITIVES.get(int(op["opcode"]))
    function = {Elementwise: MapCode, ByColumns: Reduction}.get(primitive.params) if primitive else None
    words = [_name(Opcode, op["opcode"]), *([_name(function, op["param"][0])] if function else [])]
    buffers = op["operands"]["buffer"][:max(int(op["num_operands"]), 0)]
    codes = sections["buffers"]["dtype"]
    dtypes = [_name(Dtype, int(codes[b])).lower() for b in buffers if 0 <= b < len(codes)]
    return f"{' '.join(words)} of {', '.join(dtypes) or 'no operands'}"


def _name(kind: type[enum.IntEnum], value: int) -> str:
    """Returns the name of the member with this value, or text such as "Kind 7" if there is no such member."""
    return kind(value).name if value in kind.__members__.values() else f"{kind.__name__} {value}"


def _signallers(event: int, image: np.ndarray | None) -> str:
    """Returns the tasks that could have added to the event; all candidates if its index is found at run time."""
    signals = read_table(*unpack_image(known(image)), "signals", tf.SIGNAL)
    hits = np.where(signals["kind"] == tf.STATIC, signals["event"] == event, signals["event"] <= event)
    found = np.unique(signals["task"][hits])
    if not found.size:
        return "No task signals it."
    names = ", ".join(map(str, found[:MAX_NAMED]))
    more = f" and {found.size - MAX_NAMED} more" if found.size > MAX_NAMED else ""
    return f"It is signalled by task{'s' if found.size > 1 else ''} {names}{more}."
