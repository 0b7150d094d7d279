"""Laws of the transforms over random programs and shapes."""

import hypothesis
import jax
import numpy as np
from helpers import Layer, assert_close, jax_vjp, numpy_moe_ffn, run_spmd, stages, tensors
from hypothesis import given, strategies as st
from jax import numpy as jnp
from mindspore import Tensor, mint

import hpmoe
from hpmoe import Aval, Mesh, chain, cpu, spmd, tile_partition
from hpmoe.evaluate import evaluate
from hpmoe.vjp import linearize

few = hypothesis.settings(max_examples=25, derandomize=True)


@st.composite
def layers(draw):
    ep = draw(st.integers(1, 4))
    experts, tokens = ep * draw(st.integers(1, 3)), draw(st.integers(0, 6))
    lengths = draw(st.none() | st.tuples(*[st.integers(0, tokens)] * ep))
    return Layer(ep=ep, T=tokens, H=draw(st.integers(1, 5)), I=draw(st.integers(1, 4)), E=experts,
                 K=draw(st.integers(1, min(4, experts))), num_tokens=lengths,
                 routing=draw(st.sampled_from(["random", "one expert", "one rank"])))


schedules = st.fixed_dictionaries({
    "rows": st.integers(1, 5), "cols": st.integers(1, 7), "signal": st.sampled_from(["tile", "expert", "peer"]),
    "order": st.sampled_from(["ratr", "sequential"]), "machine": st.sampled_from([cpu(1), cpu(2)]),
    "policy": st.sampled_from(["critical_path", "round_robin", "stage_order"])})


@few
@given(layers(), schedules, st.integers(0, 100))
def test_every_prefix_of_the_chain_computes_the_function_and_its_gradients(layer, schedule, seed):
    args, cotangent = layer.arguments(seed), layer.cotangent(seed)
    want, want_grads = numpy_moe_ffn(args, cotangent, layer.num_tokens)
    for name, stage in stages(**schedule).items():
        outs, grads = run_spmd(stage(hpmoe.moe_ffn), layer.ep, args, [cotangent], layer.num_tokens)
        assert_close([*outs, *grads], [want, *want_grads], name)


@few
@given(layers(), schedules)
def test_text_is_deterministic_and_has_no_addresses(layer, schedule):
    args = tensors(layer.arguments())
    for stage in stages(**schedule).values():
        for direction in ("forward", "backward"):
            one, two = (str(spmd(stage(hpmoe.moe_ffn), Mesh(layer.ep)).lower(*args, direction=direction)) for _ in range(2))
            assert one == two and " at 0x" not in one
            assert one.startswith("# moe_ffn")


def test_chain_of_none_is_the_identity_and_of_one_is_that_one():
    x = Aval((5, 6), "float32")
    assert chain()(hpmoe.swiglu) is hpmoe.swiglu
    assert str(chain(tile_partition)(hpmoe.swiglu).lower(x)) == str(tile_partition(hpmoe.swiglu).lower(x))
    one = chain(tile_partition, chain(hpmoe.overlap_comm, hpmoe.assign_queues))(hpmoe.swiglu)
    two = hpmoe.assign_queues(hpmoe.overlap_comm(tile_partition(hpmoe.swiglu)))
    assert str(one.lower(x)) == str(two.lower(x))


# Random elementwise programs, written once for mint and for jnp.

UNARY = {"tanh": (mint.tanh, jnp.tanh), "sigmoid": (mint.sigmoid, jax.nn.sigmoid), "exp": (lambda a: mint.exp(-a * a),
         lambda a: jnp.exp(-a * a)), "silu": (mint.nn.functional.silu, jax.nn.silu), "sin": (mint.sin, jnp.sin),
         "square": (mint.square, jnp.square), "rsqrt": (lambda a: mint.rsqrt(a * a + 1.0), lambda a: jax.lax.rsqrt(a * a + 1.0)),
         "log": (lambda a: mint.log(mint.abs(a) + 1.0), lambda a: jnp.log(jnp.abs(a) + 1.0)),
         "where": (lambda a: mint.where(a > 0.1, a, 0.5 * a), lambda a: jnp.where(a > 0.1, a, 0.5 * a)),
         "mean": (lambda a: a - mint.mean(a, dim=-1, keepdim=True), lambda a: a - jnp.mean(a, axis=-1, keepdims=True)),
         "roll": (lambda a: mint.cat([a[:, 1:], a[:, :1]], dim=-1), lambda a: jnp.concatenate([a[:, 1:], a[:, :1]], -1))}
BINARY = {"add": (mint.add, jnp.add), "mul": (mint.mul, jnp.multiply), "sub": (mint.sub, jnp.subtract),
          "maximum": (mint.maximum, jnp.maximum), "div": (lambda a, b: a / (b * b + 1.0), lambda a, b: a / (b * b + 1.0))}
steps = st.lists(st.one_of(st.tuples(st.sampled_from(sorted(UNARY)), st.integers(0, 9)),
                           st.tuples(st.sampled_from(sorted(BINARY)), st.integers(0, 9), st.integers(0, 9))), max_size=8)


def interpreter(program, which):
    """The function that runs `program`, a list of (operation, operand, ...), on [T, N], [N] and [T, 1] arrays."""
    def run(x, row, column):
        values = [x, x + row, x * column]
        for name, *operands in program:
            table = UNARY if name in UNARY else BINARY
            values.append(table[name][which](*(values[i % len(values)] for i in operands)))
        return values[-1]
    return run


@few
@given(steps, st.integers(0, 100))
def test_random_elementwise_programs_and_their_vjps(program, seed):
    rng = np.random.default_rng(seed)
    args = [rng.standard_normal(s).astype(np.float32) for s in [(5, 4), (4,), (5, 1)]]
    cotangent = rng.standard_normal((5, 4)).astype(np.float32)
    want, grads = jax_vjp(interpreter(program, 1), args, cotangent, (0, 1, 2))
    traced = hpmoe.trace(interpreter(program, 0), *map(Tensor, args))
    lin = linearize(traced)
    for precision, tolerance in (("float64", 1e-9), (None, 1e-4)):
        run = lambda p, xs: evaluate(p, [xs], dtype=precision)[0]  # noqa: E731, B023
        out, *saved = run(lin.forward, args)
        got = run(lin.backward, [*(args[i] for i in lin.kept_inputs), *saved, cotangent])
        assert_close([out, *got], [want, *grads], str(traced), tolerance)
    f = stages()["fused"](interpreter(program, 0))
    outs, got = run_spmd(f, 1, [a[None] for a in args], [cotangent[None]], positions=(0, 1, 2))
    assert_close([outs[0][0], *(g[0] for g in got)], [want, *grads], str(traced), 1e-4)
