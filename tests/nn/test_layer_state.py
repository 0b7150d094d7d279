"""A layer's Parameters hold all state that decides its output: compiled graphs, checkpoints and restarts follow them.

Expected is the layer in float64 of its weights with experts in order, wherever they lie.
"""

import copy

import layer_oracle
import mindspore as ms
import numpy as np
import pytest

import hpmoe

SIZES = {"hidden_size": 6, "moe_ffn_hidden_size": 5, "num_moe_experts": 8, "moe_router_topk": 2, "init_method_std": 1.0}
MESH = hpmoe.Mesh(2)
LOADS = [9.0, 8, 7, 6, 1, 1, 1, 1]  # which two ranks of experts in order do not balance


def make_layer(seed=0, **options):
    ms.set_seed(seed)
    return hpmoe.nn.MoELayer(**{**SIZES, **options})


def make_moved(seed=0, **options):
    layer = make_layer(seed, mesh=MESH)
    move(layer, ms.nn.Adam(layer.trainable_params(), 0.05), **options)
    return layer


def move(layer, optimizer, **options):
    """Has a layer move experts, which keep their weights."""
    before, places = float64(layer), layer.experts.places.asnumpy().copy()
    layer.balance(every=1, **options)
    layer.counted_tokens.copy_(ms.Tensor([np.array(LOADS)[places]] * 2, ms.int64))
    assert layer.rebalance(optimizer).moved and (layer.experts.places.asnumpy() != places).any()
    assert all(np.array_equal(array, before[name]) for name, array in float64(layer).items() if name.startswith("experts.w"))


def tokens(seed=0):
    return np.random.default_rng(seed).standard_normal((2, 12, 6)).astype(np.float32)


def float64(layer):
    """The Parameters in float64, experts in order."""
    p = {name: v.astype(ms.float32).asnumpy().astype(np.float64) for name, v in layer.parameters_and_names()}
    at = layer.experts.places.asnumpy()
    return {name: v[at] if name.startswith("experts.weight") else v for name, v in p.items()}


def right_output(x, p, masked=()):
    """The output of tokens, in float64; that of masked experts is the output of a layer without these."""
    kept = [e for e in range(8) if e not in masked]
    of_experts = ("experts.weight1", "experts.weight2", "router.weight")
    out, *_ = layer_oracle.layer(x.reshape(-1, 6).astype(np.float64), {name: p[name][kept] for name in of_experts}, k=2,
                                 score="softmax", normalize=True)
    return out.reshape(x.shape)


def assert_computes(function, p, masked=(), seed=5):
    """The function computes what a layer of these Parameters must."""
    x = tokens(seed)
    np.testing.assert_allclose(function(ms.Tensor(x)).asnumpy(), right_output(x, p, masked), rtol=1e-4, atol=1e-4)


@pytest.fixture(params=["jit", "graph mode"])
def compiled(request):
    """From a layer to a function that is compiled when it is first called."""
    def make(layer):
        def call(x):
            return layer(x)
        graph = ms.jit(call)

        def run(x):
            if request.param == "jit":
                return graph(x)
            ms.set_context(mode=ms.GRAPH_MODE)
            try:
                return layer(x)
            finally:
                ms.set_context(mode=ms.PYNATIVE_MODE)
        return run
    return make


JIT = pytest.mark.parametrize("compiled", ["jit"], indirect=True)


def test_a_graph_gives_the_same_bits_after_a_move():
    layer = hpmoe.nn.MoELayer(hidden_size=4, moe_ffn_hidden_size=4, num_moe_experts=4, moe_router_topk=1,
                              norm_topk_prob=False, init_method_std=1.0, mesh=MESH)
    layer.router.weight.set_data(ms.Tensor(np.eye(4) * 4, ms.float32))
    x = ms.Tensor(np.eye(4)[[0, 0, 0, 1, 1, 1, 2, 3]], ms.float32)
    optimizer = ms.nn.SGD(layer.trainable_params(), 0.0)
    layer.balance(every=1)

    def call(x):
        return layer(x)
    graph = ms.jit(call)
    right = graph(x).asnumpy()
    layer.set_train()
    layer(x)
    assert layer.rebalance(optimizer).moved
    assert np.array_equal(graph(x).asnumpy(), right)


