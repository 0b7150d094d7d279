"""A whole layer in NumPy and float64, one token at a time, and what its gradients must be along random directions."""

import mindspore as ms
import numpy as np
import router_oracle

SCORES = {"sqrtsoftplus": "sqrt_softplus"}


def swiglu(x):
    gate, up = np.split(x, 2, -1)
    return gate / (1 + np.exp(-gate)) * up


def clamped_swiglu(x, limit=1.5):
    gate, up = np.split(x, 2, -1)
    return swiglu(np.concatenate([np.minimum(gate, limit), np.clip(up, -limit, limit)], -1))


def gpt_oss_swiglu(x):
    gate, up = np.split(x, 2, -1)
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    return (up + 1) * gate / (1 + np.exp(-1.702 * gate))


def squared_relu(x):
    return np.maximum(x, 0) ** 2


def shared_expert(x, p, activation, gated):
    """Rows of gate and up alternate in linear_fc1."""
    hidden = x @ p["shared_experts.linear_fc1.weight"].T + p.get("shared_experts.linear_fc1.bias", 0)
    hidden = activation(np.concatenate([hidden[0::2], hidden[1::2]]) if gated else hidden)
    out = hidden @ p["shared_experts.linear_fc2.weight"].T + p.get("shared_experts.linear_fc2.bias", 0)
    if "shared_experts.shared_experts_gate.weight" in p:
        out = out / (1 + np.exp(-x @ p["shared_experts.shared_experts_gate.weight"][0]))
    return out


def layer(x, p, activation=swiglu, gated=True, on_input=False, kept=None, replay=None, **routing):
    """(output [T, H], logits [T, E], ids [T, K]) of tokens [T, H] and parameters by name; `replay` is (record, unset)."""
    logits = x @ p["router.weight"].T + p.get("router.bias", 0)
    ids, weights = router_oracle.route(logits, bias=p.get("expert_bias"), **routing)
    if replay is not None:
        ids = router_oracle.replay(ids, *replay)
        of_weights = {name: v for name, v in routing.items() if name in ("score", "normalize", "scale")}
        weights = router_oracle.weigh(logits, ids, **of_weights)
    out = np.zeros_like(x)
    for t, k in np.ndindex(ids.shape):
        e, w = ids[t, k], weights[t, k]
        if e < 0 or (kept is not None and not kept[t, k]):
            continue
        hidden = activation((w if on_input else 1) * x[t] @ p["experts.weight1"][e]
                            + (p["experts.bias1"][e] if "experts.bias1" in p else 0))
        made = hidden @ p["experts.weight2"][e] + (p["experts.bias2"][e] if "experts.bias2" in p else 0)
        out[t] += made if on_input else w * made
    if "shared_experts.linear_fc1.weight" in p:
        out += np.stack([shared_expert(row, p, activation, gated) for row in x])
    return out, logits, ids


def along(f, params, name, direction, step=1e-6):
    """The derivative of a scalar function of parameters by name, along a direction of one of them."""
    def at(sign):
        return f({**params, name: params[name] + sign * step * direction})
    return (at(1) - at(-1)) / (2 * step)


def draw_parameters(layer):
    """Sets every parameter of a layer to random numbers, biases too; returns the layer."""
    rng = np.random.default_rng(0)
    for p in layer.get_parameters():
        if p.dtype == ms.float32:  # the mask and the places of experts stay
            p.set_data(ms.Tensor(rng.standard_normal(p.shape) / 2, ms.float32))
    return layer


def float64_of(layer):
    """Parameters of a layer by name."""
    return {p.name: p.asnumpy().astype(np.float64) for p in layer.get_parameters()}


def assert_gradients(value, gradients, objective, params):
    """Compares the value of an objective, and each gradient by name along a random direction with differences in float64."""
    rng = np.random.default_rng(2)
    np.testing.assert_allclose(value, objective(params), rtol=1e-5)
    for name, gradient in gradients.items():
        direction = rng.standard_normal(gradient.shape)
        want = along(objective, params, name, direction)
        assert abs((gradient * direction).sum() - want) <= 3e-5 * max(1.0, np.linalg.norm(gradient)), name
        assert np.abs(gradient).max() > 0, name
