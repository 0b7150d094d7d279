"""The layer in PyTorch, eager and compiled: a loop over experts, whose matrices are leaves of their own."""

import torch  # pyright: ignore[reportMissingImports]  an extra


def eager(problem):
    return layer(problem, lambda f: f)


def compiled(problem):
    return layer(problem, lambda f: torch.compile(f, fullgraph=True, dynamic=False))


def layer(problem, transform):
    """The passes of the layer under `transform`, and how its results become NumPy arrays."""
    def tensor(array, grad=True):
        return torch.from_numpy(array).to(getattr(torch, problem.dtype)).requires_grad_(grad)

    counts, rows, order = problem.counts, torch.from_numpy(problem.rows).long(), torch.from_numpy(problem.order).long()
    cotangent = tensor(problem.array("cotangent"), grad=False)
    x, weights = tensor(problem.array("hidden_states")), tensor(problem.array("topk_weights"))
    gate_up, down = ([tensor(w.copy()) for w in problem.array(name)] for name in ("gate_up_weight", "down_weight"))

    def moe_ffn(x, weights, gate_up, down):
        received, scales = x[rows].split(counts), weights.reshape(-1, 1)[order].split(counts)
        out = torch.zeros_like(x)
        for e, tokens in enumerate(rows.split(counts)):
            if counts[e]:
                gate, up = (received[e] @ gate_up[e]).chunk(2, -1)
                out.index_add_(0, tokens, torch.nn.functional.silu(gate) * up @ down[e] * scales[e])
        return out

    f = transform(moe_ffn)

    def forward():
        with torch.no_grad():
            return [f(x, weights, gate_up, down)]

    def forward_backward():
        out = f(x, weights, gate_up, down)
        grads = torch.autograd.grad(out, [x, weights, *gate_up, *down], cotangent, materialize_grads=True)
        return [out, *grads[:2], grads[2:2 + len(down)], grads[2 + len(down):]]

    return {"forward": forward, "forward + backward": forward_backward}, lambda t: t.detach().float().numpy()
