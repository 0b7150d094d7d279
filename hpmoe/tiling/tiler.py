"""Tiler: what the `tile` rules of primitives turn the equations of a Program into tile operations with."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import NoReturn

from hpmoe.ir import taskflow as tf
from hpmoe.ir.avals import Aval, RouteAval, Rows
from hpmoe.ir.program import Atom, Equation, Literal, Program, Var, program_window
from hpmoe.ir.program_text import Names
from hpmoe.ir.stages import deciding_vars, views_of_inputs
from hpmoe.ir.token_rows import num_rows, token_vars
from hpmoe.support.dtypes import FLOATS, INTEGERS
from hpmoe.support.errors import TransformError
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.col_modes import ColMode
from hpmoe.tile_ops.domains import AllRows, Domain, Experts, Once, Slots, Tiles
from hpmoe.tile_ops.elementwise import MAP
from hpmoe.tile_ops.functions import COPY, Function
from hpmoe.tile_ops.params import NO_PARAMS, Elementwise, Params
from hpmoe.tile_ops.row_modes import RowMode
from hpmoe.tile_ops.tile_primitive import TilePrimitive

COMPUTED = (*FLOATS, "bool")
ONLY_BEFORE = ("a kernel reads them when it starts. A function is cut there after its rewrites with before_vjp=True, not "
               "after others")
MOST_NUMBER = 1 << 24  # integers up to it are float32 numbers
WHAT_TILES_COMPUTE = "tile tasks compute float32, bfloat16 and float16"


class Tiler:
    """Turns the equations of one Program into tile operations over buffers; the `tile` rules of primitives call it.

    A rule gives each output of its equation a buffer (`new`, `view`), says how each operand is touched (`at`, `read`), over
    which units its tasks run (`rows_of`, `experts_of`, `once`), and emits the operation. What cannot be tiled it refuses.
    """

    HELD = (*COMPUTED, *INTEGERS)  # what buffers hold that elementwise operations, sums and choices may be about

    def __init__(self, program: Program, tile_rows: int, tile_cols: int):
        self.program, self.tile_rows, self.tile_cols = program, tile_rows, tile_cols
        self.names, self.views = Names(program), views_of_inputs(program)
        rows_of_token = token_vars(program)
        self.tokens = {v for v, rows in rows_of_token.items() if rows == 1}
        self.num_tokens = max((num_rows(v) or 0 for v in self.tokens), default=0)
        # A vector of tokens has a row for each in memory, so that padding is rows there too.
        self.vectors = {v: rows for v, rows in rows_of_token.items() if len(v.aval.shape) == 1}
        self.tokens.update(self.vectors)
        self.buffers: list[tf.Buffer] = []
        self.ops: list[tf.TileOp] = []
        self.routes: list[tf.RoutePlan] = []
        self.route_of: dict[Rows, int] = {}
        self.buffer_of: dict[Var, int] = {}
        self.uses = collections.Counter([*(a for e in program.equations for a in e.inputs), *program.outputs])
        self.index = 0
        self._outputs: list[int] = []
        self._add_inputs()
        for self.index, eqn in enumerate(program.equations):
            if isinstance(eqn.outputs[0].aval, RouteAval):
                self._plan_route(eqn)
        for var in program.inputs:
            if var not in self.buffer_of:
                self.new(var, role="input")

    def _add_inputs(self) -> None:
        """Buffers of the inputs but received rows. What decides a route has a row for each token, and ids are int32."""
        choices = {self.views.get(a): a.aval for e in self.program.equations for a in deciding_vars(e)}
        for var in self.program.inputs:
            decided = choices.get(var)
            dtype = "int32" if decided and decided.dtype == "int64" else None
            if not _is_received(var.aval.shape):
                self.new(var, rows_and_cols=decided and decided.shape, role="input", dtype=dtype)

    def refuse(self, why: str) -> NoReturn:
        """Raises TransformError naming the current equation and showing the program around it."""
        where = "a program without equations"
        if self.program.equations:
            where = f"equation {self.index} ({self.program.equations[self.index].primitive.name})"
        raise TransformError(f"tile_partition: {where} of {self.program.name} {why}\n"
                             + program_window(self.program, self.index))

    def _plan_route(self, eqn: Equation) -> None:
        """Routes are computed at kernel start, so the ids, and weights that decide what is dropped, must be inputs."""
        (ids, *weights), out = eqn.inputs, eqn.outputs[0]
        if out.aval.once:
            self._plan_route_to_ranks(ids.aval, out.aval)
            return
        if ids not in self.views:
            self.refuse(f"routes by ids that the program computes; {ONLY_BEFORE}")
        if any(w not in self.views for w in weights):
            self.refuse(f"drops by weights that the program computes; {ONLY_BEFORE}")
        ids, *weights = (self.buffer_of[self.views[a]] for a in (ids, *weights))
        aval: RouteAval = out.aval
        if self.routes and aval.num_tokens != self.routes[0].num_tokens:
            self.refuse(f"routes {aval.num_tokens} tokens after a route of {self.routes[0].num_tokens}; a rank has one "
                        "number of tokens, so give each to a function of its own")
        self.route_of[aval.rows] = len(self.routes)
        most = eqn.params.get("max_rows")
        likely = eqn.params.get("likely_rows") or most or aval.likely_rows
        self.routes.append(tf.RoutePlan(ids, aval.num_experts, aval.num_local_experts, aval.top_k, aval.num_tokens,
                                        most or aval.max_rows, likely, self.tile_rows, aval.ep_size, self.tile_rows,
                                        aval.capacity, *weights, placement=aval.placement))

    def _plan_route_to_ranks(self, experts: RouteAval, ranks: RouteAval) -> None:
        """No more rows than the experts' ranks receive, and no token twice."""
        of = self.route_of[experts.rows]
        self.route_of[ranks.rows] = len(self.routes)
        self.routes.append(dataclasses.replace(
            self.routes[of], num_experts=ranks.num_experts, num_local_experts=1, capacity=None, weights=-1, placement=None,
            max_rows=min(self.routes[of].max_rows, ranks.max_rows),
            likely_rows=min(self.routes[of].likely_rows, ranks.max_rows), once_of=of))

    # Buffers.

    def buffer(self, var: Var) -> tf.Buffer:
        """The buffer of a variable."""
        return self.buffers[self.buffer_of[var]]

    def _add(self, buffer: tf.Buffer) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def new(self, var: Var, *, rows_and_cols: tuple[int, int] | None = None, role: str = "temporary",
            dtype: str | None = None) -> int:
        """A new buffer for a variable: all dimensions but the last are its rows unless `rows_and_cols` says otherwise.

        Rows that are only moved keep the `dtype` they are stored in; it may be narrower than that of the variable.
        """
        shape, route, num_rows = var.aval.shape, -1, None
        if _is_received(shape):
            self._check_received("makes", var.aval)
            route, cols = self.route_of[shape[0]], (shape[1] if len(shape) == 2 else 1)
        else:
            num_rows, cols = rows_and_cols or self.laid_out(var)
        if cols < 1:
            self.refuse(f"has {var.aval}, rows of no columns; tiles need at least one")
        self.buffer_of[var] = self._add(tf.Buffer(self.names(var), shape, dtype or var.aval.dtype, role, cols, num_rows,
                                                  route, _per_expert(shape), len(self.buffers)))
        return self.buffer_of[var]

    def laid_out(self, var: Var) -> tuple[int, int]:
        """Rows and columns that a static variable is stored in: all dimensions but the last, and the last one."""
        shape = var.aval.shape
        if var in self.vectors:
            return self.num_tokens, self.vectors[var]
        return math.prod(shape[:-1]), shape[-1] if shape else 1

    def _check_received(self, verb: str, aval: Aval) -> None:
        if _is_received(aval.shape) and (len(aval.shape) > 2 or not isinstance(aval.shape[0], Rows)):
            self.refuse(f"{verb} {aval}; received rows are [R] or [R, N]")

    def view(self, source: int, var: Var, shape: tuple, cols: int, num_rows: int | None) -> int:
        """The same memory as `source`, named after `var`, with other rows and columns."""
        old = self.buffers[source]
        return self._add(tf.Buffer(self.names(var), shape, old.dtype, old.role, cols, num_rows, old.route,
                                   _per_expert(shape), old.storage))

    def regular(self, var: Var) -> int:
        """The buffer of a variable, or a view of it whose columns are the last dimension; a vector may be stored in rows."""
        shape, b = var.aval.shape, self.buffer_of[var]
        if _is_received(shape) or not shape or self.buffers[b].cols == shape[-1]:
            return b
        return self.view(b, var, shape, shape[-1], math.prod(shape[:-1]))

    def hidden(self, name: str, num_rows: int, cols: int, dtype: str = "float32") -> int:
        """A buffer that no variable stands for; float32 for partial sums, which are not rounded."""
        return self._add(tf.Buffer(name, (num_rows, cols), dtype, "temporary", cols, num_rows, -1, 0, len(self.buffers)))

    def stored_as(self, x: Atom, dtype: str) -> bool:
        """Whether a float32 variable that only the current cast reads can be rounded where it is computed; done if so."""
        b = self.buffer_of.get(x)
        if self.uses[x] != 1 or b is None or self.buffers[b].dtype != "float32" or self.buffers[b].role == "input":
            return False
        touched = [op for op in self.ops if any(a.buffer == b for a in op.operands)]
        is_viewed = any(other.storage == b for i, other in enumerate(self.buffers) if i != b) or self.buffers[b].storage != b
        if is_viewed or not all(op.primitive.rounds for op in touched):
            return False
        self.buffers[b] = dataclasses.replace(self.buffers[b], dtype=dtype)
        return True

    def output(self, atom: Atom) -> int:
        """The buffer that holds a program output: its own memory, never that of an input or another output."""
        self.index = max(0, len(self.program.equations) - 1)
        buffer = self.buffer_of.get(atom) if isinstance(atom, Var) else None
        taken = {self.buffers[b].storage for b in self._outputs}
        is_own = buffer is not None and self.buffers[self.buffers[buffer].storage].role != "input" \
            and self.buffers[buffer].storage not in taken and self.buffers[buffer].dtype == atom.aval.dtype
        if not is_own:
            copied = Var(atom.aval)
            source = self.read(atom, copied.aval)
            laid_out = self.buffers[source.buffer] if source.buffer >= 0 and not _is_received(atom.aval.shape) else None
            buffer = self.new(copied, rows_and_cols=(laid_out.num_rows, laid_out.cols) if laid_out else None)
            domain = self._domain(buffer, isinstance(atom, Var) and atom in self.tokens)
            self.emit(MAP, domain, tf.Access(buffer), source, params=Elementwise(COPY), label="copy")
        self._outputs.append(buffer)
        return buffer

    def with_roles(self, outputs: Sequence[int]) -> tuple[tf.Buffer, ...]:
        """Buffers with the storage of outputs marked as such."""
        roots = {self.buffers[b].storage for b in outputs}
        return tuple(dataclasses.replace(b, role="output") if b.storage in roots else b for b in self.buffers)

    # Domains: which units an operation has a task for.

    def _domain(self, buffer: int, clipped: bool) -> Domain:
        b = self.buffers[buffer]
        if b.route >= 0:
            return Slots(self.routes[b.route].num_slots, b.route)
        clipped = clipped and b.num_rows == self.num_tokens
        return Tiles(-(-b.num_rows // self.tile_rows), num_rows=b.num_rows, clipped=clipped)

    def rows_of(self, var: Var) -> Domain:
        """The row slots or row tiles of a variable."""
        return self._domain(self.buffer_of[var], var in self.tokens)

    def experts_of(self, var: Var, blocks: int = 1, of: str | None = None) -> tuple[Domain, RowMode]:
        """For a sum over the rows of `var`: domain and row mode.

        Received rows are summed by expert, in `blocks` units each: by all local ones, the rank's own ("owners") or the
        copies ("replicas"). Other rows are summed all together.
        """
        b, domain = self.buffer(var), self.rows_of(var)
        if b.route >= 0:
            plan = self.routes[b.route]
            experts = {"owners": plan.num_own_experts, "replicas": plan.num_replicas}.get(of, plan.num_local_experts)
            first = plan.num_own_experts if of == "replicas" else 0
            return Experts(experts * blocks, b.route, blocks=blocks, count=experts, first_expert=first), row_modes.EXPERT
        return AllRows(blocks, blocks=blocks, height=b.num_rows, of_tokens=domain.clipped), row_modes.ALL

    def once(self, route: Var) -> Once:
        """One task for all of a route."""
        return Once(1, self.route_of[route.aval.rows])

    # Operands.

    def at(self, var: Var, rows: RowMode = row_modes.OWN, cols: ColMode = col_modes.OWN, offset: int = 0,
           dtypes: tuple[str, ...] = COMPUTED) -> tf.Access:
        """How a float variable is touched, or one of other `dtypes`; see Access."""
        if var.aval.dtype not in dtypes:
            self.refuse(f"uses {var.aval}; {WHAT_TILES_COMPUTE}")
        self._check_received("uses", var.aval)
        return tf.Access(self.buffer_of[var], rows, cols, offset)

    def read(self, atom: Atom, out: Aval) -> tf.Access:
        """How an operand is read by an elementwise operation of abstract output `out`, by NumPy's broadcasting."""
        if isinstance(atom, Literal):
            return tf.Access(-1, value=float(atom.value))
        shape = atom.aval.shape
        if shape == out.shape:
            return self.at(atom, dtypes=self.HELD)
        is_one_row = not _is_received(shape) and math.prod(shape[:-1]) == 1
        if is_one_row and (not shape or shape[-1] == 1):
            return self.at(atom, row_modes.ONE, col_modes.ONE, dtypes=self.HELD)
        if len(shape) == len(out.shape) and shape[:-1] == out.shape[:-1] and shape[-1] == 1:
            return self.at(atom, cols=col_modes.ONE, dtypes=self.HELD)
        if is_one_row and shape[-1] == out.shape[-1]:
            return dataclasses.replace(self.at(atom, row_modes.ONE, dtypes=self.HELD), buffer=self.regular(atom))
        self.refuse(f"broadcasts {atom.aval} to {out}; tiles take whole rows, one row, one column or one element")

    # Operations.

    def emit(self, primitive: TilePrimitive, domain: Domain, *operands: tf.Access, cols: int | None = None,
             params: Params = NO_PARAMS, label: str = "") -> None:
        """Adds a tile operation of the current equation.

        Args:
            primitive, domain, operands, params: as in TileOp; outputs come first.
            cols: columns that its tasks divide among them; those of the first output where None, 0 for whole rows.
            label: printed instead of the primitive's name.
        """
        cols = self.buffers[operands[0].buffer].cols if cols is None else cols
        label = label or self.program.equations[self.index].primitive.name
        self.ops.append(tf.TileOp(primitive, label, self.index, primitive.unit, domain, operands, len(primitive.outputs),
                                  cols, self.tile_cols if cols else 0, params))

    def map(self, function: Function, out: Var, *reads: tf.Access) -> None:
        """An elementwise operation; a vector is stored as the operands are."""
        shape = out.aval.shape
        stored = {(self.buffers[a.buffer].num_rows, self.buffers[a.buffer].cols) for a in reads
                  if a.rows is row_modes.OWN and a.buffer >= 0}
        if len(shape) == 1 and len(stored) > 1:
            self.refuse("combines a column of per-row values with a plain vector; reshape one of them to [T, 1]")
        self._check_numbers(out, reads)
        self.new(out, rows_and_cols=stored.pop() if len(shape) == 1 and stored and out not in self.vectors else None)
        self.emit(MAP, self.rows_of(out), self.at(out, dtypes=self.HELD), *reads, params=Elementwise(function))

    def _check_numbers(self, out: Var, reads: Sequence[tf.Access]) -> None:
        """A number is kept as float32, which among integers it must be exactly."""
        dtypes = {out.aval.dtype, *(self.buffers[a.buffer].dtype for a in reads if a.buffer >= 0)}
        most = max((abs(a.value) for a in reads if a.buffer < 0), default=0)
        if most > MOST_NUMBER and not dtypes.isdisjoint(INTEGERS):
            self.refuse(f"takes {most:.0f} among integers; a kernel keeps numbers to {MOST_NUMBER}, so pass it as a tensor")

    def copy_columns(self, out: Var, source: tf.Access, offset: int, cols: int) -> None:
        """Writes columns [offset, offset + cols) of `out` from `source`."""
        if cols:
            target = self.at(out, offset=offset, dtypes=self.HELD)
            self.emit(MAP, self.rows_of(out), target, source, cols=cols, params=Elementwise(COPY))


def _is_received(shape: tuple) -> bool:
    return any(isinstance(d, Rows) for d in shape)


def _per_expert(shape: tuple) -> int:
    return shape[1] if len(shape) == 3 and not _is_received(shape) else 0