@JIT
def test_a_compiled_graph_follows_moves_and_masks(compiled):
    """Two moves: without replicas, then with them."""
    layer = make_layer(mesh=MESH)
    p, graph, optimizer = float64(layer), compiled(layer), ms.nn.Adam(layer.trainable_params(), 0.05)
    assert_computes(graph, p)
    for replicas in (0, 1):
        move(layer, optimizer, replicas=replicas)
        for masked in ([], [1, 6], [0], []):
            layer.mask_experts(masked)
            assert_computes(graph, p, masked)
            assert_computes(layer, p, masked)


@JIT
def test_a_graph_on_one_rank_follows_masks(compiled):
    layer = make_layer()
    graph = compiled(layer)
    for masked in ([], [1, 6], [0], []):
        layer.mask_experts(masked)
        assert_computes(graph, float64(layer), masked)


def through_checkpoint(layer, other, folder):
    ms.save_checkpoint(layer, str(folder / "layer.ckpt"))
    ms.load_param_into_net(other, ms.load_checkpoint(str(folder / "layer.ckpt")))


def through_state_dict(layer, other, folder):
    other.load_state_dict({name: ms.Tensor(p.asnumpy().copy()) for name, p in layer.state_dict().items()})


def through_shards(layer, other, folder):
    hpmoe.nn.save_shards(folder, layer)
    assert hpmoe.nn.load_shards(folder, other) == []


def through_hugging_face(layer, other, folder):
    hpmoe.nn.save_hugging_face(layer, folder, model_type="qwen3_moe")
    hpmoe.nn.load_hugging_face(other, folder)


WAYS = [through_checkpoint, through_state_dict, through_shards, through_hugging_face]
LAYERS = {"in order": lambda: make_layer(1, mesh=MESH), "moved": lambda: make_moved(1), "one rank": lambda: make_layer(1),
          "moved, copies": lambda: make_moved(1, replicas=1)}


@pytest.mark.parametrize("way, source, other", [
    *((way, "moved", "moved") for way in WAYS), (through_checkpoint, "moved", "in order"),
    (through_state_dict, "in order", "moved"), (through_shards, "moved", "moved, copies"),
    (through_shards, "in order", "moved"), (through_shards, "moved", "in order"),
    (through_hugging_face, "moved", "one rank")])
def test_a_layer_is_what_was_saved(way, source, other, tmp_path):
    layer = make_moved(0) if source == "moved" else make_layer(0, mesh=MESH)
    loaded, p = LAYERS[other](), float64(layer)
    way(layer, loaded, tmp_path)
    assert_computes(loaded, p)
    assert all(np.array_equal(array, p[name]) for name, array in float64(loaded).items() if "weight" in name)
    if loaded.mesh is not None:
        move(loaded, ms.nn.Adam(loaded.trainable_params(), 0.05))  # from where experts lie now
        assert_computes(loaded, p)


def test_shards_have_experts_in_order(tmp_path):
    """The permutation of experts is not its own inverse, unlike the one of `move`."""
    layer, other = make_layer(0, mesh=MESH), make_layer(1, mesh=MESH)
    layer.experts.places.set_data(ms.Tensor([2, 0, 1, 3, 4, 5, 6, 7], ms.int32))
    through_shards(layer, other, tmp_path)
    assert_computes(other, float64(layer))


@pytest.mark.parametrize("compiled, way", [("jit", through_shards), ("graph mode", through_hugging_face)],
                         indirect=["compiled"])
