"""Tiler: turns the equations of a Program into tile operations; what the `tile` rules of primitives talk to."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hpmoe import taskflow as tf
from hpmoe.dependencies import derive_dependencies
from hpmoe.errors import TransformError
from hpmoe.program import Atom, Aval, Equation, Literal, Names, Program, RouteAval, Rows, Var, program_window
from hpmoe.token_rows import token_vars

COMPUTED = ("float32", "bool")


def tile_program(program: Program, tile_rows: int, tile_cols: int) -> tf.Taskflow:
    """The Taskflow of a Program, with blocking collectives and no queues."""
    tiler = Tiler(program, tile_rows, tile_cols)
    for index, eqn in enumerate(program.equations):
        tiler.index = index
        if "tile" not in eqn.primitive.rules:
            tiler.refuse(eqn, "mixes rows or has no tile rule, so tiles of it cannot be computed one by one")
        eqn.primitive.rules["tile"](tiler, eqn)
    outputs = tuple(tiler.output(a, i) for i, a in enumerate(program.outputs))
    ops, routes = tuple(tiler.ops), tuple(tiler.routes)
    buffers = tuple(tiler.with_roles(outputs))
    tasks = tf.make_tasks(ops)
    events, waits, signals, blocks = derive_dependencies(buffers, ops, routes, tasks, tile_rows)
    return tf.Taskflow(program.name, program.ep_size, program.provenance, tile_rows, buffers, ops, routes,
                       tuple(tiler.buffer_of[v] for v in program.inputs), outputs, tasks, events, waits, signals, blocks,
                       peer_order=np.tile(np.arange(program.ep_size, dtype="i4"), (program.ep_size, 1)))


class Tiler:
    """Emits tile operations; a method for each way in which a primitive can be cut into tiles."""

    def __init__(self, program: Program, tile_rows: int, tile_cols: int):
        self.program, self.tile_rows, self.tile_cols = program, tile_rows, tile_cols
        self.names = Names(program)
        self.tokens = token_vars(program)
        self.buffers: list[tf.Buffer] = []
        self.ops: list[tf.TileOp] = []
        self.routes: list[tf.RoutePlan] = []
        self.route_of: dict[Rows, int] = {}
        self.buffer_of: dict[Var, int] = {}
        self.index = 0
        self._outputs: list[int] = []
        static = [v for v in program.inputs if not any(isinstance(d, Rows) for d in v.aval.shape)]
        for var in static:
            self._new(var, "input")
        for self.index, eqn in enumerate(program.equations):
            if isinstance(eqn.outputs[0].aval, RouteAval):
                self._plan_route(eqn)
        for var in program.inputs:
            if var not in self.buffer_of:
                self._new(var, "input")

    # Buffers.

    def refuse(self, eqn: Equation | None, why: str) -> None:
        """Raises TransformError naming the current equation and showing the program around it."""
        where = f"equation {self.index}" + (f" ({eqn.primitive.name})" if eqn else "")
        raise TransformError(f"tile_partition: {where} of {self.program.name} {why}\n"
                             + program_window(self.program, self.index))

    def _new(self, var: Var, role: str = "temporary", view: tuple[int, int] | None = None) -> int:
        shape = var.aval.shape
        cols = shape[-1] if shape else 1
        route = -1
        if any(isinstance(d, Rows) for d in shape):
            if len(shape) > 2 or not isinstance(shape[0], Rows):
                self.refuse(self.program.equations[self.index], f"makes {var.aval}; received rows are [R] or [R, N]")
            route, num_rows = self.route_of[shape[0]], None
            cols = shape[1] if len(shape) == 2 else 1
        else:
            num_rows, cols = view or (math.prod(shape[:-1]), cols)
        per_expert = shape[1] if len(shape) == 3 else 0
        self.buffers.append(tf.Buffer(self.names(var), shape, var.aval.dtype, role, cols, num_rows, route, per_expert,
                                      len(self.buffers)))
        self.buffer_of[var] = len(self.buffers) - 1
        return self.buffer_of[var]

    def _view(self, source: int, name: str, shape: tuple, cols: int, num_rows: int | None) -> int:
        old = self.buffers[source]
        self.buffers.append(tf.Buffer(name, shape, old.dtype, old.role, cols, num_rows, old.route,
                                      shape[1] if len(shape) == 3 else 0, old.storage))
        return len(self.buffers) - 1

    def _hidden(self, name: str, cols: int, num_rows: int | None) -> int:
        self.buffers.append(tf.Buffer(name, (num_rows, cols), "float32", "temporary", cols, num_rows, -1, 0,
                                      len(self.buffers)))
        return len(self.buffers) - 1

    def output(self, atom: Atom, number: int) -> int:
        """The buffer that holds program output `number`: its own memory, never that of an input or another output."""
        self.index = len(self.program.equations) - 1
        buffer = self.buffer_of.get(atom) if isinstance(atom, Var) else None
        taken = {self.buffers[b].storage for b in self._outputs}
        fresh = buffer is not None and self.buffers[self.buffers[buffer].storage].role != "input" \
            and self.buffers[buffer].storage not in taken
        if not fresh:
            copied = Var(atom.aval)
            source = self._access(atom, copied.aval) if isinstance(atom, Var) else tf.Access(-1, value=atom.value)
            buffer = self._new(copied)
            self._emit("MAP", "copy", "aiv", self._domain(buffer, isinstance(atom, Var) and atom in self.tokens),
                       (tf.Access(buffer), source), tiled=True, params=("copy",))
        self._outputs.append(buffer)
        return buffer

    def with_roles(self, outputs: Sequence[int]) -> list[tf.Buffer]:
        """Buffers with the storage of outputs marked as such."""
        roots = {self.buffers[b].storage for b in outputs}
        return [tf.Buffer(**{**vars(b), "role": "output"}) if b.storage in roots else b for b in self.buffers]

    # Domains and accesses.

    def _domain(self, buffer: int, clipped: bool) -> tf.Domain:
        b = self.buffers[buffer]
        if b.route >= 0:
            return tf.Domain("slots", self.routes[b.route].num_slots, route=b.route)
        return tf.Domain("tiles", -(-b.num_rows // self.tile_rows), b.num_rows, clipped)

    def _rows_of(self, var: Var) -> tf.Domain:
        return self._domain(self.buffer_of[var], var in self.tokens)

    def _experts(self, eqn: Equation, rows_of: Var, blocks: int) -> tuple[tf.Domain, str, tuple[int, ...]]:
        """Domain, row mode and extra params of a sum over rows: by expert for received rows, over all otherwise."""
        b = self.buffers[self.buffer_of[rows_of]]
        if b.route >= 0:
            experts = self.routes[b.route].num_local_experts
            return tf.Domain("experts", experts * blocks, experts, route=b.route, blocks=blocks), "expert", (0, 0)
        return (tf.Domain("experts", blocks, 1, blocks=blocks), "all", (b.num_rows, int(rows_of in self.tokens)))

    def _access(self, atom: Atom, out: Aval, offset: int = 0) -> tf.Access:
        """How an operand is read by an elementwise operation of abstract output `out`."""
        if isinstance(atom, Literal):
            return tf.Access(-1, value=float(atom.value))
        eqn = self.program.equations[self.index] if self.program.equations else None
        if atom.aval.dtype not in COMPUTED:
            self.refuse(eqn, f"reads {atom.aval}; tile tasks compute float32")
        buffer, shape = self.buffer_of[atom], atom.aval.shape
        if shape == out.shape:
            return tf.Access(buffer, "own", "own", offset)
        if math.prod(d for d in shape if isinstance(d, int)) == 1 and not any(isinstance(d, Rows) for d in shape):
            return tf.Access(buffer, "one", "one")
        if len(shape) == len(out.shape) and shape[:-1] == out.shape[:-1] and shape[-1] == 1:
            return tf.Access(buffer, "own", "one")
        if shape[-1] == out.shape[-1] and math.prod(d for d in shape[:-1] if isinstance(d, int)) == 1 \
                and not any(isinstance(d, Rows) for d in shape):
            return tf.Access(buffer, "one", "own", offset)
        self.refuse(eqn, f"broadcasts {atom.aval} to {out}; tiles take whole rows, one row, one column or one element")

    def _emit(self, opcode: str, label: str, unit: str, domain: tf.Domain, operands: Sequence[tf.Access], *,
              tiled: bool, params: tuple = (), num_outputs: int = 1, cols: int | None = None, flops: float = 0.0,
              num_peers: int = 0) -> None:
        out = self.buffers[operands[0].buffer]
        width = (out.cols if cols is None else cols) if tiled else 0
        self.ops.append(tf.TileOp(opcode, label, self.index, unit, domain, tuple(operands), num_outputs, width,
                                  self.tile_cols if tiled else 0, tuple(params), num_peers, flops=flops,
                                  bytes=4.0 * len(operands)))

    # Row by row.

    def alias(self, eqn: Equation) -> None:
        """A reshape that keeps every row whole is another view of the same memory."""
        (x,), out = eqn.inputs, eqn.outputs[0]
        if isinstance(x, Literal):
            self.elementwise(eqn, "copy")
            return
        source, shape = self.buffers[self.buffer_of[x]], out.aval.shape
        if any(isinstance(d, Rows) for d in shape):
            cols, num_rows = (shape[1] if len(shape) == 2 else 1), None
        else:
            size = math.prod(shape)
            cols = source.cols if source.cols and shape and size == math.prod(x.aval.shape) and (
                source.cols == shape[-1] or (source.cols == 1 and len(shape) == 1)) else (shape[-1] if shape else 1)
            num_rows = size // cols if cols else math.prod(shape[:-1])
        if cols != source.cols and (num_rows or 0) > 1 and (source.num_rows or 0) > 1:
            self.refuse(eqn, f"reshapes {x.aval} to {out.aval} across rows")
        self.buffer_of[out] = self._view(self.buffer_of[x], self.names(out), shape, cols, num_rows)

    def elementwise(self, eqn: Equation, code: str, operands: Sequence[Atom] | None = None) -> None:
        """A map over rows and columns; a per-expert vector is read at the slot's expert."""
        out = eqn.outputs[0]
        reads = []
        for atom in (operands or eqn.inputs):
            per_expert = isinstance(atom, Var) and eqn.primitive.name == "expert_bias" and len(reads) == 1
            reads.append(tf.Access(self.buffer_of[atom], "slot_expert", "own") if per_expert
                         else self._access(atom, out.aval))
        view = self._vector_view(out, reads)
        buffer = self._new(out, view=view)
        domain = self._rows_of(out)
        code = "copy" if code == "stop_gradient" else code
        self._emit("MAP", eqn.primitive.name, "aiv", domain, (tf.Access(buffer), *reads), tiled=True, params=(code,))

    def _vector_view(self, out: Var, reads: Sequence[tf.Access]) -> tuple[int, int] | None:
        """[T] results of operands stored as one column stay one column."""
        shape = out.aval.shape
        stored = {(self.buffers[a.buffer].num_rows, self.buffers[a.buffer].cols) for a in reads if a.rows == "own"
                  and a.buffer >= 0}
        if len(shape) == 1 and isinstance(shape[0], int) and stored == {(shape[0], 1)}:
            return (shape[0], 1)
        if len(shape) == 1 and len(stored) > 1:
            self.refuse(self.program.equations[self.index], "combines a column of per-row values with a plain vector; "
                        "reshape one of them to [T, 1]")
        return None

    def reduce(self, eqn: Equation, kind: str) -> None:
        """Over columns: one value for each row. Over rows: a task for each column range, by expert where there are some."""
        (x,), out, axis = eqn.inputs, eqn.outputs[0], eqn.params["axis"]
        shape = x.aval.shape
        if axis == len(shape) - 1 and (len(shape) > 1 or self.buffers[self.buffer_of[x]].num_rows == 1):
            rows = math.prod(d for d in shape[:-1] if isinstance(d, int))
            buffer = self._new(out, view=(rows, 1))
            self._emit("ROW_REDUCE", eqn.primitive.name, "aiv", self._rows_of(x),
                       (tf.Access(buffer, "own", "all"), tf.Access(self.buffer_of[x], "own", "all")), tiled=False,
                       params=(kind,))
        elif axis == 0 and kind == "sum" and len(shape) <= 2:
            self._sum_rows(eqn, x, out)
        else:
            self.refuse(eqn, f"reduces axis {axis} of {x.aval} and mixes rows")

    def _sum_rows(self, eqn: Equation, x: Var, out: Var) -> None:
        source = self.buffers[self.buffer_of[x]]
        if source.route >= 0:
            plan = self.routes[source.route]
            partial = self._hidden(f"{self.names(out)}.by_expert", source.cols, plan.num_local_experts)
            self._column_sum(eqn, x, partial)
            buffer = self._new(out, view=(1, source.cols))
            self._emit("COL_SUM", eqn.primitive.name, "aiv", tf.Domain("experts", 1, 1),
                       (tf.Access(buffer), tf.Access(partial, "all")), tiled=True,
                       params=(0, plan.num_local_experts, 0))
        else:
            self._column_sum(eqn, x, self._new(out, view=(1, source.cols)))

    def _column_sum(self, eqn: Equation, x: Var, buffer: int) -> None:
        domain, rows, extra = self._experts(eqn, x, 1)
        self._emit("COL_SUM", eqn.primitive.name, "aiv", domain, (tf.Access(buffer), tf.Access(self.buffer_of[x], rows)),
                   tiled=True, params=(0, *extra))

    def column_sum(self, eqn: Equation) -> None:
        """Sums the rows of each expert."""
        self._column_sum(eqn, eqn.inputs[0], self._new(eqn.outputs[0]))

    def row_dot(self, eqn: Equation) -> None:
        buffer = self._new(eqn.outputs[0])
        reads = [tf.Access(self.buffer_of[a], "own", "all") for a in eqn.inputs]
        self._emit("ROW_DOT", eqn.primitive.name, "aiv", self._rows_of(eqn.inputs[0]),
                   (tf.Access(buffer, "own", "all"), *reads), tiled=False)

    def gather(self, eqn: Equation) -> None:
        """Rows of a matrix by an index that is an input."""
        (x, index), out = eqn.inputs, eqn.outputs[0]
        if index.aval.dtype != "int32" or len(index.aval.shape) != 1 or len(x.aval.shape) != 2 \
                or x.aval.dtype not in COMPUTED or any(isinstance(d, Rows) for d in x.aval.shape):
            self.refuse(eqn, f"gathers {x.aval} by {index.aval}; tiles gather rows of a float32 matrix by a vector of int32")
        count = index.aval.shape[0]
        rows = self._view(self.buffer_of[index], self.names(index), (count, 1), 1, count)
        self._emit("GATHER", "gather", "aiv", self._domain(self._new(out), out in self.tokens),
                   (tf.Access(self.buffer_of[out], "own", "all"), tf.Access(self.buffer_of[x], "all", "all"),
                    tf.Access(rows, "own", "one")), tiled=False)

    def cast(self, eqn: Equation) -> None:
        (x,), out = eqn.inputs, eqn.outputs[0]
        if x.aval.dtype not in COMPUTED or out.aval.dtype != "float32":
            self.refuse(eqn, f"casts {x.aval.dtype} to {out.aval.dtype}; tile tasks compute float32")
        self.elementwise(eqn, "copy")

    # Columns.

    def _last_axis(self, eqn: Equation) -> None:
        shape = eqn.outputs[0].aval.shape
        if eqn.params["axis"] != len(shape) - 1 or len(shape) < 2:
            self.refuse(eqn, f"cuts axis {eqn.params['axis']} and mixes rows; tiles cut the last of several axes")

    def _copy(self, eqn: Equation, out: int, source: tf.Access, offset: int, cols: int) -> None:
        if cols:
            self._emit("MAP", eqn.primitive.name, "aiv", self._rows_of(eqn.outputs[0]),
                       (tf.Access(out, offset=offset), source), tiled=True, params=("copy",), cols=cols)

    def slice_columns(self, eqn: Equation) -> None:
        self._last_axis(eqn)
        (x,), out = eqn.inputs, eqn.outputs[0]
        buffer = self._new(out)
        self._copy(eqn, buffer, tf.Access(self.buffer_of[x], offset=eqn.params["start"]), 0, self.buffers[buffer].cols)

    def pad_columns(self, eqn: Equation) -> None:
        self._last_axis(eqn)
        (x,), out, before = eqn.inputs, eqn.outputs[0], eqn.params["before"]
        buffer, cols = self._new(out), self.buffers[self.buffer_of[x]].cols
        self._copy(eqn, buffer, tf.Access(-1, value=0.0), 0, before)
        self._copy(eqn, buffer, tf.Access(self.buffer_of[x]), before, cols)
        self._copy(eqn, buffer, tf.Access(-1, value=0.0), before + cols, eqn.params["after"])

    def concat_columns(self, eqn: Equation) -> None:
        self._last_axis(eqn)
        buffer, offset = self._new(eqn.outputs[0]), 0
        for x in eqn.inputs:
            cols = x.aval.shape[-1]
            self._copy(eqn, buffer, tf.Access(self.buffer_of[x]), offset, cols)
            offset += cols

    def swiglu(self, eqn: Equation) -> None:
        (x,), out = eqn.inputs, eqn.outputs[0]
        if len(out.aval.shape) < 2:
            self.refuse(eqn, f"makes {out.aval}; SwiGLU tiles take rows [..., 2I]")
        buffer, half = self._new(out), out.aval.shape[-1]
        source = self.buffer_of[x]
        self._emit("SWIGLU", "swiglu", "aiv", self._rows_of(out),
                   (tf.Access(buffer), tf.Access(source), tf.Access(source, offset=half)), tiled=True)

    def swiglu_grad(self, eqn: Equation) -> None:
        (g, x), out = eqn.inputs, eqn.outputs[0]
        buffer, half, source = self._new(out), g.aval.shape[-1], self.buffer_of[x]
        operands = (tf.Access(buffer), tf.Access(buffer, offset=half), tf.Access(self.buffer_of[g]), tf.Access(source),
                    tf.Access(source, offset=half))
        self._emit("SWIGLU_GRAD", "swiglu_grad", "aiv", self._rows_of(out), operands, tiled=True, num_outputs=2, cols=half)

    # Matmuls.

    def matmul(self, eqn: Equation, transposed: bool) -> None:
        x, w = eqn.inputs[:2]
        for a in (x, w):
            if a.aval.dtype != "float32":
                self.refuse(eqn, f"multiplies {a.aval}; tile tasks compute float32")
        if len(x.aval.shape) < 2:
            self.refuse(eqn, f"multiplies the vector {x.aval}; reshape it to [1, K]")
        buffer = self._new(eqn.outputs[0])
        weight_rows = "slot_expert" if len(eqn.inputs) == 3 else "one"
        self._emit("GMM", eqn.primitive.name, "aic", self._rows_of(eqn.outputs[0]),
                   (tf.Access(buffer), tf.Access(self.buffer_of[x], "own", "all"),
                    tf.Access(self.buffer_of[w], weight_rows, "all" if transposed else "own")), tiled=True,
                   params=(int(transposed),), flops=2.0 * self.buffers[self.buffer_of[x]].cols)

    def weight_grad(self, eqn: Equation) -> None:
        x, g = eqn.inputs[:2]
        k = x.aval.shape[-1]
        block = min(self.tile_cols, k) or 1
        domain, rows, extra = self._experts(eqn, x, -(-k // block))
        buffer = self._new(eqn.outputs[0])
        source = self.buffers[self.buffer_of[x]]
        plan = self.routes[source.route] if source.route >= 0 else None
        summed = plan.max_rows / plan.num_local_experts if plan else source.num_rows
        self._emit("WGRAD", eqn.primitive.name, "aic", domain,
                   (tf.Access(buffer), tf.Access(self.buffer_of[x], rows, "block"), tf.Access(self.buffer_of[g], rows)),
                   tiled=True, params=(block, *extra), flops=2.0 * summed)

    # Communication.

    def route(self, eqn: Equation) -> None:
        """A route makes no tasks: the kernel computes it when it starts."""

    def _plan_route(self, eqn: Equation) -> None:
        (ids,), out = eqn.inputs, eqn.outputs[0]
        if ids not in self.buffer_of:
            self.refuse(eqn, "routes by ids that the program computes; the kernel needs topk_ids as an argument")
        aval: RouteAval = out.aval
        self.route_of[aval.rows] = len(self.routes)
        self.routes.append(tf.RoutePlan(self.buffer_of[ids], aval.num_experts, aval.num_local_experts, aval.top_k,
                                        aval.num_tokens, eqn.params.get("max_rows") or aval.max_rows, self.tile_rows))

    def _collective(self, eqn: Equation, opcode: str, route: Var, out: tf.Access, source: tf.Access) -> None:
        domain = tf.Domain("once", 1, route=self.route_of[route.aval.rows])
        self._emit(opcode, eqn.primitive.name, "aiv", domain, (out, source), tiled=False)

    def _float_operand(self, eqn: Equation, var: Var) -> int:
        if var.aval.dtype != "float32":
            self.refuse(eqn, f"sends {var.aval}; tile tasks compute float32")
        return self.buffer_of[var]

    def dispatch(self, eqn: Equation, per_entry: bool) -> None:
        """Token rows, or the scalars of token entries, to the slots of their experts' ranks."""
        x, route = eqn.inputs
        source = self._float_operand(eqn, x)
        if per_entry:
            num_tokens, top_k = x.aval.shape
            source = self._view(source, self.names(x), (num_tokens * top_k, 1), 1, num_tokens * top_k)
        buffer = self._new(eqn.outputs[0])
        self._collective(eqn, "ALL_TO_ALL", route, tf.Access(buffer, "peer", "all"),
                         tf.Access(source, "entries" if per_entry else "tokens", "all"))

    def combine(self, eqn: Equation) -> None:
        """Rows back to their tokens' rank, then a weighted sum over each token's entries, in the order of its choices."""
        rows, route = eqn.inputs[:2]
        source, out = self._float_operand(eqn, rows), eqn.outputs[0]
        entries = self._hidden(f"{self.names(out)}.entries", self.buffers[source].cols,
                               route.aval.num_tokens * route.aval.top_k)
        self._collective(eqn, "ALL_TO_ALL_BACK", route, tf.Access(entries, "entries", "all"),
                         tf.Access(source, "own", "all"))
        buffer = self._new(out)
        weights = [tf.Access(self._float_operand(eqn, w), "own", "all") for w in eqn.inputs[2:]]
        domain = self._domain(buffer, True)
        domain = tf.Domain(domain.kind, domain.size, domain.num_rows, True, self.route_of[route.aval.rows])
        self._emit("REDUCE", "combine", "aiv", domain,
                   (tf.Access(buffer), tf.Access(entries, "entries"), *weights), tiled=True)

    def combine_weights(self, eqn: Equation) -> None:
        """One scalar of each row back to its token's entry."""
        values, route = eqn.inputs
        buffer = self._new(eqn.outputs[0])
        num_entries = route.aval.num_tokens * route.aval.top_k
        entries = self._view(buffer, self.names(eqn.outputs[0]), (num_entries, 1), 1, num_entries)
        self._collective(eqn, "ALL_TO_ALL_BACK", route, tf.Access(entries, "entries", "all"),
                         tf.Access(self._float_operand(eqn, values), "own", "all"))
