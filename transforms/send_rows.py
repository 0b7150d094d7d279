"""send_rows: sends rows directly, once to a rank, once to a node, or by the scheme that the machine model chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hpmoe.costs.task_costs import expected_us
from hpmoe.ir.program import Program
from hpmoe.machines.machine import Machine
from hpmoe.machines.this_cpu import cpu
from hpmoe.primitives.dispatch import check_moves
from hpmoe.runtime.transform import transform
from hpmoe.support.errors import check_argument, is_name
from hpmoe.tiling.tile_program import tile_operations
from hpmoe.transforms.send_deduplicated import can_deduplicate, deduplicated
from hpmoe.transforms.send_hierarchical import can_relay, hierarchical

SCHEMES: Mapping[str, tuple[Callable[[Program], Program], ...]] = {
    "direct": (), "deduplicated": (deduplicated,), "hierarchical": (hierarchical,),
    "hierarchical+deduplicated": (deduplicated, hierarchical)}


def _check(scheme: str = "auto", machine: Machine | None = None) -> None:
    check_argument(is_name(scheme, (*SCHEMES, "auto")), "send_rows", "scheme", repr(scheme),
                   f"\"auto\" or one of {', '.join(SCHEMES)}")
    check_argument(machine is None or isinstance(machine, Machine), "send_rows", "machine", repr(machine),
                   "an hpmoe.Machine, such as hpmoe.machines.ascend_a3 or hpmoe.load_machine(name), or None")


@transform(requires="program", once=True, check=_check, passes="both")
def send_rows(program: Program, *, scheme: str = "auto", machine: Machine | None = None) -> Program:
    """Sends rows by a scheme; with "auto" the forward and the backward pass each have their own.

    "direct": each of a token's experts receives the token's row.
    "deduplicated": each rank with experts for a token receives the row once and sends one weighted sum back. Of K random
        experts, EP (1 - (1 - 1 / EP)^K) ranks are distinct: 5.3 of 8 experts at EP 8.
    "hierarchical": each node (`Mesh(ep=16, nodes=2)`) with experts for a token receives the row once, at its relay: the rank
        with the sender's index in that node. The relay passes the row on, and sends one weighted sum back.
    "hierarchical+deduplicated": both; the relay passes the row on to each rank once.
    "auto": the scheme with the least `expected_us` (hpmoe/costs/task_costs.py); `hpmoe.autotune` simulates the schemes.

    Received rows are the same bits by every scheme. Results differ by the order of float32 sums only; in half precision each
    sum that is sent back is rounded once more. Sums of "deduplicated" begin when the last expert of the rank is done.

    Rewrite: see transforms/send_deduplicated.py and transforms/send_hierarchical.py.
    Requires: a plain function with a dispatch or combine; transforms of the traced Program, such as limit_rows, come
        before it.
    Ensures: the same function; an unchanged Program if the scheme moves rows as "direct" does, as on one rank, or without
        `nodes`.

    Args:
        f: the function.
        scheme: one of the schemes above, or "auto".
        machine: the machine that "auto" plans for. None is this CPU, whose ranks share memory, so that "auto" is "direct".

    Raises:
        TransformError: applied out of order or twice; f has neither dispatch nor combine.
        ArgumentError: scheme is none of the above, machine is no Machine, or scheme is "hierarchical" and a dispatch has an
            expert_alignment.

    Example:
        >>> import hpmoe
        >>> shapes = [(4096, 7168), (4096, 8), (4096, 8), (8, 7168, 4096), (8, 2048, 7168)]
        >>> dtypes = "bfloat16", "int32", "float32", "bfloat16", "bfloat16"
        >>> avals = [hpmoe.ShapeDtypeStruct(s, d) for s, d in zip(shapes, dtypes)]
        >>> two_nodes, sent = hpmoe.Mesh(ep=16, nodes=2), hpmoe.send_rows(hpmoe.moe_ffn, machine=hpmoe.machines.ascend_a2)
        >>> [sent.lower(*avals, mesh=two_nodes, direction=d).provenance[-1] for d in ("forward", "backward")]
        ['send_rows(scheme=hierarchical)', 'send_rows(scheme=direct)']
    """
    check_moves("send_rows", program)
    if scheme == "auto":
        scheme = schemes_by_time(program, machine or cpu(ep_size=program.ep_size))[0]
        return send_rows.apply_to(program, scheme=scheme)  # provenance names the scheme taken
    return sent_by(scheme, program)


def schemes_by_time(program: Program, machine: Machine) -> list[str]:
    """Returns the schemes to choose from for a program on a machine, the least `expected_us` first."""
    schemes = _schemes_of(program)
    return sorted(schemes, key=lambda scheme: _us(sent_by(scheme, program), machine)) if len(schemes) > 1 else schemes


def _schemes_of(program: Program) -> list[str]:
    """Returns the schemes that differ for a program's routes, ranks and nodes, and that the program can have."""
    once, nodes = can_deduplicate(program), can_relay(program)
    differs = dict(zip(SCHEMES, (True, once, nodes, once and nodes), strict=True))
    return [name for name in SCHEMES if differs[name]]


def sent_by(scheme: str, program: Program) -> Program:
    """Returns a program that sends rows by a scheme."""
    for step in SCHEMES[scheme]:
        program = step(program)
    return program


def _us(program: Program, machine: Machine) -> float:
    return expected_us(tile_operations(program, machine.tile_rows, machine.tile_cols, machine), machine)