def test_compiled_graphs_follow_what_is_loaded(compiled, way, tmp_path):
    layer, other = make_moved(0), make_layer(1, mesh=MESH)
    move(other, ms.nn.Adam(other.trainable_params(), 0.05))
    graph = compiled(other)
    assert_computes(graph, float64(other))
    way(layer, other, tmp_path)
    assert_computes(graph, float64(layer))


@pytest.mark.parametrize("way", [through_checkpoint, through_state_dict, through_shards])
def test_masks_are_saved(way, tmp_path):
    layer, other = make_layer(0), make_moved(1)
    layer.mask_experts([2, 3])
    way(layer, other, tmp_path)
    assert_computes(other, float64(layer), [2, 3])


def test_shards_without_a_mask_mask_nothing(tmp_path, monkeypatch):
    layer, other = make_layer(0), make_layer(1)
    saved = hpmoe.nn.sharded_checkpoints.States.arrays
    monkeypatch.setattr(hpmoe.nn.sharded_checkpoints.States, "arrays",
                        lambda self: {name: array for name, array in saved(self).items() if "masked" not in name})
    other.mask_experts([0])
    through_shards(layer, other, tmp_path)
    assert_computes(other, float64(layer))


def without_places(layer):
    return {name: ms.Parameter(p.asnumpy().copy(), name=name) for name, p in layer.parameters_and_names()
            if name != "experts.places"}


@pytest.mark.parametrize("compiled, load", [
    ("jit", ms.load_param_into_net), ("graph mode", lambda net, state: net.load_state_dict(state, strict=False))],
    indirect=["compiled"], ids=["load_param_into_net", "load_state_dict"])
def test_without_places_experts_are_in_order_or_refused(load, compiled):
    layer, moved, fresh = make_layer(0), make_moved(1), make_layer(2, mesh=MESH)
    if load is ms.load_param_into_net:
        moved, fresh = copy.deepcopy(moved), copy.deepcopy(fresh)
    load(fresh, without_places(layer))
    assert_computes(fresh, float64(layer))
    load(moved, without_places(layer))
    moved.counted_tokens.copy_(ms.Tensor([LOADS] * 2, ms.int64))
    for use in (moved, compiled(moved), lambda x: moved.rebalance(ms.nn.Adam(moved.trainable_params()))):
        with pytest.raises((hpmoe.ArgumentError, RuntimeError), match="set after the weights|once, where an expert lies"):
            use(ms.Tensor(tokens()))
    moved.experts.places.set_data(ms.Tensor(list(range(8)), ms.int32))
    assert_computes(moved, float64(layer))


def test_a_graph_compiled_before_refuses_unknown_places():
    layer, moved = make_layer(0), make_moved(1)
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        moved(ms.Tensor(tokens()))
        ms.load_param_into_net(moved, without_places(layer))
        with pytest.raises((hpmoe.ArgumentError, RuntimeError), match="range"):
            moved(ms.Tensor(tokens()))
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


