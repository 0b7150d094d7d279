"""Rows that are dispatched, and weights that are multiplied, as numbers of one byte: what that costs in error and saves.

    python examples/18_quantised_rows.py

`quantize_rows` and `quantize_weights` are transforms of the function, before `tile_partition`. The first table runs a layer
in bfloat16 on this CPU, forward and backward, and compares each result with the same layer in float64; without them, what
is left is the rounding of bfloat16. Bytes between ranks are counted by the kernel as it copies them. The second table only
simulates: the time of a forward pass where each rank is a node, and how long one of its puts of rows takes; the third one
a layer that is given int8 weights, as inference has them, on ranks of one node.
"""

import argparse
import functools

import mindspore as ms
import numpy as np

import hpmoe

EP_SIZE, NUM_EXPERTS, TOP_K = 4, 16, 4
NUM_TOKENS, HIDDEN_SIZE, INTERMEDIATE_SIZE = 96, 256, 64
NAMES = ("output", "d hidden_states", "d topk_weights", "d gate_up_weight", "d down_weight")
QUANTISED = {
    "bfloat16 rows": [],
    "int8": [hpmoe.quantize_rows(dtype="int8")],
    "float8_e4m3fn": [hpmoe.quantize_rows(dtype="float8_e4m3fn")],
    "float8_e4m3fn, scale=128": [hpmoe.quantize_rows(dtype="float8_e4m3fn", scale=128)],
    "mxfp8": [hpmoe.quantize_rows(dtype="mxfp8")],
    "int8, both ways": [hpmoe.quantize_rows(dtype="int8", combine=True)],
    "int8, gradients too": [hpmoe.quantize_rows(dtype="int8", combine=True, backward="quantized")],
    "bfloat16, int8 weights": [hpmoe.quantize_weights],
    "bfloat16, fp8 weights": [hpmoe.quantize_weights(dtype="float8_e4m3fn")],
    "bfloat16, mxfp8 weights": [hpmoe.quantize_weights(dtype="mxfp8")],
    "int8, int8 weights (W8A8)": [hpmoe.quantize_rows, hpmoe.quantize_weights(row_dtype="int8")],
    "fp8, fp8 weights": [hpmoe.quantize_rows(dtype="float8_e4m3fn"),
                         hpmoe.quantize_weights(dtype="float8_e4m3fn", row_dtype="float8_e4m3fn")],
    "mxfp8, mxfp8 weights": [hpmoe.quantize_rows(dtype="mxfp8"), hpmoe.quantize_weights(dtype="mxfp8", row_dtype="mxfp8")],
    "the same, gradients too": [hpmoe.quantize_rows(dtype="mxfp8", backward="quantized"),
                                hpmoe.quantize_weights(dtype="mxfp8", row_dtype="mxfp8", backward="quantized")],
}

to_kernel = (hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)


def random_ids(rng, ep_size, num_tokens, num_experts, top_k):
    """Experts drawn at random, distinct for each token, of all ranks."""
    return rng.random((ep_size, num_tokens, num_experts)).argsort(-1)[..., :top_k].astype(np.int32)


def make_arguments(rng):
    """Arguments of moe_ffn for all ranks, in bfloat16; rows have a few large columns, as those of language models have."""
    def normal(*shape):
        return rng.standard_normal((EP_SIZE, *shape)) / np.sqrt(shape[-2])
    local = NUM_EXPERTS // EP_SIZE
    x = rng.standard_normal((EP_SIZE, NUM_TOKENS, HIDDEN_SIZE))
    x[..., ::64] *= 8
    floats = (x, rng.random((EP_SIZE, NUM_TOKENS, TOP_K)), normal(local, HIDDEN_SIZE, 2 * INTERMEDIATE_SIZE),
              normal(local, INTERMEDIATE_SIZE, HIDDEN_SIZE))
    first, *others = (ms.Tensor(a.astype(np.float32)).astype(ms.bfloat16) for a in floats)
    return first, ms.Tensor(random_ids(rng, EP_SIZE, NUM_TOKENS, NUM_EXPERTS, TOP_K)), *others


