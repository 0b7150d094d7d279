"""Cells as MindSpore users treat them: graphs, recomputation, frozen parameters, checkpoints, Model.train, copies."""

import copy

import mindspore as ms
import numpy as np
import pytest
from helpers import assert_close, bitwise_equal
from mindspore import amp, nn

import hpmoe
from hpmoe import router
from hpmoe.nn import GroupedMLP, MoELayer, TopKRouter

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")
OPTIONS = {"moe_router_enable_expert_bias": True, "moe_aux_loss_coeff": 0.1, "moe_shared_expert_intermediate_size": 6,
           "init_method_std": 0.4}
NAMES = ["counted_tokens", "expert_bias", "experts.places", "experts.weight1", "experts.weight2", "router.masked",
         "router.weight", "shared_experts.linear_fc1.weight", "shared_experts.linear_fc2.weight", "tokens_per_expert"]
TWO_RANKS = {"mesh": hpmoe.Mesh(2)}


def make_layer(**options):
    ms.set_seed(3)
    return MoELayer(hidden_size=8, moe_ffn_hidden_size=5, num_moe_experts=4, **{**OPTIONS, **options})


class Network(nn.Cell):
    """The loss of a layer, as Model.train takes it."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def construct(self, x, target):
        out, loss = self.layer(x, with_losses=True)
        return ((out - target) ** 2).mean() + loss


def batch():
    rng = np.random.default_rng(4)
    return [ms.Tensor(rng.standard_normal((2, 6, 8)), ms.float32) for _ in range(2)]


def run(network, wrap=lambda f: f):
    """The loss, the gradients of all trained parameters and the counts, as arrays."""
    value, grads = wrap(ms.value_and_grad(network, None, network.trainable_params()))(*batch())
    return [x.asnumpy() for x in (value, *grads, network.layer.tokens_per_expert)]


QUANTISED = {name: {"transforms": hpmoe.chain(*first, hpmoe.tile_partition, hpmoe.assign_queues, hpmoe.fuse_persistent)}
             for name, first in {"int8": (hpmoe.quantize_rows, hpmoe.quantize_weights(row_dtype="int8")),
                                 "mxfp8": (hpmoe.quantize_weights(dtype="mxfp8"),)}.items()}


@pytest.mark.parametrize("mode, options", [
    (ms.PYNATIVE_MODE, TWO_RANKS),
    *(pytest.param(ms.GRAPH_MODE, options, marks=pytest.mark.slow) for options in QUANTISED.values())],
    ids=["jit on two ranks", *(f"GRAPH_MODE, {name} weights" for name in QUANTISED)])
def test_graphs_compute_what_pynative_does(mode, options):
    want = run(Network(make_layer(**options)))
    ms.set_context(mode=mode)
    wrap = ms.jit if mode == ms.PYNATIVE_MODE else lambda f: f
    assert bitwise_equal(run(Network(make_layer(**options)), wrap), want)


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, pytest.param(ms.GRAPH_MODE, marks=pytest.mark.slow)])
def test_recomputed_gradients_and_counts_are_the_same(mode):
    want = run(Network(make_layer()))
    ms.set_context(mode=mode)
    network = Network(make_layer())
    network.layer.recompute()
    assert bitwise_equal(run(network), want)


def tasks_of_backward(network, wrap):
    found, launches = hpmoe.measure(run, network, wrap)
    (backward,) = [launch.flow for launch in launches if launch.flow.name.endswith("_vjp")]
    return found, backward.num_tasks


@pytest.mark.parametrize("wrap, options", [
    (lambda f: f, {}), pytest.param(ms.jit, TWO_RANKS, marks=pytest.mark.slow)], ids=["pynative", "jit on two ranks"])
def test_frozen_parameters_cost_no_work(wrap, options):
    everything, all_tasks = tasks_of_backward(Network(make_layer(**options)), wrap)
    network = Network(make_layer(**options))
    for p in (network.layer.experts.weight1, network.layer.shared_experts.linear_fc1.weight):
        p.requires_grad = False
    found, tasks = tasks_of_backward(network, wrap)
    assert tasks < all_tasks - 1
    names = [p.name.removeprefix("layer.") for p in Network(make_layer()).trainable_params()]
    kept = [i for i, n in enumerate(names) if n not in ("experts.weight1", "shared_experts.linear_fc1.weight")]
    assert bitwise_equal(found, [everything[0], *(everything[1 + i] for i in kept), everything[-1]])


def test_a_checkpoint_has_mindformers_names_and_loads_again(tmp_path):
    layer = make_layer().set_train()
    layer(batch()[0])
    layer.update_expert_bias()
    ms.save_checkpoint(layer, str(tmp_path / "layer.ckpt"))
    saved = ms.load_checkpoint(str(tmp_path / "layer.ckpt"))
    assert sorted(saved) == NAMES
    other = make_layer(init_method_std=0.1, **TWO_RANKS)
    assert ms.load_param_into_net(other, saved, strict_load=True) == ([], [])
    assert bitwise_equal([p.asnumpy() for p in other.get_parameters()], [p.asnumpy() for p in layer.get_parameters()])
    assert (other.expert_bias.asnumpy() != 0).any()


class Balance(ms.train.Callback):
    """Balances the experts of a layer after each step, and notes losses."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.losses = layer, []

    def on_train_step_end(self, run_context):
        self.layer.update_expert_bias()
        self.losses.append(run_context.original_args().net_outputs.asnumpy())


