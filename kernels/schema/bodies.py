"""core/generated/*_bodies.h: a switch for each target from an opcode to the function of the operation's name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from hpmoe.kernels.ascendc.bodies import BODIES as ASCEND, OF_MOE_FFN
from hpmoe.kernels.cpu.bodies import BODIES as CPU
from hpmoe.kernels.protocol import PRIMITIVES
from hpmoe.kernels.schema.cpp import header
from hpmoe.runtime.bodies import Bodies
from hpmoe.tile_ops.tile_primitive import Payload, TilePrimitive

ASCENDC = Path(__file__).parents[1] / "ascendc"
CUBE_BODY = "Product {}(const Frame& frame)"
VECTOR_BODY = "void {}(VectorUnit& unit, const Frame& frame)"
CPU_BODY = "Code {}(const Frame& frame)"


def cpu() -> str:
    """Returns the header of the CPU, whose launches move rows themselves."""
    found = _operations(CPU, lambda p: p.payload is Payload.NOTHING)
    declarations = "".join(f"{CPU_BODY.format(p.name.lower())};\n" for p in found if p.outputs)
    switch = _switch("inline " + CPU_BODY.format("call_body"), found, "return {}(frame)", "return Code::OK",
                     "return Code::BAD_IMAGE")
    return header("The tile bodies of the CPU.", ['"cpu/frame.h"'], f"{declarations}\n{switch}")


def ascend_vector() -> str:
    """Returns the header of the vector units of an NPU."""
    return _ascend("vector units", VECTOR_BODY, "call_body", _operations(ASCEND, lambda p: p.unit == "aiv"),
                   "return {}(unit, frame)", "return unit.refuse()")


def ascend_cube() -> str:
    """Returns the header of the matrix units of an NPU, whose bodies describe products."""
    return _ascend("matrix units", CUBE_BODY, "product_of", _operations(ASCEND, lambda p: p.unit == "aic"),
                   "return {}(frame)", "return refused_product()")


def _operations(bodies: Bodies, holds: Callable[[TilePrimitive], bool]) -> list[TilePrimitive]:
    return [p for p in PRIMITIVES.values() if p.name in bodies.operations and holds(p)]


def _ascend(units: str, body: str, dispatch: str, found: list[TilePrimitive], call: str, default: str) -> str:
    files = sorted({_file_of(p, body.format(p.name.lower())) for p in found if p.outputs})
    return header(f"The tile bodies of an NPU's {units}.", [f'"ascendc/{name}"' for name in files],
                  _switch("__aicore__ inline " + body.format(dispatch), found, call, "return", default, OF_MOE_FFN))


def _file_of(primitive: TilePrimitive, declaration: str) -> str:
    """Returns the header of ascendc/ that defines a body."""
    found = [path.name for path in sorted(ASCENDC.glob("*.h")) if f"inline {declaration} {{" in path.read_text("utf-8")]
    if len(found) != 1:
        raise LookupError(f"{primitive.name}: {len(found)} headers of {ASCENDC} define `__aicore__ inline {declaration}`; "
                          f"expected 1. Write this body, or leave {primitive.name} out in {ASCENDC / 'bodies.py'}.")
    return found[0]


def _switch(head: str, found: list[TilePrimitive], call: str, nothing: str, default: str,
            small_build: Collection[str] = ()) -> str:
    """Returns the switch over `found`, of which a small build has some; operations without outputs have no body."""
    cases = {p.name: f"    case Opcode::{p.name}: {call.format(p.name.lower()) if p.outputs else nothing};" for p in found}
    lines = [*cases.values()]
    if small_build:
        small = [case for name, case in cases.items() if name in small_build]
        lines = [*small, "#ifndef HPMOE_ONLY_MOE_FFN", *(case for case in lines if case not in small), "#endif"]
    return "\n".join([f"{head} {{", "  switch (opcode_of(frame.op)) {", *lines, f"    default: {default};", "  }", "}"])
