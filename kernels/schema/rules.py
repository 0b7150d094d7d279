"""core/generated/rules.h: operand modes of each tile operation, and facts about operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hpmoe.kernels import protocol
from hpmoe.kernels.protocol import PRIMITIVES
from hpmoe.kernels.schema.cpp import WIDTH, header, lines_of
from hpmoe.tile_ops.functions import OF_INTEGERS, Function
from hpmoe.tile_ops.params import EarlyMatmul, Elementwise, Relayed
from hpmoe.tile_ops.row_modes import FAN
from hpmoe.tile_ops.tile_primitive import Operand, Payload, TilePrimitive

FACTS: Mapping[str, tuple[str, Callable[[TilePrimitive], bool]]] = {
    "is_put": ("Its tasks write rows of tokens into other ranks' memory.", lambda p: p.is_put),
    "is_exchange": ("It exchanges the rows of all ranks at once.", lambda p: p.is_blocking),
    "moves_copies": ("It moves weights to copies of experts, or their gradients back.", lambda p: p.moves_copies),
    "is_completion_flag": ("It only tells that rows were sent.", lambda p: p.is_completion_flag),
    "is_transfer": ("It moves rows or matrices between ranks, or tells of it.", lambda p: p.payload is not Payload.NOTHING),
    "is_back": ("It is about rows, or gradients, on their way back.", lambda p: p.is_back),
    "returns_rows": ("It sends rows back to the tokens that they are of.", lambda p: p.returns_rows),
    "makes_blocks": ("Its tasks compute blocks of rows of a weight's gradient.", lambda p: p.makes_blocks),
    "fans_out": ("It takes rows of tokens to those of their experts.", lambda p: any(FAN in o.rows for o in p.outputs)),
    "is_launch": ("It is the start of a kernel.", lambda p: p.is_launch),
    "may_be_early": ("Its param[1] says whether its weight is read early.", lambda p: issubclass(p.params, EarlyMatmul)),
    "sums_relayed": ("Its param[0] is the route of the rows that came back to relays.", lambda p: p.params is Relayed),
    "applies_function": ("Its param[0] is the code of an elementwise function.", lambda p: p.params is Elementwise),
}
TRAITS = {"kIsInteger": lambda o: o.is_integer, "kIsCutByBody": lambda o: o.is_cut_by_body,
          "kMayBeNumber": lambda o: o.may_be_number, "kMayBeInteger": lambda o: o.may_be_integer,
          "kIsBytes": lambda o: o.is_bytes, "kMayBeBytes": lambda o: o.may_be_bytes}

RULES = """
// Its elements are int32; bodies know which part of it a task takes; a number may stand in its place; its elements may be
// integers as well as floats; they are bytes, or may be bytes as well as floats.
{traits}

// Which modes an operand may have, a bit a mode, and which of these traits; `rows` 0 ends an opcode's list.
struct OperandRule {{
  int rows, cols, traits;
}};

// What each opcode asks of its op: domains, a bit each, operands and their modes; outputs come first.
struct OpRule {{
  const char* name;
  Opcode opcode;
  int32_t num_outputs, min_operands;
  bool needs_route;
  int domains;
  OperandRule operands[{most}];
}};

constexpr OpRule kRules[] = {{
{rules}
}};

inline const OpRule* find_rule(int32_t opcode) {{
  for (const OpRule& rule : kRules)
    if (static_cast<int32_t>(rule.opcode) == opcode) return &rule;
  return nullptr;
}}

// Inputs of an elementwise function, by its code; 0 where there is none.
constexpr int num_map_inputs(int32_t code) {{
  switch (code) {{
{inputs}
    default: return 0;
  }}
}}

// Returns whether an elementwise function supports integers.
constexpr bool is_of_integers(int64_t code) {{
  switch (code) {{
{of_integers}
    default: return false;
  }}
}}

// Facts about opcodes, a bit each.
HPMOE_DEVICE constexpr bool has_bit(uint64_t facts, Opcode opcode) {{
  return static_cast<uint32_t>(opcode) < 64 && (facts >> static_cast<uint32_t>(opcode) & 1);
}}
"""


def text() -> str:
    """Returns the header."""
    by_inputs: dict[int, list[int]] = {}
    for function in sorted(Function.members.values()):
        by_inputs.setdefault(function.inputs, []).append(function.number)
    inputs = "\n".join(line for count, codes in by_inputs.items()
                       for line in lines_of([f"case {code}:" for code in codes] + [f"return {count};"], " ", "    "))
    numbers = [function.number for function in sorted(OF_INTEGERS)]
    of_integers = "\n".join(lines_of([*(f"case {n}:" for n in numbers), "return true;"], " ", "    "))
    traits = f"constexpr int {', '.join(f'{name} = {1 << i}' for i, name in enumerate(TRAITS))};"
    rules = RULES.format(of_integers=of_integers, traits=traits, most=protocol.MAX_OPERANDS, inputs=inputs,
                         rules="\n".join(map(_rule, PRIMITIVES.values())))
    facts = "\n".join(f"// {why}\nHPMOE_DEVICE constexpr bool {name}(Opcode opcode) {{ return {_has_bit(holds)}; }}"
                      for name, (why, holds) in FACTS.items())
    about = "The tile operations and elementwise functions as hpmoe/tile_ops defines them: rules and facts."
    return header(about, ['"core/generated/enums.h"', '"core/marks.h"'], f"{rules.strip()}\n{facts}")


def _rule(primitive: TilePrimitive) -> str:
    domains = sum({1 << domain.number for domain in primitive.domains})
    words = ", ".join([f'{{"{primitive.name}"', f"Opcode::{primitive.name}", str(len(primitive.outputs)),
                       str(primitive.required), str(primitive.needs_route).lower(), f"{domains:#x}"])
    operands = [_operand(operand) for operand in primitive.outputs + primitive.inputs]
    line = f"    {words}, {{{', '.join(operands)}}}}},"
    return line if len(line) <= WIDTH else f"    {words},\n     {{{_in_lines(operands)}}}}},"


def _in_lines(operands: Sequence[str]) -> str:
    return ",\n".join(lines_of(operands, ", ", "      ")).strip()


def _operand(operand: Operand) -> str:
    rows = sum(1 << mode.number for mode in operand.rows)
    cols = sum({1 << operand.image_cols(mode) for mode in operand.cols})
    traits = " | ".join(name for name, holds in TRAITS.items() if holds(operand)) or "0"
    return f"{{{rows:#x}, {cols:#x}, {traits}}}"


def _has_bit(holds: Callable[[TilePrimitive], bool]) -> str:
    return f"has_bit({sum(1 << p.number for p in PRIMITIVES.values() if holds(p)):#x}, opcode)"