def train(mode):
    ms.set_context(mode=mode)
    network = Network(make_layer())
    balance = Balance(network.layer)
    data = ms.dataset.NumpySlicesDataset(tuple([b.asnumpy()] * 3 for b in batch()), ["x", "target"], shuffle=False)
    model = ms.train.Model(network, optimizer=nn.Adam(network.trainable_params(), 0.02))
    model.train(1, data, callbacks=[balance], dataset_sink_mode=False)
    return [*balance.losses, *(p.asnumpy() for p in network.get_parameters())]


def test_model_train_equals_a_loop_by_hand_in_both_modes():
    found = train(ms.PYNATIVE_MODE)
    assert found[0] > found[1] > found[2]
    assert bitwise_equal(train(ms.GRAPH_MODE), found)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    network, losses = Network(make_layer()), []
    optimizer = nn.Adam(network.trainable_params(), 0.02)
    for _ in range(3):
        value, grads = ms.value_and_grad(network, None, optimizer.parameters)(*batch())
        optimizer(grads)
        network.layer.update_expert_bias()
        losses.append(value.asnumpy())
    assert_close([*losses, *(p.asnumpy() for p in network.get_parameters())], found)


def test_the_bias_follows_counts_and_affects_only_the_choice():
    layer, (x, _) = make_layer(moe_router_bias_update_rate=0.5).set_train(), batch()
    layer(x)
    want = router.update_bias(layer.expert_bias, layer.tokens_per_expert.astype(ms.int32), rate=0.5).asnumpy()
    layer.update_expert_bias()
    np.testing.assert_array_equal(layer.expert_bias.asnumpy(), want)
    layer.update_expert_bias(ms.Tensor([3, 1, 2, 2], ms.int32))
    np.testing.assert_array_equal(layer.expert_bias.asnumpy() - want, [-0.5, 0.5, 0, 0])
    layer.expert_bias.set_data(ms.Tensor([9.0, 9.0, -9.0, -9.0]))
    layer(x)
    assert layer.tokens_per_expert.asnumpy().tolist() == [12, 12, 0, 0]


@pytest.mark.parametrize("level", ["O2", "O3", "auto"])
def test_mixed_precision_keeps_float32_gradients(level):
    want = run(Network(make_layer()))
    network = amp.auto_mixed_precision(Network(make_layer()), level, ms.float16)
    value, grads = ms.value_and_grad(network, None, network.trainable_params())(*batch())
    for got, exact in zip((value, *grads), want, strict=False):
        assert got.dtype == ms.float32
        np.testing.assert_allclose(got.asnumpy(), exact, atol=0.02 * np.abs(exact).max())


