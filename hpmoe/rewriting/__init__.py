"""The public names that a transform of one's own needs: the two levels of IR, how they are edited, and all primitives.

Of a Program: Program, Equation, Literal, Builder and `map_equations`; `equation.primitive is mul` asks which primitive an
equation is of. Of a Taskflow: Taskflow, its TileOps with their Domain, Accesses (`row_modes`, `col_modes`) and Buffers, and
`rebuild`, which derives tasks and dependencies anew. What lies in hpmoe/ir and elsewhere may move; these names stay.

Example:
    >>> import hpmoe
    >>> from hpmoe.rewriting import add, map_equations, mul
    >>> @hpmoe.transform(requires="program")
    ... def double(program):
    ...     def rule(builder, eqn):
    ...         x, *others = eqn.inputs
    ...         if eqn.primitive is add and others == [x]:
    ...             return [builder.add(mul, x, 2.0)]
    ...     return map_equations(program, rule)
    >>> print(double(lambda x: x + x).lower(hpmoe.Aval((3,), "float32")))
    # <lambda> | double
    { lambda x:f32[3]
      let a:f32[3] = mul x 2.0
      in (a,) : f32[3] }
"""

from hpmoe.ir.program import (
    Builder as Builder,
    Equation as Equation,
    Literal as Literal,
    Program as Program,
    map_equations as map_equations,
)
from hpmoe.ir.taskflow import (
    Taskflow as Taskflow,
)
from hpmoe.ir.tile_op import (
    Access as Access,
    Buffer as Buffer,
    TileOp as TileOp,
)
from hpmoe.primitives.columns import (
    add_columns as add_columns,
    cumsum as cumsum,
    take_columns as take_columns,
)
from hpmoe.primitives.dispatch import (
    combine_rows as combine_rows,
    dispatch_rows as dispatch_rows,
)
from hpmoe.primitives.elementwise import (
    absolute as absolute,
    add as add,
    cos as cos,
    div as div,
    equal as equal,
    erf as erf,
    exp as exp,
    floor as floor,
    floor_div as floor_div,
    greater as greater,
    greater_equal as greater_equal,
    less as less,
    less_equal as less_equal,
    log as log,
    maximum as maximum,
    minimum as minimum,
    mul as mul,
    neg as neg,
    not_equal as not_equal,
    power as power,
    reciprocal as reciprocal,
    relu as relu,
    remainder as remainder,
    round_ as round_,
    rsqrt as rsqrt,
    select as select,
    sigmoid as sigmoid,
    sign as sign,
    silu as silu,
    sin as sin,
    softplus as softplus,
    sqrt as sqrt,
    square as square,
    stop_gradient as stop_gradient,
    sub as sub,
    tanh as tanh,
)
from hpmoe.primitives.entry_weights import (
    combine_weights as combine_weights,
    dispatch_weights as dispatch_weights,
)
from hpmoe.primitives.expert import (
    expert_bias as expert_bias,
    expert_sum as expert_sum,
)
from hpmoe.primitives.fan import (
    fan_in as fan_in,
    fan_out as fan_out,
    route_to_ranks as route_to_ranks,
)
from hpmoe.primitives.gather import (
    gather_rows as gather_rows,
    scatter_rows as scatter_rows,
)
from hpmoe.primitives.grouped_matmul import (
    grouped as grouped,
    grouped_weight_grad as grouped_weight_grad,
)
from hpmoe.primitives.matmul import (
    matmul as matmul,
    weight_grad as weight_grad,
)
from hpmoe.primitives.permute import (
    permute_rows as permute_rows,
    sort_indices as sort_indices,
    unpermute_rows as unpermute_rows,
)
from hpmoe.primitives.reduce_max import (
    reduce_max as reduce_max,
)
from hpmoe.primitives.reduction import (
    broadcast_to as broadcast_to,
    reduce_sum as reduce_sum,
)
from hpmoe.primitives.replicate import (
    replicate_weights as replicate_weights,
    return_weight_grads as return_weight_grads,
)
from hpmoe.primitives.route import (
    count_drops as count_drops,
    make_route as make_route,
)
from hpmoe.primitives.row_dot import (
    row_dot as row_dot,
)
from hpmoe.primitives.shape import (
    cast as cast,
    concat as concat,
    pad_axis as pad_axis,
    reshape as reshape,
    slice_axis as slice_axis,
    transpose as transpose,
)
from hpmoe.primitives.swiglu import (
    gated as gated,
    swiglu_grad as swiglu_grad,
)
from hpmoe.primitives.top_k import (
    top_k as top_k,
)
from hpmoe.tile_ops import (
    col_modes as col_modes,
    row_modes as row_modes,
)
from hpmoe.tile_ops.domains import (
    Domain as Domain,
)
from hpmoe.tiling.rebuild import (
    rebuild as rebuild,
)
