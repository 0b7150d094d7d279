"""The layer in JAX under jit: a loop over experts unrolled in tracing, with the rows of each known there."""

import jax
import numpy as np
from jax import numpy as jnp


def compiled(problem):
    """The passes of the layer, and how its results become NumPy arrays."""
    def array(a):
        return jnp.asarray(a, problem.dtype)

    rows, places, slices = problem.rows, problem.places, problem.slices
    cotangent = array(problem.array("cotangent"))
    given = (array(problem.array("hidden_states")), array(problem.array("topk_weights")),
             *([array(w) for w in problem.array(name)] for name in ("gate_up_weight", "down_weight")))

    def moe_ffn(x, weights, gate_up, down):
        received, outputs = x[rows], []
        for e, r in slices:
            gate, up = jnp.split(received[r] @ gate_up[e], 2, axis=-1)
            outputs.append(jax.nn.silu(gate) * up @ down[e])
        return jnp.einsum("nk,nkh->nh", weights, jnp.concatenate(outputs)[places])

    f = jax.jit(moe_ffn)

    @jax.jit
    def gradients(cotangent, *args):
        out, back = jax.vjp(moe_ffn, *args)
        return [out, *back(cotangent)]

    return ({"forward": lambda: jax.block_until_ready([f(*given)]),
             "forward + backward": lambda: jax.block_until_ready(gradients(cotangent, *given))},
            lambda a: np.asarray(a.astype(jnp.float32)))
