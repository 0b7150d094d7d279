"""A Program is cut into launch segments: ids are computed first, everything else as late as possible."""

import numpy as np
import pytest
from helpers import Layer
from mindspore import mint
from router_layers import arguments, num_layers, routed_ffn, router, side_by_side, two_layers

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct
from hpmoe.autodiff.vjp import linearize
from hpmoe.ir.avals import RouteAval
from hpmoe.ir.program import live_equations
from hpmoe.ir.stages import Stages, cut_at_routes, deciding_vars, views_of_inputs


def program_of(f):
    layer = Layer(ep=2, T=5)
    avals = [ShapeDtypeStruct(a.shape[1:], "float32") for a in arguments(layer, num_layers(f))]
    return hpmoe.trace(f, *avals, mesh=Mesh(layer.ep))


def names(part):
    return [e.primitive.name for e in part.program.equations]


def shared_expert_first(x, gate, up, down, shared_up, shared_down):
    shared = hpmoe.swiglu(x @ shared_up) @ shared_down
    ids, weights = router(x, gate, 2)
    return hpmoe.moe_ffn(x, ids, weights, up, down) + shared, ids


def test_only_what_leads_to_ids_is_in_the_first_stage():
    avals = [ShapeDtypeStruct(s, "float32") for s in [(5, 4), (4, 4), (2, 4, 6), (2, 3, 4), (4, 8), (4, 4)]]
    first, last = cut_at_routes(hpmoe.trace(shared_expert_first, *avals, mesh=Mesh(2)))
    assert names(first) == ["matmul", "reduce_max", "stop_gradient", "sub", "exp", "reduce_sum", "div", "top_k"]
    assert names(last)[:3] == ["matmul", "swiglu", "matmul"] and names(last)[-1] == "add"
    assert [v.aval.dtype for v in last.program.inputs[-2:]] == ["float32", "int32"]
    assert last.places == (0, 1) and first.places == ()  # int64 ids that are returned are cast late


def test_given_ids_are_one_part():
    program = hpmoe.trace(lambda x, ids: hpmoe.combine(*hpmoe.dispatch(x, ids.reshape(6, 2), num_local_experts=4)),
                          ShapeDtypeStruct((6, 4), "float32"), ShapeDtypeStruct((2, 3, 2), "int32"))
    (part,) = cut_at_routes(program)
    assert part.program is program and not part.makers


def test_layers_side_by_side_wait_for_one_exchange():
    assert [sum(isinstance(e.outputs[0].aval, RouteAval) for e in p.program.equations)
            for p in cut_at_routes(program_of(side_by_side))] == [0, 2]


def test_a_route_that_depends_on_a_layer_waits_for_it():
    first, second, third = map(names, cut_at_routes(program_of(two_layers)))
    assert "route" not in first and first[-1] == "top_k"
    assert second.count("route") == 1 and second[-1] == "top_k"
    assert third.count("combine") == 1 and third[-1] == "add"


def test_a_route_is_made_again_where_its_rows_are_read():
    def f(x, ids, gate):
        rows, route = hpmoe.dispatch(x, ids, num_local_experts=2)
        chosen, _ = router(hpmoe.combine(rows, route), gate, 1)
        others, second = hpmoe.dispatch(x, chosen, num_local_experts=2)
        return hpmoe.combine(rows * 2.0, route) + hpmoe.combine(others, second)

    program = hpmoe.trace(f, ShapeDtypeStruct((5, 4), "float32"), ShapeDtypeStruct((5, 2), "int32"),
                          ShapeDtypeStruct((4, 4), "float32"), mesh=Mesh(2))
    first, second = cut_at_routes(program)
    assert names(first).count("route") == 1 and names(second).count("route") == 2
    rows = next(v for v in second.program.inputs if not isinstance(v.aval.shape[0], int))
    assert rows in first.program.outputs
    x, ids, gate = np.random.default_rng(0).standard_normal((2, 5, 4)), np.array([[[0, 3]] * 5] * 2, np.int32), np.eye(4)
    inputs = [[x[r].astype(np.float32), ids[r], gate.astype(np.float32)] for r in range(2)]
    parts = Stages(program, tuple(part.program for part in cut_at_routes(program))).run(inputs)
    for (got,), (want,) in zip(parts, hpmoe.interpret(program, inputs), strict=True):
        np.testing.assert_array_equal(got, want)


def random_router(seed):
    """A function of several layers, whose routes depend on earlier ones or not."""
    choices = np.random.default_rng(seed).integers(0, 3, 4)

    def f(x, gate, up, down):
        values = [x]
        for choice in choices:
            source = values[min(int(choice), len(values) - 1)]
            values.append(source + routed_ffn(source, gate, up, down))
        return sum(values), values[1] * 2.0, values[0]

    return f


@pytest.mark.parametrize("seed", range(8))
def test_laws(seed):
    """Each equation that anything needs is in one part, or in several and free; a part reads what was made before it; all
    parts together compute what the program does, also what it saves."""
    avals = [ShapeDtypeStruct(a.shape[1:], "float32") for a in arguments(Layer(ep=2, T=5))]
    whole = linearize(hpmoe.trace(random_router(seed), *avals, mesh=Mesh(2)))
    program, made = whole.forward, set(whole.forward.inputs)
    live = live_equations(program.equations, program.outputs)
    parts = cut_at_routes(program)
    assert sorted(place for part in parts for place in part.places) == list(range(len(program.outputs)))
    for part in parts:
        views = views_of_inputs(part.program)
        assert made.issuperset(part.program.inputs)
        assert all(a in views for e in part.program.equations for a in deciding_vars(e))
        assert len(live_equations(part.program.equations, part.program.outputs)) == len(part.program.equations)
        made.update(part.program.outputs)
    count = [sum(e in part.program.equations for part in parts) for e in live]
    assert all(n == 1 or isinstance(e.outputs[0].aval, RouteAval) for e, n in zip(live, count, strict=True))
    args = arguments(Layer(ep=2, T=5), seed=seed)
    inputs = [[a[r] for a in args] for r in range(2)]
    got = Stages(program, tuple(part.program for part in cut_at_routes(program))).run(inputs)
    for mine, its in zip(got, hpmoe.interpret(program, inputs), strict=True):
        for a, b in zip(mine, its, strict=True):
            np.testing.assert_array_equal(a, b)
    assert len(cut_at_routes(whole.backward)) == 1


def test_nothing_that_decides_is_computed_again():
    """The backward pass receives all ids, and weights that decide drops, under every policy."""
    def f(x, gate, up, down):
        probs = mint.softmax(x @ gate, dim=-1)
        weights, ids = mint.topk(probs, 2, dim=-1)
        rows, route = hpmoe.dispatch(x, ids, num_local_experts=2, capacity_factor=0.5, drop_policy="probs",
                                     topk_weights=weights * 2.0)
        return hpmoe.combine(hpmoe.grouped_matmul(hpmoe.swiglu(hpmoe.grouped_matmul(rows, up, route)), down, route), route)

    avals = [ShapeDtypeStruct(a.shape[1:], "float32") for a in arguments(Layer(ep=2, T=5))]
    program = hpmoe.trace(f, *avals, mesh=Mesh(2)).replace(saves=frozenset())
    backward = linearize(program).backward
    assert len(cut_at_routes(backward)) == 1
    saved = [v.aval.dtype for v, name in zip(backward.inputs, backward.input_names, strict=True) if name.startswith("saved")]
    assert saved == ["int32", "float32"]
