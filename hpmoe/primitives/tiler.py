"""Tiler: what the `tile` rules of primitives turn the equations of a Program into tile operations with."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import cast

from hpmoe.ir import taskflow as tf
from hpmoe.ir.avals import RouteAval, as_route, fixed
from hpmoe.ir.program import Atom, Equation, Literal, Program, Var
from hpmoe.ir.stages import deciding_vars, views_of_inputs
from hpmoe.primitives.buffers import Buffers, is_received
from hpmoe.support.dtypes import BYTES, FLOATS, INTEGERS
from hpmoe.support.known import known
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.axes import PICK
from hpmoe.tile_ops.col_modes import ColMode
from hpmoe.tile_ops.domains import AllRows, Domain, Experts, Once, Slots, Tiles
from hpmoe.tile_ops.elementwise import MAP
from hpmoe.tile_ops.functions import COPY, Function
from hpmoe.tile_ops.params import NO_PARAMS, AlongAxis, Elementwise, Params
from hpmoe.tile_ops.row_modes import RowMode
from hpmoe.tile_ops.tile_primitive import Result, TilePrimitive

COMPUTED = (*FLOATS, "bool")
ONLY_BEFORE = ("a kernel reads them when it starts. Compute them in the function itself, or in a transform made without "
               "passes=: then a first launch computes them. A transform made with passes= comes too late")
MIXES_ROWS = "mixes rows; tiles take whole rows, one row, one column or one element"
MOST_NUMBER = 1 << 24  # integers up to it are float32 numbers
WHAT_TILES_COMPUTE = "tile tasks compute float32, bfloat16 and float16; write .astype(mindspore.float32) before the call"


class Tiler(Buffers):
    """Turns the equations of one Program into tile operations over buffers; the `tile` rules of primitives call it.

    A rule gives each output of its equation a buffer (`new`, `view`), says how each operand is touched (`at`, `read`), over
    which units its tasks run (`rows_of`, `experts_of`, `once`), and emits the operation. What cannot be tiled it refuses.
    """

    HELD = (*COMPUTED, *INTEGERS)  # what buffers hold that elementwise operations, sums and choices may be about
    MOVED = (*COMPUTED, BYTES)  # what rows on their way between ranks may be of

    def __init__(self, program: Program, tile_rows: int, tile_cols: int, unified: bool = True):
        super().__init__(program)
        self.tile_rows, self.tile_cols, self.views = tile_rows, tile_cols, views_of_inputs(program)
        self.unified = unified
        self.ops: list[tf.TileOp] = []
        self.routes: list[tf.RoutePlan] = []
        self.uses = collections.Counter([*(a for e in program.equations for a in e.inputs), *program.outputs])
        self._outputs: list[int] = []
        self._add_inputs()
        for self.index, eqn in enumerate(program.equations):
            if isinstance(eqn.outputs[0].aval, RouteAval):
                self._plan_route(eqn)
        for var in program.inputs:
            if var not in self.buffer_of:
                self.new(var, role="input")

    def _add_inputs(self) -> None:
        """Adds buffers of inputs except received rows; those that decide a route have token rows, and ids are int32."""
        choices = {self.views.get(a): a.aval for e in self.program.equations for a in deciding_vars(e)}
        for var in self.program.inputs:
            decided = choices.get(var)
            dtype = "int32" if decided and decided.dtype == "int64" else None
            if not is_received(var.aval.shape):
                self.new(var, rows_and_cols=decided and cast("tuple[int, int]", decided.shape), role="input", dtype=dtype)

    def _plan_route(self, eqn: Equation) -> None:
        """Plans a route, which a kernel computes at its start: ids, and weights that decide drops, must be inputs."""
        (ids, *weights), out = eqn.inputs, eqn.outputs[0]
        aval = as_route(out.aval)
        if aval.kind.is_of_tokens:
            self._plan_route_to_ranks(as_route(ids.aval), aval)
            return
        if ids not in self.views:
            self.refuse(f"routes by ids that the program computes; {ONLY_BEFORE}")
        if any(w not in self.views for w in weights):
            self.refuse(f"drops by weights that the program computes; {ONLY_BEFORE}")
        ids, *weights = (self.buffer_of[self.views[a]] for a in (ids, *weights))
        if self.routes and aval.num_tokens != self.routes[0].num_tokens:
            self.refuse(f"routes {aval.num_tokens} tokens after a route of {self.routes[0].num_tokens}; a rank has one "
                        "number of tokens, so give each to a function of its own")
        self.route_of[aval.rows] = len(self.routes)
        most = eqn.params.get("max_rows")
        expected = eqn.params.get("expected_rows") or most or aval.expected_rows
        self.routes.append(tf.RoutePlan(aval.kind, ids, most or aval.max_rows, expected, self.tile_rows, self.tile_rows,
                                        *weights))

    def _plan_route_to_ranks(self, experts: RouteAval, ranks: RouteAval) -> None:
        """Plans as many rows of a route to ranks as the rows of the experts' route allow."""
        index, kind = self.route_of[experts.rows], ranks.kind
        self.route_of[ranks.rows], of = len(self.routes), self.routes[index]
        self.routes.append(dataclasses.replace(of, kind=kind, max_rows=kind.rows_of(of.max_rows),
                                               expected_rows=kind.rows_of(of.expected_rows), weights=-1, of=index))

    def come_over(self, route: Atom, relays: Atom) -> Once:
        """Lets the rows of a route come over the stops of another, and returns the domain of one task for the route."""
        once, over = self.once(route), self.once(relays).route
        plan = self.routes[once.route]
        if plan.over not in (-1, over) or any(p.over == over for p in self.routes if p is not plan):
            self.refuse("rows that come over two routes, or two routes over one")
        self.routes[once.route] = dataclasses.replace(plan, over=over)
        return once

    def stored_as(self, x: Atom, dtype: str) -> bool:
        """Rounds a float32 variable where it is computed if only the current cast reads it; returns True if it did."""
        b = self.buffer_of.get(x)
        if self.uses[x] != 1 or b is None or self.buffers[b].dtype != "float32" or self.buffers[b].role == "input":
            return False
        touched = [op for op in self.ops if any(a.buffer == b for a in op.operands)]
        is_viewed = any(other.storage == b for i, other in enumerate(self.buffers) if i != b) or self.buffers[b].storage != b
        if is_viewed or not all(op.primitive.result is Result.ROUNDED for op in touched):
            return False
        self.buffers[b] = dataclasses.replace(self.buffers[b], dtype=dtype)
        return True

    def take_back(self, x: Atom, primitive: TilePrimitive) -> tf.TileOp | None:
        """Removes and returns the last operation if it is of this primitive and only the current equation reads its result.
        """
        last = self.ops[-1] if self.ops and self.uses[x] == 1 else None
        makes_it = last and last.primitive is primitive and last.operands[0].buffer == self.buffer_of.get(x)
        return self.ops.pop() if makes_it else None

    def output(self, atom: Atom) -> int:
        """Returns the buffer that holds a program output: its own memory, never that of an input or another output."""
        self.index = max(0, len(self.program.equations) - 1)
        buffer = self.buffer_of.get(atom) if isinstance(atom, Var) else None
        taken = {self.buffers[b].storage for b in self._outputs}
        is_own = buffer is not None and self.buffers[self.buffers[buffer].storage].role != "input" \
            and self.buffers[buffer].storage not in taken and self.buffers[buffer].dtype == atom.aval.dtype
        if buffer is None or not is_own:
            copied = Var(atom.aval)
            source = self.read(atom, copied)
            laid_out = self.buffers[source.buffer] if source.buffer >= 0 and not is_received(atom.aval.shape) else None
            buffer = self.new(copied, rows_and_cols=(known(laid_out.num_rows), laid_out.cols) if laid_out else None)
            domain = self.domain_of(buffer, isinstance(atom, Var) and atom in self.tokens)
            self.emit(MAP, domain, tf.Access(buffer), source, params=Elementwise(COPY), label="copy")
        self._outputs.append(buffer)
        return buffer

    def with_roles(self, outputs: Sequence[int]) -> tuple[tf.Buffer, ...]:
        """Returns the buffers, with the storage of outputs marked as such."""
        roots = {self.buffers[b].storage for b in outputs}
        return tuple(dataclasses.replace(b, role="output") if b.storage in roots else b for b in self.buffers)

    # Domains: which units an operation has a task for.

    def domain_of(self, buffer: int, clipped: bool = False) -> Domain:
        """Returns the row slots or row tiles of a buffer; `clipped` if its rows are those of tokens."""
        b = self.buffers[buffer]
        if b.route >= 0:
            return Slots(self.routes[b.route].num_slots, b.route)
        rows = known(b.num_rows)
        return Tiles(-(-rows // self.tile_rows), num_rows=rows, clipped=clipped and rows == self.num_tokens)

    def rows_of(self, var: Atom) -> Domain:
        """Returns the row slots or row tiles of a variable."""
        return self.domain_of(self.buffer_of[var], var in self.tokens)

    def experts_of(self, var: Atom, blocks: int = 1, of: str | None = None) -> tuple[Domain, RowMode]:
        """Returns domain and row mode of a sum over the rows of `var`.

        Received rows are summed by expert, in `blocks` units each: by all local ones, the rank's own ("owners") or the
        copies ("replicas"). Other rows are summed all together.
        """
        b, domain = self.buffer(var), self.rows_of(var)
        if b.route >= 0:
            plan = self.routes[b.route]
            experts = {"owners": plan.num_own_experts, "replicas": plan.num_replicas}.get(of or "", plan.num_local_experts)
            first = plan.num_own_experts if of == "replicas" else 0
            return Experts(experts * blocks, b.route, blocks=blocks, count=experts, first_expert=first), row_modes.EXPERT
        return AllRows(blocks, blocks=blocks, height=known(b.num_rows), of_tokens=domain.clipped), row_modes.ALL

    def once(self, route: Atom) -> Once:
        """Returns the domain of one task for all of a route."""
        return Once(1, self.route_of[as_route(route.aval).rows])

    # Operands.

    def at(self, var: Atom, rows: RowMode = row_modes.OWN, cols: ColMode = col_modes.OWN, offset: int = 0,
           dtypes: tuple[str, ...] = COMPUTED) -> tf.Access:
        """Returns the Access to a variable of one of `dtypes`."""
        if var.aval.dtype not in dtypes:
            self.refuse(f"uses {var.aval}; {WHAT_TILES_COMPUTE}")
        self._check_received("uses", var.aval)
        return tf.Access(self.buffer_of[var], rows, cols, offset)

    def read(self, atom: Atom, out: Var) -> tf.Access:
        """Returns the Access of an elementwise operation that makes `out` to an operand, by NumPy's broadcasting."""
        if isinstance(atom, Literal):
            return tf.Access(-1, value=float(atom.value))
        shape, made = atom.aval.shape, out.aval.shape
        if shape == made:
            return self.at(atom, dtypes=self.HELD)
        is_one_row = not is_received(shape) and math.prod(fixed(shape[:-1])) == 1
        if is_one_row and (not shape or shape[-1] == 1):
            return self.at(atom, row_modes.ONE, col_modes.ONE, dtypes=self.HELD)
        if self._has_rows_inside(out):
            return self._spread(atom, out)
        if len(shape) == len(made) and shape[:-1] == made[:-1] and shape[-1] == 1:
            return self.at(atom, cols=col_modes.ONE, dtypes=self.HELD)
        if is_one_row and shape[-1] == made[-1]:
            return dataclasses.replace(self.at(atom, row_modes.ONE, dtypes=self.HELD), buffer=self.regular(atom))
        if out in self.tokens or atom in self.tokens or is_received(made):
            self.refuse(f"broadcasts {atom.aval} to {out.aval} and {MIXES_ROWS}")
        return self._spread(atom, out)

    def _has_rows_inside(self, out: Var) -> bool:
        """Returns True if a row of memory holds several rows of the last axis."""
        return out in self.groups or (is_received(out.aval.shape) and len(out.aval.shape) > 2)

    def _spread(self, atom: Var, out: Var) -> tf.Access:
        """Returns an operand repeated along the axes of a row that it lacks, with the rows of `out` or one row for all."""
        has_rows = self._has_rows_inside(out)
        given, made = self._shapes(atom, out)
        is_own = has_rows and given[0] == made[0] and (made[0] != 1 or atom in self.tokens)
        access = self.at(atom, row_modes.OWN if is_own else row_modes.ONE, dtypes=self.HELD)
        access = access if is_own else dataclasses.replace(access, buffer=self.as_one_row(atom))
        for axis in range(int(has_rows), len(made)):
            if given[axis] == made[axis]:
                continue
            given = (*given[:axis], made[axis], *given[axis + 1:])
            along = AlongAxis(made[axis], math.prod(given[axis + 1:]), 0, 0)
            wide = self.buffer_of[self.like(atom, *given[1:])] if is_own else self.hidden(
                f"{self.names(out)}.row", 1, math.prod(given), self.buffers[access.buffer].dtype)
            self.emit(PICK, self.domain_of(wide, is_own and out in self.tokens), tf.Access(wide),
                      tf.Access(access.buffer, cols=col_modes.ALL), params=along, label="broadcast_to")
            access = dataclasses.replace(access, buffer=wide)
        if has_rows:
            return access
        rows, cols = self.laid_out(out)
        return tf.Access(self.view(access.buffer, out, made, cols, rows))

    def _shapes(self, atom: Var, out: Var) -> tuple[tuple, tuple]:
        """Returns equally long shapes of an operand and of `out`; rows cut across tokens are [token, row, column]."""
        made = out.aval.shape
        given = (1,) * (len(made) - len(atom.aval.shape)) + atom.aval.shape
        if out not in self.groups or made[0] == self.num_tokens:
            return given, made
        whole = self.num_tokens, self.groups[out]
        rows = {1: (1, 1), math.prod(whole): whole}.get(math.prod(fixed(given[:-1])))
        if rows is None:
            self.refuse(f"broadcasts {atom.aval} to {out.aval} and {MIXES_ROWS}")
        return (*rows, given[-1]), (*whole, made[-1])

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

    def emit_rows(self, primitive: TilePrimitive, eqn: Equation, params: Params = NO_PARAMS,
                  dtypes: tuple[str, ...] = HELD) -> None:
        """Adds a buffer for each output of the equation, and an operation on whole rows that computes the outputs.

        An input may be a number. `dtypes` are the dtypes that buffers of operands may have.
        """
        for out in eqn.outputs:
            self.new(out)
        operands = [self.at(v, cols=col_modes.ALL, dtypes=dtypes) if isinstance(v, Var) else self.read(v, eqn.outputs[0])
                    for v in (*eqn.outputs, *eqn.inputs)]
        self.emit(primitive, self.rows_of(eqn.outputs[0]), *operands, cols=0, params=params)

    def map(self, function: Function, out: Var, *reads: tf.Access) -> None:
        """Emits an elementwise operation; a vector is stored as the operands are."""
        shape = out.aval.shape
        stored = {(self.buffers[a.buffer].num_rows, self.buffers[a.buffer].cols) for a in reads
                  if a.rows is row_modes.OWN and a.buffer >= 0}
        if len(shape) == 1 and len(stored) > 1:
            self.refuse("combines a column of per-row values with a plain vector; reshape one of them to [T, 1]")
        self._check_numbers(out, reads)
        self.new(out, rows_and_cols=stored.pop() if len(shape) == 1 and stored and out not in self.vectors else None)
        reads = tuple(self._stored_like(a, out) if a.rows is row_modes.OWN and a.buffer >= 0 else a for a in reads)
        self.emit(MAP, self.rows_of(out), self.at(out, dtypes=self.HELD), *reads, params=Elementwise(function))

    def _check_numbers(self, out: Var, reads: Sequence[tf.Access]) -> None:
        """Refuses a number among integers that float32, in which numbers are kept, does not hold exactly."""
        dtypes = {out.aval.dtype, *(self.buffers[a.buffer].dtype for a in reads if a.buffer >= 0)}
        most = max((abs(a.value) for a in reads if a.buffer < 0), default=0)
        if most > MOST_NUMBER and not dtypes.isdisjoint(INTEGERS):
            self.refuse(f"takes {most:.0f} among integers; a kernel keeps numbers to {MOST_NUMBER}, so pass it as a tensor")

    def _stored_like(self, access: tf.Access, out: Var) -> tf.Access:
        """Returns an access to the elements in the rows of `out`; a vector of tokens may be stored as a single row."""
        read, made = self.buffers[access.buffer], self.buffer(out)
        if len(out.aval.shape) != 1 or (read.num_rows, read.cols) == (made.num_rows, made.cols):
            return access
        return dataclasses.replace(access, buffer=self.view(access.buffer, out, out.aval.shape, made.cols, made.num_rows))

    def copy_columns(self, out: Var, source: tf.Access, offset: int, cols: int) -> None:
        """Writes columns [offset, offset + cols) of `out` from `source`."""
        if cols:
            target = self.at(out, offset=offset, dtypes=self.HELD)
            self.emit(MAP, self.rows_of(out), target, source, cols=cols, params=Elementwise(COPY))


TileRule = Callable[[Tiler, Equation], None]
