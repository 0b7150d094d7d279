"""The exceptions that hpmoe raises, and the one wording of argument errors."""

import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from hpmoe.support.trees import Function, PyTree

LEAST, MOST = float(np.finfo(np.float32).smallest_subnormal), float(np.finfo(np.float32).max)  # that float32 holds
MOST_SHOWN = 240  # characters of what was given


def ended(text: str) -> str:
    """Returns a text whose first line ends with a full stop, unless the line ends with another mark."""
    first, newline, rest = text.partition("\n")
    return f"{first}{'' if first.endswith(('.', ':', '?', '!')) else '.'}{newline}{rest}"


class Sentence(Exception):
    """Base of the exceptions of hpmoe: the first line of the text ends like a sentence."""

    def __init__(self, text: str):
        super().__init__(ended(text))


class ArgumentError(Sentence, ValueError):
    """Raised if an argument has a wrong type, shape or value; the text names the argument, its value and the expected value.

    Example:
        >>> import hpmoe
        >>> hpmoe.Mesh(ep=0)
        Traceback (most recent call last):
        ...
        hpmoe.ArgumentError: hpmoe.Mesh: ep is 0; it must be a positive int.
    """

    __module__ = "hpmoe"


class TraceError(Sentence, TypeError):
    """Raised if a `Program` cannot record what a function does; the text has the line and what to write instead.

    Example:
        >>> import hpmoe
        >>> hpmoe.trace(lambda x: x if x.sum() > 0 else -x, hpmoe.ShapeDtypeStruct((2,), "float32"))
        Traceback (most recent call last):
        ...
        hpmoe.TraceError: a Python branch on bool[] is not traceable: a tracer has a shape and a dtype, its values ...
          at ...
          write instead: mint.where(condition, a, b), or decide outside the function and pass a Python value
    """

    __module__ = "hpmoe"


class ProgramError(Sentence, ValueError):
    """Raised if a `Program` breaks a rule, or a primitive of it lacks a rule that an operation needs, such as its gradient.

    Example:
        >>> import hpmoe
        >>> hpmoe.rewriting.vjp(hpmoe.rewriting.vjp(hpmoe.trace(hpmoe.swiglu, hpmoe.ShapeDtypeStruct((2, 4), "float32"))))
        Traceback (most recent call last):
        ...
        hpmoe.ProgramError: vjp asked swiglu_grad what its gradient is, and it has no vjp rule.
    """

    __module__ = "hpmoe"


class TransformError(Sentence, ValueError):
    """Raised if a transform does not apply to its function; the text says why, and what to write.

    Example:
        >>> import hpmoe
        >>> hpmoe.overlap_comm(hpmoe.swiglu)
        Traceback (most recent call last):
        ...
        hpmoe.TransformError: overlap_comm: it needs the tile tasks that tile_partition makes, and 'swiglu' is a ...
    """

    __module__ = "hpmoe"


class VerifyError(Sentence, ValueError):
    """Raised if a `Taskflow` is not a correct schedule; the text shows the tasks around the fault.

    Example:
        >>> import hpmoe
        >>> x, w = hpmoe.ShapeDtypeStruct((4, 2), "float32"), hpmoe.ShapeDtypeStruct((2, 3), "float32")
        >>> flow = hpmoe.tile_partition(lambda x, w: (x @ w) * 2.0).lower(x, w)
        >>> hpmoe.verify(flow.replace(deps=flow.deps.replace(waits=flow.deps.waits[:0])))
        Traceback (most recent call last):
        ...
        hpmoe.VerifyError: verify: waits[0] is missing; the operations and queues need task=1, event=0, kind=0. ...
             t0 matmul[rows 0:4, cols 0:3] x w -> a wait -  signal !a.0 += rows
        >    t1 mul[rows 0:4, cols 0:3]    a -> b   wait !a.0 >= rows  signal -
    """

    __module__ = "hpmoe"


class LaunchError(Sentence, RuntimeError):
    """Raised if a launch of a persistent kernel does not finish; the text names the task, the event and its signaller.

    Raised by a call in which no task ends for the `timeout` of fuse_persistent, by `hpmoe.interpret` and by
    `hpmoe.simulate`.

    Example:
        >>> import hpmoe, numpy as np
        >>> flow = hpmoe.tile_partition(lambda x: (x @ x) * 2.0).lower(hpmoe.ShapeDtypeStruct((2, 2), "float32"))
        >>> silent = flow.replace(deps=flow.deps.replace(signals=flow.deps.signals[:0]))
        >>> hpmoe.interpret(silent, [[np.ones((2, 2), np.float32)]])
        Traceback (most recent call last):
        ...
        hpmoe.LaunchError: interpret: rank 0 task t1 mul[rows 0:2, cols 0:2] waits for ...
    """

    __module__ = "hpmoe"

    status: dict[str, object] | None = None  # of a native launch


def check_argument(condition: bool, who: str, argument: str, got: object, expected: str, hint: str = "") -> None:
    """Raises ArgumentError "who: argument is got; it must be expected. hint" unless `condition` holds."""
    if not condition:
        is_plural = " and " in argument or argument.endswith(("operands", "dtypes"))
        are, they = ("are", "they") if is_plural else ("is", "it")
        got = re.sub("^a (?=[aeiouAEIO])", "an ", "None" if got == "a NoneType" else _shortened(str(got)))
        raise ArgumentError(f"{who}: {argument} {are} {got}; {they} must be {expected}.{' ' + hint if hint else ''}")