def in_float64(args, cotangent):
    """Output and gradients of the layer in double precision."""
    inputs = [a.astype(ms.float32).asnumpy() if a.dtype == ms.bfloat16 else a.asnumpy() for a in args]
    avals = [hpmoe.ShapeDtypeStruct(a.shape[1:], "int32" if a.dtype == np.int32 else "float64") for a in inputs]
    program = hpmoe.trace(hpmoe.moe_ffn, *avals, mesh=hpmoe.Mesh(EP_SIZE))
    backward = hpmoe.rewriting.vjp(program)
    given = dict(zip(program.input_names, inputs, strict=True)) | {"d_out": cotangent}
    saved = [name for name in backward.input_names if name not in given]
    whole = program.replace(outputs=(*program.outputs, *(backward.inputs[backward.input_names.index(n)] for n in saved)))
    forward = hpmoe.interpret(whole, [[a[r] for a in inputs] for r in range(EP_SIZE)], dtype="float64")
    grads = hpmoe.interpret(backward, [[given[n][r] if n in given else forward[r][1 + saved.index(n)]
                                       for n in backward.input_names] for r in range(EP_SIZE)], dtype="float64")
    return [np.stack(parts) for parts in zip(*([out[0], *mine] for out, mine in zip(forward, grads, strict=True)),
                                             strict=True)]


def run(transforms, args, cotangent):
    """Output and gradients of the kernel, and the bytes that its two launches sent from rank to rank."""
    layer = hpmoe.spmd(hpmoe.chain(*transforms, *to_kernel)(hpmoe.moe_ffn), hpmoe.Mesh(EP_SIZE))

    def loss(*args):
        out = layer(*args).astype(ms.float32)
        return (out * ms.Tensor(cotangent)).sum(), out
    ((_, out), grads), timelines = hpmoe.measure(lambda: ms.value_and_grad(loss, (0, 2, 3, 4), has_aux=True)(*args))
    sent = [bytes_sent(line) for line in timelines]
    return [a.astype(ms.float32).asnumpy() for a in (out, *grads)], sent


def bytes_sent(line):
    """From each rank to others."""
    moved = line.link_bytes()
    return moved.in_node + moved.across_nodes


def show_errors(rng):
    args = make_arguments(rng)
    cotangent = rng.standard_normal(args[0].shape).astype(np.float32)
    want = in_float64(args, cotangent)
    print("error against float64, root mean square, relative                           bytes between ranks")
    print(f"  {'rows are dispatched as':<26}" + "".join(f"{name.replace('_weight', ''):>16}" for name in NAMES)
          + "   forward  backward")
    for name, transforms in QUANTISED.items():
        got, sent = run(transforms, args, cotangent)
        errors = [np.sqrt(((g - w) ** 2).mean() / (w ** 2).mean()) for g, w in zip(got, want, strict=True)]
        print(f"  {name:<26}" + "".join(f"{e:16.1e}" for e in errors) + f"{sent[0]:10d}{sent[1]:10d}")


def show_simulated(rng):
    """A layer whose ranks are nodes."""
    ep_size, num_tokens, num_experts, top_k, hidden_size, intermediate_size = 8, 1024, 64, 8, 7168, 1024
    ids, local = random_ids(rng, ep_size, num_tokens, num_experts, top_k), num_experts // ep_size
    shapes = ((num_tokens, hidden_size), (num_tokens, top_k), (num_tokens, top_k),
              (local, hidden_size, 2 * intermediate_size), (local, intermediate_size, hidden_size))
    avals = [hpmoe.ShapeDtypeStruct(s, "int32" if i == 1 else "bfloat16") for i, s in enumerate(shapes)]
    machine = hpmoe.machines.ascend_a3.replace({"link.node_size": 1})
    print(f"\nsimulated, {ep_size} ranks, each a node, {num_tokens} tokens each, forward")
    print("  rows are dispatched as      MB out of all ranks   median put out, us    ms")
    for name in ("bfloat16 rows", "int8", "mxfp8", "int8, both ways"):
        stages = hpmoe.chain(*QUANTISED[name], hpmoe.tile_partition(machine=machine), hpmoe.overlap_comm(),
                             hpmoe.assign_queues(machine=machine))
        flow = stages(hpmoe.moe_ffn).lower(*avals, mesh=hpmoe.Mesh(ep_size))
        line = hpmoe.simulate(flow, routing=ids)
        print(f"  {name:<26}{bytes_sent(line) / 1e6:21.1f}{median_put(line):21.1f}{line.span / 1e3:6.2f}")


