"""interpret: runs a Program or a Taskflow on all ranks in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpmoe.interpreters.interpret_program import interpret_program
from hpmoe.interpreters.interpret_taskflow import interpret_taskflow
from hpmoe.ir.program import Program
from hpmoe.ir.stages import Stages
from hpmoe.ir.taskflow import Taskflow
from hpmoe.support.errors import check_argument
from hpmoe.support.keywords import suggests_keywords


@suggests_keywords
def interpret(ir: Program | Taskflow | Stages, inputs: Sequence[Sequence[np.ndarray]],
              num_tokens: Sequence[int] | None = None, seed: int | None = None, keep: list[list[np.ndarray]] | None = None,
              dtype: str | None = None) -> list[list[np.ndarray]]:
    """Runs a Program by the reference of each primitive, or a Taskflow task by task, on all ranks in NumPy.

    Use it as an oracle for results, or to read intermediate buffers; `f.interpret(*args)` of a staged function does the same
    with MindSpore tensors. The output of each equation or task is rounded to its dtype. A Taskflow runs one task at a time,
    each as soon as its waits are met; tasks of one queue run in the order of the queue. A function that computes ids
    lowers to Stages, which run one after another.

    Args:
        ir: a Program, as `hpmoe.trace` returns it, or a Taskflow, as `f.lower(*args)` returns it.
        inputs: for each of `ir.ep_size` ranks, one array for each input.
        num_tokens: list with the number of real tokens of each rank, which precede padding; None for no padding.
        seed: only for a Taskflow: seed of the random order of the tasks that may run next; None for program order.
        keep: only for a Taskflow: a list; `interpret` appends the list of all buffers of each rank.
        dtype: only for a Program: "float64" computes all floats in double precision, without rounding.

    Returns:
        For each rank, the list of outputs.

    Raises:
        ArgumentError: the arrays are not those of the inputs; num_tokens does not fit, or an equation would add rows of
            padding to its result; an option is out of range or belongs to the other kind of IR.
        LaunchError: some tasks can never run; the text names the first of them and what it waits for.

    Example:
        >>> import numpy as np, hpmoe
        >>> f = lambda x: x * x + 1.0
        >>> program = hpmoe.trace(f, hpmoe.ShapeDtypeStruct((3,), "float32"))
        >>> hpmoe.interpret(program, [[np.arange(3.0)]])[0][0].tolist()
        [1.0, 2.0, 5.0]
        >>> flow = hpmoe.tile_partition(f, rows=1).lower(hpmoe.ShapeDtypeStruct((3, 1), "float32"))
        >>> flow.num_tasks, hpmoe.interpret(flow, [[np.arange(3.0).reshape(3, 1)]], seed=7)[0][0].tolist()
        (6, [[1.0], [2.0], [5.0]])
    """
    first = next(iter(ir), None) if isinstance(ir, Stages) else ir
    check_argument(isinstance(first, (Program, Taskflow)), "hpmoe.interpret", "ir", f"a {type(ir).__name__}",
                   "a Program, as hpmoe.trace returns it, or a Taskflow, as f.lower(*args) returns it after tile_partition")
    if isinstance(first, Program):
        check_argument(seed is None and keep is None, "hpmoe.interpret", "seed" if keep is None else "keep",
                       f"{seed if keep is None else keep!r} for a Program", "left out: a Program has no tasks")
    else:
        check_argument(dtype is None, "hpmoe.interpret", "dtype", f"{dtype!r} for a Taskflow", "left out",
                       "Interpret the Program that hpmoe.trace returns.")
    if isinstance(ir, Stages):
        return ir.run(inputs, num_tokens, seed=seed, keep=keep, dtype=dtype)
    return (interpret_program(ir, inputs, num_tokens, dtype) if isinstance(ir, Program)
            else interpret_taskflow(ir, inputs, num_tokens, seed, keep))
