"""All that a transform of your own needs: the two levels of IR, how they are edited, and all primitives by name.

A rewrite of Programs gets the traced Program, and gradients are taken of the Program that it returns, as under a transform
of JAX. With `passes="forward"`, `"backward"` or `"both"` a rewrite gets the Programs of these passes instead, one at a time,
after gradients are taken. A rewrite of Taskflows gets the taskflow of the forward pass and of the backward pass, one at a
time.

Other modules of hpmoe may move; these names are stable:
    Program, its Equations, Vars and Literals: operators; `program.direction` is "forward" or "backward"
    vjp: the backward Program of a Program
    map_equations, Builder: a program with some equations replaced; `builder.add` appends one, `builder.keep` one as it is
    primitives: the operators, by the names that programs print; `equation.primitive is primitives.mul`
    Stops: a kind of route over stops, of which `primitives.route_to_ranks` makes routes
    Taskflow, its TileOps with their Domain, Accesses (`row_modes`, `col_modes`) and Buffers: tile tasks
    rebuild: a taskflow of other tile operations; derives tasks and dependencies
    requeue: a taskflow with other queues; derives waits
    expected_rows, expected_shares: how full slots are expected to be, and whose rows they hold

A transform is a function from IR to IR under `hpmoe.transform`; what it returns is checked. `hpmoe.testing` tests it.

Example:
    A rewrite wraps an equation: the rule keeps the equation and returns what replaces its output. The rewrite defines no
    gradient; each primitive that it uses has one:

    >>> import hpmoe
    >>> from hpmoe.rewriting import Builder, map_equations, primitives
    >>> @hpmoe.transform(requires="program")
    ... def bound(program):
    ...     def rule(builder, eqn):
    ...         if eqn.primitive is primitives.matmul:
    ...             return [builder.add(primitives.tanh, builder.keep(eqn))]
    ...     return map_equations(program, rule)
    >>> x, w = hpmoe.ShapeDtypeStruct((4, 3), "float32"), hpmoe.ShapeDtypeStruct((3, 2), "float32")
    >>> f = bound(lambda x, w: x @ w)
    >>> print(f.lower(x, w))
    # <lambda> | bound
    { lambda x:f32[4,3] w:f32[3,2]
      let a:f32[4,2] = matmul x w
          b:f32[4,2] = tanh a
      in (b,) : f32[4,2] }
    >>> print(f.lower(x, w, direction="backward"))
    # <lambda>_vjp | bound
    { lambda x:f32[4,3] w:f32[3,2] saved_0:f32[4,2] d_out:f32[4,2]
    ...

    A rewrite of the backward pass changes gradients and leaves the forward pass as it is:

    >>> @hpmoe.transform(requires="program", passes="backward")
    ... def scale_gradients(program, *, by):
    ...     builder = Builder()
    ...     for eqn in program.equations:
    ...         builder.keep(eqn)
    ...     grads = tuple(builder.add(primitives.mul, grad, by) for grad in program.outputs)
    ...     return program.replace(equations=tuple(builder.equations), outputs=grads)
    >>> print(scale_gradients(by=0.5)(hpmoe.swiglu).lower(hpmoe.ShapeDtypeStruct((4, 2), "float32"), direction="backward"))
    # swiglu_vjp | scale_gradients(by=0.5)
    { lambda x:f32[4,2] d_out:f32[4,1]
      let a:f32[4,2] = swiglu_grad d_out x
          b:f32[4,2] = mul a 0.5
      in (b,) : f32[4,2] }
"""

from hpmoe.autodiff.vjp import vjp as vjp
from hpmoe.ir.program import (
    Builder as Builder,
    Equation as Equation,
    Literal as Literal,
    Program as Program,
    Var as Var,
    map_equations as map_equations,
)
from hpmoe.ir.taskflow import Taskflow as Taskflow
from hpmoe.ir.tile_op import (
    Access as Access,
    Buffer as Buffer,
    TileOp as TileOp,
)
from hpmoe.rewriting import primitives as primitives
from hpmoe.rewriting.requeue import requeue as requeue
from hpmoe.routing.kinds.stops import Stops as Stops
from hpmoe.scheduling.expected_slots import expected_rows as expected_rows, expected_shares as expected_shares
from hpmoe.tile_ops import (
    col_modes as col_modes,
    row_modes as row_modes,
)
from hpmoe.tile_ops.domains import Domain as Domain
from hpmoe.tiling.rebuild import rebuild as rebuild
