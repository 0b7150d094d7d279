"""The text of a Program: provenance, inputs, equations, outputs; names are invented as they are printed."""

from __future__ import annotations

import string
from collections.abc import Sequence

from hpmoe.ir.avals import SHORT_DTYPE, RouteAval, Rows, ShapeDtypeStruct
from hpmoe.ir.program import Atom, Literal, Program


class Names:
    """Letters for variables and R, R1, ... for row dimensions, given out in print order."""

    def __init__(self, program: Program):
        self.names = dict(zip(program.inputs, program.input_names, strict=True))
        self.rows: dict[Rows, str] = {}
        self.count = 0

    def __call__(self, atom: Atom) -> str:
        if isinstance(atom, Literal):
            return repr(atom)
        if atom not in self.names:
            self.names[atom] = self._letters()
        return self.names[atom]

    def _letters(self) -> str:
        taken = set(self.names.values())
        while True:
            index, self.count = self.count, self.count + 1
            name = ""
            while index >= 0:
                name, index = string.ascii_lowercase[index % 26] + name, index // 26 - 1
            if name not in taken:
                return name

    def aval(self, aval: ShapeDtypeStruct | RouteAval) -> str:
        if isinstance(aval, RouteAval):
            return f"route[{self.dim(aval.rows)}]"
        return f"{SHORT_DTYPE.get(aval.dtype, aval.dtype)}[{','.join(self.dim(d) for d in aval.shape)}]"

    def dim(self, dim: int | Rows) -> str:
        if isinstance(dim, int):
            return str(dim)
        if dim not in self.rows:
            self.rows[dim] = f"R{len(self.rows) or ''}"
        return self.rows[dim]

    def typed(self, atom: Atom) -> str:
        return f"{self(atom)}:{self.aval(atom.aval)}"


def _equation_lines(program: Program, names: Names) -> list[str]:
    rows = []
    for eqn in program.equations:
        params = " ".join(f"{k}={v.__name__ if isinstance(v, type) else v}" for k, v in eqn.params.items()
                          if v is not None and v is not False)
        head = eqn.primitive.name + (f"[{params}]" if params else "")
        right = " ".join([head, *(names(a) for a in eqn.inputs)])
        rows.append((" ".join(names.typed(v) for v in eqn.outputs), right))
    width = max((len(left) for left, _ in rows), default=0)
    return [f"{left:<{width}} = {right}" for left, right in rows]


def program_text(program: Program) -> str:
    """Returns the text of a Program: provenance, inputs, equations, outputs; equal programs have equal text."""
    names = Names(program)
    inputs = [names.typed(v) for v in program.inputs]
    lines = _wrap("{ lambda ", inputs, 110)
    equations = _equation_lines(program, names)
    lines += [("  let " if i == 0 else "      ") + line for i, line in enumerate(equations)]
    outputs = ", ".join(names(a) for a in program.outputs)
    comma = "," if len(program.outputs) == 1 else ""
    types = ", ".join(names.aval(a.aval) for a in program.outputs)
    lines.append(f"  in ({outputs}{comma}) : {types} }}")
    return "\n".join([" | ".join([f"# {program.name}", *program.provenance]), *lines])


def _wrap(head: str, words: Sequence[str], width: int) -> list[str]:
    lines, line = [], head + (words[0] if words else "")
    for word in words[1:]:
        if len(line) + 1 + len(word) > width:
            lines.append(line)
            line = " " * len(head) + word
        else:
            line += " " + word
    return [*lines, line]


Program.text = program_text
