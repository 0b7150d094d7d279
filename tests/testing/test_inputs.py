"""random_inputs and the strategies: what is drawn is what was asked for."""

import subprocess
import sys

import chex
import hypothesis
import mindspore as ms
import numpy as np
import pytest
from hypothesis import strategies as st

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct, moe_ffn, spmd
from hpmoe.testing import assert_same, random_inputs, strategies
from hpmoe.testing.inputs import ROUTINGS

AVALS = [ShapeDtypeStruct(*a) for a in (((5, 4), "float32"), ((5, 2), "int32"), ((5, 2), "bfloat16"), ((2, 4, 6), "float16"),
                            ((2, 3, 4), "float32"))]


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("ep", [1, 3])
def test_inputs_are_of_their_shapes_and_ids_distinct(routing, ep):
    inputs = random_inputs(lambda *a: hpmoe.combine(*hpmoe.dispatch(*a[:2], num_local_experts=2)), AVALS, Mesh(ep), routing)
    chex.assert_tree_shape_prefix([x.asnumpy() for x in inputs], (ep,))
    assert [(x.shape[1:], str(x.dtype).lower()) for x in inputs] == [(a.shape, a.dtype) for a in AVALS]
    ids = inputs[1].asnumpy()
    assert (ids[..., 0] != ids[..., 1]).all() and ids.min() >= 0 and ids.max() < 2 * ep


def test_routings_are_what_they_say():
    def ids(routing, ep=3):
        inputs = random_inputs(moe_ffn, [ShapeDtypeStruct(a.shape, "float32") if i != 1 else a for i, a in enumerate(AVALS)],
                               Mesh(ep),
                               routing)
        return inputs[1].asnumpy(), inputs.num_tokens
    assert (ids("one_expert")[0][..., 0] == 5).all()
    assert ids("empty_ranks")[0].max() == 1
    assert len(np.unique(ids("uniform")[0])) == 6
    assert ids("uneven")[1] == (4, 2, 0) and ids("uneven", 1)[1] == (2,) and ids("uniform")[1] is None


def test_the_same_seed_gives_the_same_and_another_one_others():
    one, same, other = (random_inputs(hpmoe.swiglu, [ShapeDtypeStruct((4, 6), "float32")], None, seed=seed)
                        for seed in (0, 0, 1))
    chex.assert_trees_all_equal(one[0].asnumpy(), same[0].asnumpy())
    assert one[0].shape == (4, 6) and (one[0].asnumpy() != other[0].asnumpy()).any()


def test_trees_numbers_and_tensors_stay_what_they_are():
    mask = ms.Tensor(np.ones((2, 4, 1)), ms.float32)
    inputs = random_inputs(lambda p, by, mask: p["x"] * by * mask, [{"x": ShapeDtypeStruct((4, 3), "float32")}, 2.0, mask],
                           Mesh(2))
    assert inputs[0]["x"].shape == (2, 4, 3) and inputs[1:] == (2.0, mask)
    index = random_inputs(lambda x, i: x[i],
                          [ShapeDtypeStruct((7, 2), "float32"), ShapeDtypeStruct((50,), "int64")])[1].asnumpy()
    assert set(index) == set(range(7))


@hypothesis.settings(max_examples=10, derandomize=True)
@hypothesis.given(strategies.layers(strategies.meshes(3)), strategies.routings(), st.integers(0, 9))
def test_layers_are_called_with_what_is_drawn(layer, routing, seed):
    inputs = random_inputs(*layer, routing=routing, seed=seed)
    out = spmd(layer.f, layer.mesh)(*inputs, num_tokens=inputs.num_tokens)
    first = out[0] if isinstance(out, tuple) else out
    chex.assert_shape(first.asnumpy(), (layer.mesh.ep, *layer.avals[0].shape))
    chex.assert_tree_all_finite(first.asnumpy())


@hypothesis.settings(max_examples=6, derandomize=True)
@hypothesis.given(strategies.layers(strategies.meshes(3), dtypes=("float32", "bfloat16")), strategies.routings(),
                  strategies.chains(hpmoe.save_for_backward(policy="recompute_swiglu")))
def test_any_chain_computes_any_layer(layer, routing, chain):
    assert_same(chain, *layer, orders=1, routings=[routing])


def test_hpmoe_imports_no_kit_and_the_kit_says_what_it_lacks():
    script = ("import sys, hpmoe; assert not {'chex', 'jax', 'hypothesis', 'hpmoe.testing'} & set(sys.modules)\n"
              "sys.modules['chex'] = None\nimport hpmoe.testing")
    ended = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, timeout=100)
    assert "ImportError: hpmoe.testing needs chex: pip install 'hpmoe[testing]'" in ended.stderr, ended.stderr