def int8_moe_ffn(x, topk_ids, topk_weights, gate_up, gate_up_scale, down, down_scale, row_dtype):
    """The layer of int8 weights; rows as they are (W8), or int8 as well (W8A8)."""
    rows, route = hpmoe.dispatch(x, topk_ids, num_local_experts=gate_up.shape[0])
    act = hpmoe.swiglu(hpmoe.grouped_matmul(rows, gate_up, route, scale=gate_up_scale, row_dtype=row_dtype))
    return hpmoe.combine(hpmoe.grouped_matmul(act, down, route, scale=down_scale, row_dtype=row_dtype), route, topk_weights)


def show_int8_weights(rng):
    """Few tokens for each expert, so that reading weights takes the time; then many, so that multiplying does."""
    ep_size, num_experts, top_k, hidden_size, intermediate_size = 8, 64, 8, 7168, 1024
    local, machine = num_experts // ep_size, hpmoe.machines.ascend_a3
    weights = (local, hidden_size, 2 * intermediate_size), (local, intermediate_size, hidden_size)
    scales = (local, 2 * intermediate_size), (local, hidden_size)
    print(f"\nsimulated, {ep_size} ranks of a node, forward, ms       MB of weights   64 tokens   2048 tokens")
    for name, row_dtype, transforms in (("bfloat16", None, []), ("int8 weights (W8)", None, []),
                                        ("int8, rows multiplied too (W8A8)", "int8", []),
                                        ("int8, rows sent so as well", "int8", [hpmoe.quantize_rows])):
        is_int8, spans = name != "bfloat16", []
        for num_tokens in (64, 2048):
            ids = random_ids(rng, ep_size, num_tokens, num_experts, top_k)
            tokens = [hpmoe.ShapeDtypeStruct((num_tokens, hidden_size), "bfloat16"),
                      hpmoe.ShapeDtypeStruct((num_tokens, top_k), "int32"),
                      hpmoe.ShapeDtypeStruct((num_tokens, top_k), "float32")]
            given = [hpmoe.ShapeDtypeStruct(s, "int8" if is_int8 else "bfloat16") for s in weights]
            if is_int8:
                given = [a for pair in zip(given, (hpmoe.ShapeDtypeStruct(s, "float32") for s in scales), strict=True)
                         for a in pair]
            f = functools.partial(int8_moe_ffn, row_dtype=row_dtype) if is_int8 else hpmoe.moe_ffn
            stages = hpmoe.chain(*transforms, hpmoe.tile_partition(machine=machine), hpmoe.overlap_comm(),
                                 hpmoe.assign_queues(machine=machine))
            spans.append(hpmoe.simulate(stages(f).lower(*tokens, *given, mesh=hpmoe.Mesh(ep_size)), routing=ids).span / 1e3)
        size = sum(np.prod(s) for s in weights) * (1 if is_int8 else 2) / 1e6
        print(f"  {name:<44}{size:13.0f}{spans[0]:12.2f}{spans[1]:14.2f}")


def median_put(line):
    """Microseconds in which a put of rows to their experts moves them, in the median of those that move any."""
    puts = [i for i, op in enumerate(line.flow.ops) if op.primitive.sends_rows]
    took = (line.end - line.begin)[np.isin(line.flow.tasks["op"][line.task], puts)]
    return float(np.median(took[took > 1.0]))


def main():
    ms.runtime.launch_blocking()
    rng = np.random.default_rng(0)
    show_errors(rng)
    show_simulated(rng)
    show_int8_weights(rng)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