def warn(message: str) -> None:
    """Warns with a message, at the line outside hpmoe from which hpmoe was called."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "hpmoe":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _shortened(text: str) -> str:
    """Returns the beginning of a text that is long or has several lines, such as the values of a tensor."""
    first = text.partition("\n")[0][:MOST_SHOWN]
    return text if first == text else f"{first.rstrip(' ,')} ..."


def kind_of(x: object) -> str:
    """Returns the type of a value with an article and the package of another library, such as "an int", or "None"."""
    package, name = type(x).__module__.partition(".")[0], type(x).__name__
    return "None" if x is None else with_article(name if package in ("builtins", "hpmoe") else f"{package}.{name}")


def with_article(noun: str) -> str:
    """Returns a noun after "a" or "an"."""
    return f"{'an' if noun[0] in 'aeiouAEIO' else 'a'} {noun}"


def tensor_advice(name: str, x: object) -> str:
    """Returns a sentence on how to make a Tensor of an array of another library; "" for other values."""
    is_foreign = hasattr(x, "__array__") and type(x).__module__.partition(".")[0] not in ("mindspore", "hpmoe")
    return f"Write mindspore.Tensor(numpy.asarray({name}))." if is_foreign else ""


def check_flags(who: str, **flags: object) -> None:
    """Raises ArgumentError unless all are True or False."""
    for name, flag in flags.items():
        check_argument(isinstance(flag, bool), who, name, repr(flag), "True or False")


def is_int(value: object, least: int = 1, most: int = 2**30) -> TypeGuard[int]:
    """Returns True if an argument is an int of Python or NumPy in a range; a bool is not.

    Example:
        >>> [is_int(value) for value in (3, np.int64(3), 0, True, 3.0)]
        [True, True, False, False, False]
    """
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(least <= value <= most)


def is_number(value: object) -> TypeGuard[float]:
    """Returns True for a real number, Python's or NumPy's, that float32 holds: no bool, NaN or infinity, and no number that
    float32 rounds to infinity or, if it is not 0, to 0.

    Example:
        >>> [is_number(value) for value in (3, np.float32(0.5), float("nan"), 1e39, 1e-300, True, "3")]
        [True, True, False, False, False, False, False]
    """
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        return False
    return bool(value == 0 or LEAST <= value <= MOST or -MOST <= value <= -LEAST)


def has_bools(values: object) -> bool:
    """Returns True if a list or tuple holds a bool, which NumPy would convert to a number.

    Example:
        >>> [has_bools(values) for values in ([True, 2], [1, 2], 3)]
        [True, False, False]
    """
    return isinstance(values, (list, tuple)) and any(isinstance(value, (bool, np.bool_)) for value in values)


def is_name(value: object, names: Iterable[str]) -> TypeGuard[str]:
    """Returns True if an argument is one of some names; False if it cannot be compared."""
    return isinstance(value, str) and value in names


def call_user(who: str, call: str, returns: str, function: Function, *args: object) -> PyTree:
    """Calls a user's function; raises TransformError from its error, or MemoryError from a MemoryError.

    Args:
        who: transform that the error names.
        call: the option and the arguments that it is called with, such as "order(rank, ep_size)".
        returns: what the function must return.
    """
    try:
        return function(*args)
    except Exception as error:
        name, code = getattr(function, "__name__", type(function).__name__), getattr(function, "__code__", None)
        place = f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code else ""
        kind = MemoryError if isinstance(error, MemoryError) else TransformError
        raise kind(ended(f"{who}: {call} is {name}{place}, which raised {type(error).__name__}: {error}; it must return "
                         f"{returns}")) from error


def check_inputs(who: str, inputs: Sequence[Sequence[ArrayLike]], ep_size: int,
                 expected: Sequence[tuple[str, tuple]]) -> None:
    """Raises ArgumentError unless there is, for each rank, one array for each (name, shape); symbolic dimensions fit any.

    Example:
        >>> check_inputs("hpmoe.interpret", [[]], 1, [("x", (2, 3))])
        Traceback (most recent call last):
        ...
        hpmoe.ArgumentError: hpmoe.interpret: inputs[0] is of 0 arrays; it must be of 1: x.
    """
    check_argument(isinstance(inputs, Sequence), who, "inputs", kind_of(inputs),
                   "a list with a list of arrays for each rank")
    check_argument(len(inputs) == ep_size, who, "inputs", f"of {len(inputs)} ranks", f"of {ep_size}, a list of arrays each")
    names = ", ".join(name for name, _ in expected)
    for rank, arrays in enumerate(inputs):
        is_listed = isinstance(arrays, (Sequence, np.ndarray))
        check_argument(is_listed, who, f"inputs[{rank}]", f"a {type(arrays).__name__}", "a list of arrays")
        check_argument(len(arrays) == len(expected), who, f"inputs[{rank}]", f"of {len(arrays)} arrays",
                       f"of {len(expected)}: {names}")
        for array, (name, shape) in zip(arrays, expected, strict=True):
            got = np.shape(array)
            fits = len(got) == len(shape) and all(a == b for a, b in zip(got, shape, strict=True) if isinstance(b, int))
            check_argument(fits, who, f"{name} of rank {rank}", f"of shape {got}", f"of shape {shape}")
