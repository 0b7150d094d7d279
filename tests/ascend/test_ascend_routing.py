"""Routes of the Ascend kernel on its emulator that drop entries, pad experts' rows, deduplicate tokens, or replicate
experts."""

import mindspore as ms
import numpy as np
import pytest
from aligned_rows import aligned
from ascend_helpers import LayerRun, ProgramRun, bf16, capped, capped_run, f32, from_seed
from helpers import Layer, kept_by_hand
from mindspore import mint

import hpmoe
from hpmoe import ShapeDtypeStruct, combine, dispatch, grouped_matmul, trace
from hpmoe.kernels.image import unpack_image
from hpmoe.support.dtypes import numpy_dtype
from hpmoe.support.errors import LaunchError


@pytest.mark.parametrize("layer, factor, policy, options", [
    (Layer(ep=1, T=20, H=32, I=16, E=4, K=2), 0.5, "position", {}),
    (Layer(ep=2, T=20, H=48, I=32, E=8, K=3, num_tokens=(20, 7)), 0.75, "position", {"blocks": 2, "signal": "expert"}),
    (Layer(ep=2, T=40, H=32, I=16, E=4, K=2), 0.6, "probs", {"blocks": 2}),
    (Layer(ep=3, T=17, H=16, I=16, E=6, K=1, routing="one expert"), 1.0, "probs", {"rows": 4}),
    (Layer(ep=2, T=9, H=32, I=16, E=4, K=2), 0.5, "probs", {"dtype": ms.float16}),
    (Layer(ep=2, T=9, H=32, I=16, E=4, K=2, num_tokens=(9, 0)), 0.5, "probs", {"signal": "peer"}),
], ids=str)
def test_dropped_entries_have_no_effect(layer, factor, policy, options):
    capped_run(layer, factor, policy, **options).assert_close_to_float64()


def counted(x, ids, weights, policy):
    rows, route = hpmoe.dispatch(x, ids, num_local_experts=5, capacity_factor=0.5, drop_policy=policy, topk_weights=weights)
    return hpmoe.combine(rows, route, weights), hpmoe.router.drop_counts(route)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("policy", ["position", "probs"])
def test_drop_counts_in_any_order(monkeypatch, policy, dtype):
    avals = [ShapeDtypeStruct((37, 32), dtype), ShapeDtypeStruct((37, 3), "int32"), ShapeDtypeStruct((37, 3), dtype)]
    run = ProgramRun(trace(lambda *args: counted(*args, policy), *avals))
    rng = np.random.default_rng(0)
    run.inputs[1][...] = [rng.permutation(5)[:3] for _ in range(37)]
    run.inputs[2][...] = (np.round(rng.standard_normal((37, 3)) * 20) / 64).astype(numpy_dtype(dtype))  # with equal ones
    _, want = kept_by_hand(run.inputs[1][None], run.inputs[2].astype(np.float32)[None], 0.5, policy, 5)
    for seed in (0, 1000):
        from_seed(monkeypatch, seed)
        np.testing.assert_array_equal(run.assert_close_to_float64()[1], want[0])


def test_a_weight_that_is_no_number_is_named():
    avals = [bf16(16, 32), ShapeDtypeStruct((16, 2), "int32"), bf16(16, 2)]
    run = ProgramRun(trace(lambda *args: counted(*args, "probs"), *avals))
    run.inputs[1][...] = (0, 3)
    run.assert_close_to_float64()
    run.inputs[2][11, 1] = np.nan
    with pytest.raises(LaunchError, match="11.*1.*(NaN|number)"):
        run()


def test_capacity_without_drops_is_checked():
    """By the kernel too, where the host has not looked at the ids."""
    avals = [bf16(16, 32), ShapeDtypeStruct((16, 2), "int32"), bf16(16, 2), bf16(4, 32, 64), bf16(4, 32, 32)]
    run = ProgramRun(trace(capped(1.5, "error"), *avals))
    run.inputs[1][...] = [(1, 3)] * 11 + [(0, 2)] * 5
    run.assert_close_to_float64()
    image = run.kernel.image.copy()
    unpack_image(image)[1]["routes"]["capacity_factor"] = 1.25
    with pytest.raises(LaunchError, match="11 tokens of rank 0 chose expert 1; its capacity is 10"):
        run.kernel.replace(image=image).run([run.inputs])


@pytest.mark.parametrize("num_routes", [1, 2])
@pytest.mark.parametrize("others", [2, -1])
def test_more_entries_than_are_looked_at_at_once(num_routes, others):
    """A core has more experts than fit in UB; some entries are masked; a second route leaves no space in UB."""
    def through_experts(x, ids, weights, w):
        rows, route = dispatch(x, ids, num_local_experts=3)
        return combine(grouped_matmul(rows, w, route), route, weights)

    def f(x, *rest):
        return [through_experts(x * float(r + 1), *rest) for r in range(num_routes)]
    run = ProgramRun(trace(f, f32(5200, 8), ShapeDtypeStruct((5200, 2), "int32"), f32(5200, 2), f32(3, 8, 8)), rows=512)
    run.inputs[1][...] = [(0, others if i % 9 == 0 else 1) for i in range(5200)]
    run.assert_close_to_float64()


