"""send_rows: rows go by a scheme: direct, once to a rank, once to a node, or whichever the machine model chooses."""

from __future__ import annotations

from collections.abc import Mapping

from hpmoe.costs.task_costs import expected_us
from hpmoe.ir.program import Program
from hpmoe.machines.machine import Machine
from hpmoe.machines.presets import cpu
from hpmoe.primitives.dispatch import check_moves
from hpmoe.runtime.transform import Curried, Transform, transform
from hpmoe.support.errors import check_argument, is_name
from hpmoe.tiling.tile_program import tile_operations
from hpmoe.transforms.deduplicate_rows import can_deduplicate, deduplicate_rows
from hpmoe.transforms.relay_rows import can_relay, relay_rows

SCHEMES: Mapping[str, tuple[Transform | Curried, ...]] = {
    "direct": (), "rank": (deduplicate_rows,), "node": (relay_rows,), "rank and node": (deduplicate_rows, relay_rows)}


def _check(scheme: str = "auto", machine: Machine | None = None) -> None:
    check_argument(is_name(scheme, (*SCHEMES, "auto")), "send_rows", "scheme", repr(scheme),
                   f"\"auto\" or one of {', '.join(SCHEMES)}")
    check_argument(machine is None or isinstance(machine, Machine), "send_rows", "machine", repr(machine),
                   "an hpmoe.Machine, such as hpmoe.ascend_a3 or hpmoe.load_machine(name), or None")


@transform(requires="program", once=True, check=_check, passes="both")
def send_rows(program: Program, *, scheme: str = "auto", machine: Machine | None = None) -> Program:
    """Sends rows by a scheme, the forward and the backward pass each by its own where the machine model chooses.

    "auto" takes the scheme with the least expected time for rows that are spread evenly (`expected_us` of
    hpmoe/costs/task_costs.py): its bytes on the slowest link, beside the matmuls or, if tokens are sent once, before and
    after them. `hpmoe.autotune` simulates the schemes.

    Rewrite: by scheme
        "direct"         nothing                     each of a token's experts gets its row
        "rank"           deduplicate_rows            each rank with experts for it gets it
        "node"           relay_rows                  each node with experts for it gets it, and passes it on
        "rank and node"  both                        each node gets it, and passes it on to each rank once

    Requires: a plain function with a dispatch or combine; transforms of the traced Program come before it.
    Ensures: the same function; the provenance of its IR names the transforms that were taken.

    Args:
        f: the function.
        scheme: one of these, or "auto".
        machine: what to be fast on; this CPU where None, whose ranks are threads, which have no links.

    Raises:
        TransformError: applied out of order or twice; f has neither dispatch nor combine.
        ArgumentError: an option is none of these; a dispatch has an expert_alignment, which no relay passes on
            unless tokens come to ranks once; "auto" leaves relays out then.

    Example:
        >>> import hpmoe
        >>> shapes = [(4096, 7168), (4096, 8), (4096, 8), (8, 7168, 4096), (8, 2048, 7168)]
        >>> avals = [hpmoe.ShapeDtypeStruct(s, d) for s,
        ...          d in zip(shapes, ("bfloat16", "int32", "float32", "bfloat16", "bfloat16"))]
        >>> two_nodes, sent = hpmoe.Mesh(16, node_size=8), hpmoe.send_rows(hpmoe.moe_ffn, machine=hpmoe.ascend_a2)
        >>> [sent.lower(*avals, mesh=two_nodes, direction=d).provenance for d in ("forward", "backward")]
        [('relay_rows',), ('send_rows(scheme=auto, machine=ascend_a2)',)]
    """
    check_moves("send_rows", program)
    if scheme == "auto":
        scheme = schemes_by_time(program, machine or cpu(ep_size=program.ep_size))[0]
    return sent_by(scheme, program)


def schemes_by_time(program: Program, machine: Machine) -> list[str]:
    """Returns the schemes to choose from for a program on a machine, the least `expected_us` first."""
    schemes = _schemes_of(program)
    return sorted(schemes, key=lambda scheme: _us(sent_by(scheme, program), machine)) if len(schemes) > 1 else schemes


def _schemes_of(program: Program) -> list[str]:
    """Returns the schemes that differ for a program's routes, ranks and nodes, and that the program can have."""
    once, nodes = can_deduplicate(program), can_relay(program)
    differ = {"direct": True, "rank": once, "node": nodes, "rank and node": once and nodes}
    return [name for name in SCHEMES if differ[name]]


def sent_by(scheme: str, program: Program) -> Program:
    """Returns a program that sends rows by a scheme."""
    for step in SCHEMES[scheme]:
        program = step.apply_to(program)
    return program


def _us(program: Program, machine: Machine) -> float:
    return expected_us(tile_operations(program, machine.tile_rows, machine.tile_cols, machine.unified), machine)
