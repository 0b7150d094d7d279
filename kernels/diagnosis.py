"""What went wrong in a launch, in words: the native status read beside the image it came from."""

import numpy as np

from hpmoe.errors import LaunchError
from hpmoe.kernels.protocol import Code, Index, Opcode

MAX_NAMED = 8


def make_error(status, sections=None, fault=""):
    """The LaunchError of a failed native Status, which stands in its `status` attribute as a dict.

    `sections` of the image name its tasks; `fault` says what is wrong with a broken one.
    """
    fields = {name: getattr(status, name) for name, _ in status._fields_}
    fields["code"] = Code(fields["code"])
    error = LaunchError(_sentence(fields, sections, fault))
    error.status = fields
    return error


def _sentence(status, sections, fault):
    rank, value, threshold = status["rank"], status["value"], status["threshold"]
    match status["code"]:
        case Code.TIMEOUT if status["event"] < 0:
            return f"rank {rank} waited too long for the other ranks' routing to begin."
        case Code.TIMEOUT:
            return (
                f"{_task(status, sections)} waited too long: event {status['event']} stands at {value}, "
                f"its threshold is {threshold}. {_signallers(status['event'], sections)}"
            )
        case Code.OUT_OF_MEMORY:
            return "the system has no more memory or threads for the launch."
        case Code.BAD_IMAGE:
            return f"the packed image is broken: {fault or 'it does not fit the ranks it was launched on'}."
        case Code.INTERRUPTED:
            return f"the launch was interrupted; rank {rank} was at task {status['task']}."
        case Code.WRONG_COUNT:
            return (
                f"every worker has left, but event {status['event']} of rank {rank} received {value} where its "
                f"threshold is {threshold}. {_signallers(status['event'], sections)}"
            )
        case Code.SLOT_OVERFLOW:
            return (
                f"rank {rank} would receive more than the plan holds: {value} where {threshold} fit. "
                "Plan for a larger capacity."
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
            return f"{_task(status, sections)} read an index past the rows it gathers from."
        case code:
            return f"the launch ended with code {code.name}."


def _task(status, sections):
    task = sections["tasks"][status["task"]]
    opcode = Opcode(int(sections["ops"][task["op"]]["opcode"]))
    return (
        f"rank {status['rank']}, queue {status['queue']}, task {status['task']} "
        f"({opcode.name} of op {task['op']}, row {task['row']}, peer {task['peer']}, columns from {task['col']})"
    )


def _signallers(event, sections):
    """Which tasks could have added to the event: exact for a static index, by range and stride for a computed one."""
    signals, tasks = sections["signals"], sections["tasks"]
    ahead, stride = event - signals["event"], np.maximum(signals["stride"], 1)
    hits = np.where(signals["kind"] == Index.STATIC, ahead == 0, (ahead >= 0) & (ahead % stride == 0))
    before = np.concatenate([[0], np.cumsum(hits)])
    first = tasks["first_signal"]
    found = np.flatnonzero(before[first + tasks["num_signals"]] > before[first])
    if not found.size:
        return "No task signals it."
    names = ", ".join(map(str, found[:MAX_NAMED]))
    more = f" and {found.size - MAX_NAMED} more" if found.size > MAX_NAMED else ""
    return f"It is signalled by task{'s' if found.size > 1 else ''} {names}{more}."