OPTIONS = {
    "groups and bias": {"moe_router_score_function": "sigmoid", "moe_router_num_groups": 2, "moe_router_group_topk": 1,
                        "moe_router_enable_expert_bias": True, "moe_shared_expert_intermediate_size": 4},
    "biases": {"add_bias_linear": True}, "bfloat16": {"dtype": ms.bfloat16},
    "capacity": {"moe_expert_capacity_factor": 1.0},
    "shards": {"mesh": hpmoe.Mesh(2, tp=2), "moe_ffn_hidden_size": 6},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_moves_along(name, tmp_path):
    options = {"mesh": MESH, **OPTIONS[name]}
    layer, x = make_layer(0, **options), ms.Tensor(tokens()).astype(options.get("dtype", ms.float32))
    for p in layer.get_parameters():
        if "bias" in p.name:
            p.set_data(ms.Tensor(np.random.default_rng(1).standard_normal(p.shape), p.dtype))

    def call(x):
        return layer(x)

    def bits(f):
        return f(x).astype(ms.float32).asnumpy().tobytes()
    graph, right = ms.jit(call) if name == "shards" else call, bits(layer)
    assert bits(graph) == right
    move(layer, ms.nn.SGD(layer.trainable_params(), 0.1))
    assert bits(graph) == bits(layer) == right
    other = make_layer(1, **options)
    through_checkpoint(layer, other, tmp_path)
    assert bits(other) == right


def test_experts_alone_keep_their_places():
    """GroupedMLP of another layer's Parameters."""
    layer, x = make_moved(), tokens(5)
    experts = hpmoe.nn.GroupedMLP(hidden_size=6, moe_ffn_hidden_size=5, num_moe_experts=8)
    ms.load_param_into_net(experts, {p.name.removeprefix("experts."): ms.Parameter(p.asnumpy(), name="p")
                                     for p in layer.experts.get_parameters()})
    ids, weights = layer.router(ms.Tensor(x))
    assert_computes(lambda x: experts(x, weights, ids), float64(layer))


def train(layer, optimizer, steps):
    """Losses of some steps, after each of which experts may move."""
    losses = []
    for step in steps:
        x, target = ms.Tensor(tokens(step)), ms.Tensor(tokens(100 + step))
        before = float64(layer)

        def loss(x, target):
            return ((layer(x) - target) ** 2).mean()
        value, grads = ms.value_and_grad(loss, None, layer.trainable_params())(x, target)
        right = ((right_output(x.asnumpy(), before) - target.asnumpy()) ** 2).mean()
        np.testing.assert_allclose(float(value), right, rtol=1e-4)
        optimizer(grads)
        if layer.balancer is not None:
            layer.rebalance(optimizer)
        losses.append(float(value))
    return losses


def adafactor(params):
    return ms.nn.AdaFactor(params, learning_rate=0.02, scale_parameter=False, relative_step=False)


def restart_from_shards(folder, layer, optimizer, again, optimizer_again):
    """Loads into a layer whose experts were moved to other places."""
    move(again, optimizer_again, replicas=1)
    hpmoe.nn.save_shards(folder, layer, optimizer=optimizer)
    assert hpmoe.nn.load_shards(folder, again, optimizer=optimizer_again) == []


def restart_from_checkpoints(folder, layer, optimizer, again, optimizer_again):
    """Loads the optimizer first, whose states do not know the places of experts yet."""
    for name, saved, net in (("optimizer", optimizer, optimizer_again), ("layer", layer, again)):
        ms.save_checkpoint(saved, str(folder / f"{name}.ckpt"))
        ms.load_param_into_net(net, ms.load_checkpoint(str(folder / f"{name}.ckpt")))


@pytest.mark.parametrize("make, restart", [
    (lambda p: ms.nn.Adam(p, 0.02), restart_from_shards), (adafactor, restart_from_checkpoints)], ids=["Adam", "AdaFactor"])
def test_a_restart_is_an_uninterrupted_run(make, restart, tmp_path):
    def begin(seed, balanced=True):
        layer = make_layer(seed, mesh=MESH)
        layer.router.weight.set_data(layer.router.weight + ms.Tensor(np.linspace(1, 0, 8)[:, None], ms.float32))
        if balanced:
            layer.balance(every=2, min_gain=0.02)
        return layer, make(layer.trainable_params())
    stayed, optimizer = begin(0, balanced=False)
    expected = train(stayed, optimizer, range(8))
    layer, optimizer = begin(0)
    losses = train(layer, optimizer, range(4))
    assert layer.balancer.moves
    again, optimizer_again = begin(1)
    restart(tmp_path, layer, optimizer, again, optimizer_again)
    again.balance(every=2, min_gain=0.02)
    losses += train(again, optimizer_again, range(4, 8))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for name, array in float64(again).items():
        if name not in ("experts.places", "tokens_per_expert", "counted_tokens"):
            np.testing.assert_allclose(array, float64(stayed)[name], rtol=1e-4, atol=1e-5, err_msg=name)
