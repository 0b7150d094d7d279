"""The key of a plan: a digest of everything that decides it, so that plans with one key are one plan."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata

import numpy as np
from mindspore import Tensor

from hpmoe.ir.plain import Json, Written
from hpmoe.ir.program import Equation, Operator, Program, Var
from hpmoe.machines.this_cpu import cpu
from hpmoe.runtime.staged import Step
from hpmoe.support.trees import PyTree

PACKAGES = "hpmoe", "hpmoe.transforms", "hpmoe.kernels"
SOURCES = (".py", ".so", ".json")


def plan_key(program: Program, steps: Sequence[Step]) -> str:
    """Returns the key of the plan that `steps` make of a Program.

    Beside the program, the steps and their options, a plan is decided by hpmoe, its version and its files, and by the
    number of this computer's cores, for which queues are where no machine is told.

    Raises:
        TypeError: code that is not hpmoe's own has a part in it, which nothing that could be compared tells from other
            code: a transform of tiles, an option, or a primitive.
    """
    what = [metadata.version("hpmoe"), _files(), Written()(cpu(ep_size=program.ep_size)), _program(program),
            [[_code(step.rewrite), _options(step.options)] for step in steps]]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


@functools.cache
def _files() -> str:
    """Returns a digest of the package's files by name, size and time: a checkout changes without its version."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for folder in sys.modules[package].__path__:
            for path, at in sorted(_below(folder)):
                digest.update(f"{os.path.relpath(path, folder)} {at.st_size} {at.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _below(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir() and entry.name != "__pycache__":
                yield from _below(entry.path)
            elif entry.name.endswith(SOURCES):
                yield entry.path, entry.stat()


def _code(function: PyTree) -> str:
    """Returns the name of a function of hpmoe; raises TypeError for another function, or one made inside a function."""
    name = getattr(function, "__qualname__", type(function).__name__)
    if "<" in name or not _is_own(function):
        raise TypeError(f"{name} is not of hpmoe")
    return f"{function.__module__}.{name}"


def _is_own(function: PyTree) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] == "hpmoe"


class _Option(Written):
    """Writes an option of a step; an array is its dtype, shape and digest."""

    def __call__(self, value: object) -> Json:
        if isinstance(value, Tensor):
            value = value.asnumpy()
        if isinstance(value, np.ndarray):
            return [str(value.dtype), list(value.shape), hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
        return super().__call__(value)


def _options(options: Mapping[str, PyTree]) -> Json:
    written = _Option()
    return [[name, _code(value) if callable(value) else written(value)] for name, value in sorted(options.items())]


class _Numbered(Written):
    """Writes a Program's values; a variable becomes the number of its first occurrence."""

    def __init__(self) -> None:
        super().__init__()
        self._vars: dict[Var, int] = {}

    def __call__(self, value: object) -> Json:
        if isinstance(value, Var):
            return {"var": self._vars.setdefault(value, len(self._vars))}
        if isinstance(value, type):
            return _code(value)
        if isinstance(value, Mapping):
            return [[self(key), self(v)] for key, v in value.items()]
        return super().__call__(value)

    def defined(self, var: Var) -> Json:
        return [self(var), self(var.aval)]

    def marked(self, variables: Iterable[Var] | None) -> Json:
        """Returns the numbers of those variables that the program has."""
        return None if variables is None else sorted(self._vars[v] for v in variables if v in self._vars)

    def counted(self, counts: Mapping[Var, int] | None) -> Json:
        return None if counts is None else sorted([self._vars[v], n] for v, n in counts.items() if v in self._vars)


def _program(program: Program) -> Json:
    """Returns all of a Program that affects its plan, not the lines that it came from."""
    written = _Numbered()
    defined = [[written.defined(v) for v in program.inputs],
               [_equation(written, eqn) for eqn in program.equations]]
    marks = [*map(written.marked, (program.saves, program.main_grads, program.cotangents, program.frozen)),
             written.counted(program.token_rows)]
    return [program.name, program.input_names, program.ep_size, program.provenance, program.direction, defined,
            written(program.outputs), marks, len(program.reports), len(program.captures)]


def _equation(written: _Numbered, eqn: Equation) -> Json:
    return [_primitive(eqn.primitive), [written(a) for a in eqn.inputs], written(eqn.params),
            [written.defined(v) for v in eqn.outputs]]


def _primitive(primitive: Operator) -> str:
    """Returns the name of a primitive with hpmoe's own tile rule; its shapes and gradients are in the program."""
    rule = primitive.rules.get("tile")
    if rule is not None and not _is_own(rule):
        raise TypeError(f"the tile rule of {primitive.name} is not of hpmoe")
    return primitive.name
