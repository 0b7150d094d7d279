"""Transforms that change values: each puts another function in the place of an equation. And what they make of a layer,
in JAX."""

import functools

import jax
from helpers import entry_weights
from jax import numpy as jnp

import hpmoe
from hpmoe.rewriting import map_equations
from hpmoe.rewriting.primitives import add, combine, dispatch, mul, reduce_sum, relu, rsqrt, slice, square, swiglu

EPS, SCALE = 1e-3, 3.0


def _relu_squared(builder, eqn):
    (x,) = eqn.inputs
    half = x.aval.shape[-1] // 2
    gate, value = (builder.add(slice, x, axis=1, start=start, stop=start + half) for start in (0, half))
    return builder.add(mul, builder.add(square, builder.add(relu, gate)), value)


def _normalized(builder, eqn):
    rows, *others = eqn.inputs
    total = builder.add(reduce_sum, builder.add(square, rows), axis=1, keepdims=True)
    mean = builder.add(mul, total, 1.0 / rows.aval.shape[1])
    rows = builder.add(mul, rows, builder.add(rsqrt, builder.add(add, mean, EPS)))
    return builder.add(combine, rows, *others)


def _scaled(builder, eqn):
    return builder.add(mul, builder.keep(eqn), SCALE)


RULES = {"relu_squared": (swiglu, _relu_squared), "normalize_rows": (combine, _normalized),
         "scale_rows": (dispatch, _scaled)}


def changing(name, passes=None):
    """The transform of a name, of passes where these are given."""
    primitive, change = RULES[name]

    def rewrite(program):
        return map_equations(program, lambda b, eqn: [change(b, eqn)] if eqn.primitive is primitive else None)
    rewrite.__name__ = name
    return hpmoe.transform(requires="program", passes=passes)(rewrite)


@functools.cache
def jax_layer(names):
    """The MoE-FFN of all ranks, under the transforms of these names."""
    def layer(x, ids, weights, up, down):
        rows = jnp.broadcast_to(x[:, :, None], (*ids.shape, x.shape[-1])) * (SCALE if "scale_rows" in names else 1.0)
        gate, value = jnp.split(jnp.einsum("rtkh,rtkhn->rtkn", rows, entry_weights(up, ids)), 2, axis=-1)
        act = (jnp.maximum(gate, 0.0) ** 2 if "relu_squared" in names else jax.nn.silu(gate)) * value
        out = jnp.einsum("rtki,rtkih->rtkh", act, entry_weights(down, ids))
        if "normalize_rows" in names:
            out = out / jnp.sqrt((out ** 2).mean(-1, keepdims=True) + EPS)
        return jnp.einsum("rtk,rtkh->rth", weights, out)
    return layer