def test_an_id_of_no_expert_is_named_by_the_kernel():
    run = ProgramRun(trace(lambda *args: combine(*dispatch(*args[:2], num_local_experts=3), args[2]),
                           bf16(40, 16), ShapeDtypeStruct((40, 2), "int32"), bf16(40, 2)))
    run.inputs[1][...] = (0, 2)
    run.inputs[1][33, 1] = 3
    with pytest.raises(LaunchError, match="topk_ids of rank 0 names expert 3; there are 3"):
        run()


# --- rows of zeros ---


@pytest.mark.parametrize("alignment, layer, options", [
    (2, Layer(ep=1, T=9, H=48, I=16, E=4, K=2), {"rows": 4}),
    (16, Layer(ep=3, T=17, H=32, I=16, E=6, K=3, num_tokens=(17, 0, 5)), {"signal": "peer"}),
    (5, Layer(ep=2, T=40, H=32, I=16, E=4, K=2, routing="one expert"), {"blocks": 2, "signal": "expert"}),
    (64, Layer(ep=2, T=9, H=32, I=16, E=4, K=1), {"dtype": ms.float32, "rows": 8, "put_cols": 16}),
], ids=str)
def test_groups_of_a_multiple(alignment, layer, options):
    LayerRun(layer, f=aligned(alignment), **options).assert_close_to_float64()


def test_rows_of_zeros_are_zeros_in_any_order(monkeypatch):
    """A sum over all rows to which each of these adds 1; a row is longer than what is cleared at once."""
    program = trace(lambda x, ids: mint.exp(hpmoe.dispatch(x, ids, num_local_experts=3, expert_alignment=7)[0]).sum(0),
                    f32(5, 2064), ShapeDtypeStruct((5, 2), "int32"))
    run = ProgramRun(program)
    run.inputs[1][...] = [[2, 0]] * 4 + [[2, -1]]
    rows = np.concatenate([np.exp(run.inputs[0].astype(np.float64)), np.exp(run.inputs[0][:4].astype(np.float64))])
    for seed in (0, 1000):
        from_seed(monkeypatch, seed)
        np.testing.assert_allclose(run()[0], rows.sum(0) + 5, rtol=1e-5)


# --- tokens sent once, copies of experts ---


def loads_of(layer):
    """Returns the load of each expert under the layer's own ids."""
    return np.bincount(layer.arguments()[1].ravel(), minlength=layer.E)


@pytest.mark.parametrize("layer, options", [
    (Layer(ep=1, T=20, H=32, I=16, E=4, K=3), {}),
    (Layer(ep=2, T=20, H=48, I=32, E=8, K=4), {"blocks": 2, "signal": "expert"}),
    (Layer(ep=3, T=17, H=16, I=16, E=6, K=3, num_tokens=(17, 0, 5)), {"rows": 4, "signal": "peer"}),
    (Layer(ep=2, T=70, H=32, I=16, E=16, K=8), {"rows": 64, "put_cols": 16}),
    (Layer(ep=2, T=9, H=32, I=16, E=4, K=2), {"dtype": ms.float16}),
], ids=str)
def test_tokens_sent_once(layer, options):
    LayerRun(layer, f=hpmoe.send_rows(hpmoe.moe_ffn, scheme="deduplicated"), **options).assert_close_to_float64()


@pytest.mark.parametrize("layer, options", [
    (Layer(ep=2, T=20, H=32, I=16, E=4, K=2, routing="one expert"), {}),
    (Layer(ep=3, T=17, H=48, I=32, E=6, K=1, routing="one expert"), {"blocks": 2, "rows": 4}),
    (Layer(ep=4, T=12, H=160, I=144, E=8, K=2, routing="one rank", num_tokens=(12, 0, 3, 7)),
     {"signal": "expert", "cols": 96}),
    (Layer(ep=2, T=9, H=32, I=16, E=4, K=2, routing="one expert"), {"dtype": ms.float16}),
], ids=str)
def test_copies_of_experts(layer, options):
    run = LayerRun(layer, f=hpmoe.replicate_experts(hpmoe.moe_ffn, loads=loads_of(layer), replicas=2), **options)
    assert any(op.opcode == "REPLICATE" for op in run.fused.lower(run.given[0], run.ids, *run.given[1:]).flow.ops)
    run.assert_close_to_float64()


# --- many choices ---


@pytest.mark.parametrize("dtype, top_k, policy",
                         [("float32", 130, None), ("float32", 300, "probs"), ("bfloat16", 512, None)])
def test_more_choices_than_sums_take_at_once(dtype, top_k, policy):
    """A token's entries are summed in parts if their rows of 16 columns do not fit UB; the last part is shorter."""
    limits = {"capacity_factor": 0.5, "drop_policy": policy} if policy else {}

    def there_and_back(x, ids, weights):
        rows, route = hpmoe.dispatch(x, ids, num_local_experts=top_k, **limits,
                                     **({"topk_weights": weights} if policy else {}))
        return hpmoe.combine(rows * 2.0, route, weights)

    avals = [ShapeDtypeStruct((3, 40), dtype), ShapeDtypeStruct((3, top_k), "int32"), ShapeDtypeStruct((3, top_k), dtype)]
    run, rng = ProgramRun(trace(there_and_back, *avals), rows=16, cols=40), np.random.default_rng(0)
    run.inputs[1][...] = [rng.permutation(top_k) for _ in range(3)]
    run.assert_close_to_float64()
