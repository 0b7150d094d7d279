"""The layer in PyTorch with a process for each rank: gloo's all_to_all_single, and a product for each expert."""

import os
import time

import torch  # pyright: ignore[reportMissingImports]  an extra
import torch.distributed as dist  # pyright: ignore[reportMissingImports]


class Exchange(torch.autograd.Function):
    """Rows to other ranks; their gradients come back the same way. `seconds`: how long all exchanges took."""

    seconds = 0.0

    @staticmethod
    def forward(ctx, rows, send, receive):
        ctx.counts = send, receive
        return exchanged(rows, send, receive)

    @staticmethod
    def backward(ctx, d_rows):
        send, receive = ctx.counts
        return exchanged(d_rows, receive, send), None, None


def exchanged(rows, send, receive):
    began = time.perf_counter()
    out = rows.new_empty(sum(receive), *rows.shape[1:])
    bits = {torch.bfloat16: torch.uint8}.get(rows.dtype, rows.dtype)  # gloo takes no bfloat16
    dist.all_to_all_single(out.view(bits), rows.contiguous().view(bits), receive, send)
    Exchange.seconds += time.perf_counter() - began
    return out


def layer(problem, rank, size, meeting):
    """The passes of a rank, as of pytorch_loop. problem: the arrays of this rank; meeting: a file that all ranks see."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)

    def tensor(array, grad=True):
        return torch.from_numpy(array.copy()).to(getattr(torch, problem["dtype"])).requires_grad_(grad)

    x, weights = tensor(problem["x"]), tensor(problem["weights"])
    gate_up, down = ([tensor(w) for w in problem[name]] for name in ("gate_up", "down"))
    ids, cotangent = torch.from_numpy(problem["ids"]).long(), tensor(problem["cotangent"], grad=False)
    num_local, top_k = len(gate_up), ids.shape[1]

    def moe_ffn(x, weights, gate_up, down):
        order = ids.reshape(-1).argsort(stable=True)
        counts = torch.bincount(ids.reshape(-1), minlength=num_local * size)
        theirs = exchanged(counts, [num_local] * size, [num_local] * size).reshape(size, num_local)
        send, receive = counts.reshape(size, num_local).sum(1).tolist(), theirs.sum(1).tolist()
        rows = Exchange.apply(x[order // top_k], send, receive)
        expert = torch.arange(num_local).repeat(size).repeat_interleave(theirs.reshape(-1))
        by_expert = expert.argsort(stable=True)
        parts = []
        for e, mine in enumerate(rows[by_expert].split(theirs.sum(0).tolist())):
            gate, up = (mine @ gate_up[e]).chunk(2, -1)
            parts.append(torch.nn.functional.silu(gate) * up @ down[e])
        made = torch.cat(parts)[by_expert.argsort()]
        back = Exchange.apply(made, receive, send) * weights.reshape(-1, 1)[order]
        return torch.zeros_like(x).index_add(0, order // top_k, back)

    def forward():
        with torch.no_grad():
            return [moe_ffn(x, weights, gate_up, down)]

    def forward_backward():
        out = moe_ffn(x, weights, gate_up, down)
        grads = torch.autograd.grad(out, [x, weights, *gate_up, *down], cotangent, materialize_grads=True)
        return [out, *grads[:2], torch.stack(grads[2:2 + num_local]), torch.stack(grads[2 + num_local:])]

    return {"forward": forward, "forward + backward": forward_backward}, lambda t: t.detach().float().numpy()
