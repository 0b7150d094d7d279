"""The gradient of a transform that changes values is the gradient of what it returns: JAX in float64 is the expectation."""

import pytest
from helpers import DIFFERENTIABLE, Layer, assert_close, jax_vjp, run_spmd, some_stages, stages
from value_changes import RULES, changing, jax_layer

import hpmoe
from hpmoe import TransformError, chain, moe_ffn
from hpmoe.transforms.send_rows import send_rows

LAYER = Layer(ep=2, T=5, H=4, I=3, E=4, K=2)
STAGES = stages()


def assert_equals_jax(f, layer, *names):
    args, cotangent = layer.arguments(), layer.cotangent()
    want, want_grads = jax_vjp(jax_layer(names), args, cotangent, DIFFERENTIABLE)
    outs, grads = run_spmd(f, layer.mesh, args, [cotangent])
    assert_close([*outs, *grads], [want, *want_grads])


@pytest.mark.parametrize("name, stage", [(name, stage) for i, name in enumerate(RULES) for stage in some_stages(i)])
def test_gradient_is_that_of_the_changed_function(name, stage):
    assert_equals_jax(STAGES[stage](changing(name)(moe_ffn)), LAYER, name)


@pytest.mark.parametrize("name", RULES)
def test_gradient_on_one_rank(name):
    assert_equals_jax(STAGES["fused"](changing(name)(moe_ffn)), Layer(ep=1, T=4, E=3, K=2), name)


def test_several_changes_are_differentiated_together():
    changes = chain(*map(changing, RULES))
    assert_equals_jax(STAGES["fused"](changes(moe_ffn)), LAYER, *RULES)
    assert_equals_jax(STAGES["fused"](send_rows(changes(moe_ffn), scheme="deduplicated")), LAYER, *RULES)


@pytest.mark.parametrize("order, policy", [("saved first", "recompute_swiglu"), ("saved first", "dispatched_rows"),
                                           ("changed first", "recompute_swiglu")])
def test_what_is_saved_changes_no_gradient(policy, order):
    save, change = hpmoe.save_for_backward(policy=policy), changing("relu_squared")
    both = chain(save, change) if order == "saved first" else chain(change, save)
    assert_equals_jax(STAGES["fused"](both(moe_ffn)), LAYER, "relu_squared")


def test_what_stands_for_a_saved_value_is_saved():
    args = [hpmoe.ShapeDtypeStruct(a.shape[1:], "int32" if i == 1 else "float32") for i, a in enumerate(LAYER.arguments())]

    def saved(transform):
        program = transform(moe_ffn).lower(*args, mesh=LAYER.mesh, direction="backward")
        return [v.aval.shape[1:] for n, v in zip(program.input_names, program.inputs, strict=True) if n.startswith("saved")]
    save = hpmoe.save_for_backward(policy=lambda eqn: eqn.primitive.name == "swiglu")
    assert saved(save) == [(3,)]
    assert saved(chain(save, changing("relu_squared"))) == [(3,)]


def test_transform_after_one_of_passes_prints_the_order():
    with pytest.raises(TransformError, match=r"relu_squared: .* write chain\(relu_squared, send_rows"):
        chain(send_rows(scheme="deduplicated"), changing("relu_squared"))(moe_ffn)