class Linear(nn.Cell):
    """A staged function behind a layer that level O1 rounds."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(8, 8)
        self.double = hpmoe.fuse_persistent(hpmoe.assign_queues(hpmoe.tile_partition(lambda x: x + x)))

    def construct(self, x):
        hidden = self.dense(x)
        return self.double(hidden)


def test_level_o1_takes_staged_functions_as_they_are():
    x, network = batch()[0][0], Linear()
    want = network(x).asnumpy()
    rounded = amp.auto_mixed_precision(network, "O1", ms.float16)
    assert rounded.double is network.double
    difference = np.abs(rounded(x).asnumpy() - want).max()
    assert 0 < difference < 0.01 * np.abs(want).max()


@pytest.mark.slow
def test_bfloat16_in_graphs():
    """Whose reshapes CPUs lack there: hidden states, outputs and weights."""
    x = batch()[0].astype(ms.bfloat16)

    def found(wrap):
        layer = make_layer(dtype=ms.bfloat16, **TWO_RANKS)
        weights = layer.trainable_params()

        def total(x):
            return layer(x).astype(ms.float32).sum()
        out, grads = wrap(ms.value_and_grad(total, 0, weights))(x)
        return [y.astype(ms.float32).asnumpy() for y in (out, grads[0], *grads[1])]
    assert bitwise_equal(found(ms.jit), found(lambda f: f))


def test_a_copy_is_a_layer_of_its_own():
    layer, (x, _) = make_layer(), batch()
    out = layer(x).asnumpy()
    other = copy.deepcopy(layer)
    other.experts.weight1.set_data(2 * other.experts.weight1)
    other.experts.weight2.requires_grad = False
    assert bitwise_equal([layer(x).asnumpy()], [out]) and (other(x).asnumpy() != out).any()
    frozen = {"expert_bias", "tokens_per_expert", "counted_tokens", "router_masked", "experts_places"}
    assert other.compute.frozen_arguments() == {*frozen, "experts_weight2"}
    assert layer.compute.frozen_arguments() == frozen


def test_router_and_experts_alone_are_the_layer():
    layer, (x, _) = make_layer(moe_shared_expert_intermediate_size=None), batch()
    choose = TopKRouter(hidden_size=8, num_moe_experts=4)
    experts = GroupedMLP(hidden_size=8, moe_ffn_hidden_size=5, num_moe_experts=4, **TWO_RANKS)
    choose.weight.set_data(layer.router.weight)
    for name in ("weight1", "weight2"):
        getattr(experts, name).set_data(getattr(layer.experts, name))
    ids, weights = choose(x)
    assert ids.shape == weights.shape == (2, 6, 2) and ids.dtype == ms.int32
    assert_close([experts(x, weights, ids).asnumpy(), ms.jit(experts)(x, weights, ids).asnumpy()], [layer(x).asnumpy()] * 2)
    ids = ids.asnumpy()
    ids[0] = -1
    out = experts(x, weights, ms.Tensor(ids)).asnumpy()
    assert (out[0] == 0).all() and (out[1] != 0).any()


def test_ranks_of_fewer_tokens():
    """Padding of any value is zero in the output and not counted; real tokens are as without it."""
    layer, x = make_layer(**TWO_RANKS), batch()[0].asnumpy()
    want = layer(ms.Tensor(x)).asnumpy()
    x[0, 4:], x[1, 1:] = 1e3, -1e3
    weights = layer.trainable_params()

    def objective(x):
        out, losses = layer(x, with_losses=True, num_tokens=(4, 1))
        return (out ** 2).sum() + losses, out
    (_, out), (dx, grads) = ms.value_and_grad(objective, 0, weights, has_aux=True)(ms.Tensor(x))
    assert layer.tokens_per_expert.asnumpy().sum() == 5 * 2
    real = np.zeros(x.shape[:2], bool)
    real[0, :4] = real[1, :1] = True
    assert_close([out.asnumpy()[real]], [want[real]])
    assert (out.asnumpy()[~real] == 0).all() and (dx.asnumpy()[~real] == 0).all() and (dx.asnumpy()[real] != 0).all()
    x[~real] = 7
    (_, _), (_, again) = ms.value_and_grad(objective, 0, weights, has_aux=True)(ms.Tensor(x))
    assert bitwise_equal([g.asnumpy() for g in grads], [g.asnumpy() for g in again])


def test_the_program_says_names_of_parameters():
    layer = make_layer()
    x = batch()[0].reshape(-1, 8)
    stages = layer.compute.lower(x, layer.router.tensors(), layer.expert_bias, layer.experts.tensors(),
                                 layer.shared_experts.tensors(), 1, None, None)
    names = stages.program.input_names
    assert names[:3] == ("hidden_states", "router_masked", "router_weight")
    assert names[3:7] == ("expert_bias", "experts_places", "experts_weight1", "experts_weight2")


@pytest.mark.parametrize("shape, kind, options", [
    ((0, 5), "aux_loss", {}), ((2, 0), "seq_aux_loss", TWO_RANKS), ((0, 0), "global_aux_loss", TWO_RANKS),
    ((2, 3, 0), "seq_aux_loss", {}), ((0,), "aux_loss", TWO_RANKS)])
def test_losses_of_no_tokens_are_zero(shape, kind, options):
    layer = make_layer(moe_router_load_balancing_type=kind, moe_aux_loss_coeff=0.1, moe_z_loss_coeff=0.1, **options)
    x = ms.mint.zeros((*shape, layer.router.hidden_size))

    def objective(x):
        out, loss = layer(x, with_losses=True)
        return loss, out
    (loss, out), (dx, grads) = ms.value_and_grad(objective, 0, layer.trainable_params(), has_aux=True)(x)
    assert float(loss) == 0 and out.shape == dx.shape == x.shape
    assert not any(g.asnumpy().any() for g in grads)
