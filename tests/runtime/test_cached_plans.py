"""Plans kept from one process to the next: found for the same function alone, proved when read, and never in the way."""

import os
import pickle
import re
import subprocess
import sys
import textwrap
import warnings

import mindspore as ms
import numpy as np
import pytest
from helpers import Layer, tensors
from mutants import with_deps

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct
from hpmoe.ir.taskflow_bytes import read_taskflow, taskflow_bytes
from hpmoe.rewriting import map_equations, primitives
from hpmoe.runtime import cached_plans, plan_key
from hpmoe.support.cached_files import keep_latest
from hpmoe.transforms.assign_queues import stage_order

LAYER = Layer(ep=2, T=6)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cached_plans, "LEAST_SECONDS", 0.0)
    return tmp_path / "hpmoe" / "plans"


def fused(f=hpmoe.moe_ffn, *, more=(), keep_plans=True, **queues):
    return hpmoe.chain(hpmoe.tile_partition(rows=2, cols=3), hpmoe.overlap_comm, *more,
                       hpmoe.assign_queues(**{"machine": hpmoe.cpu(2), **queues}),
                       hpmoe.fuse_persistent(timeout=10.0, keep_plans=keep_plans))(f)


def run(f, layer=LAYER):
    """Outputs and gradients of all ranks."""
    given = tensors(layer.arguments())
    layer = hpmoe.spmd(f, Mesh(layer.ep))
    grads = ms.grad(lambda *a: (layer(*a) ** 2).sum(), (0, 2, 3, 4))(*given)
    return [t.asnumpy() for t in (layer(*given), *grads)]


def same(mine, theirs):
    return all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))


def nothing_is_planned(monkeypatch):
    monkeypatch.setattr(cached_plans, "_made", lambda program, *unused: pytest.fail(f"{program.name} is planned again"))


@pytest.mark.parametrize("f", [hpmoe.moe_ffn, hpmoe.send_rows(hpmoe.moe_ffn, scheme="deduplicated"),
                               hpmoe.guard_values(hpmoe.moe_ffn)])
def test_another_function_like_it_finds_the_plans(f, folder, monkeypatch):
    want = run(fused(f))
    assert len(os.listdir(folder)) == 3
    nothing_is_planned(monkeypatch)
    assert same(run(fused(f)), want) and same(run(fused(f, keep_plans=False)), want)


def test_nothing_is_kept_unless_asked_for(folder):
    run(fused(keep_plans=False))
    assert not folder.exists()


def test_what_is_planned_quickly_is_not_kept(folder, monkeypatch):
    monkeypatch.setattr(cached_plans, "LEAST_SECONDS", 1e9)
    run(fused())
    assert not folder.exists()


def scaled(by):
    return lambda x: hpmoe.swiglu(x) * by


@hpmoe.transform(requires="program")
def double_products(program):
    """A transform of a user's own."""
    def rule(builder, eqn):
        return [builder.add(primitives.mul, builder.keep(eqn), 2.0)] if eqn.primitive is primitives.mul else None
    return map_equations(program, rule)


@hpmoe.transform(requires="tiles")
def as_it_is(flow):
    return flow.replace(tile_rows=flow.tile_rows)


def key_of(f, aval=("float32", 8, 4), mesh=None, **queues):
    """The keys of what is kept for the two directions of a function."""
    staged = fused(f, **queues)
    dtype, *shape = aval
    program = hpmoe.trace(staged.staged.function, ShapeDtypeStruct(tuple(shape), dtype), mesh=mesh)
    left, steps = staged.staged.apply_to_program(staged.staged.apply_before_gradient(program))
    return plan_key.plan_key(left, steps[:-1])


KEYS = {
    "a constant": lambda: key_of(scaled(2.5)), "a shape": lambda: key_of(scaled(2.0), ("float32", 9, 4)),
    "a dtype": lambda: key_of(scaled(2.0), ("bfloat16", 8, 4)), "ranks": lambda: key_of(scaled(2.0), mesh=Mesh(2)),
    "a machine": lambda: key_of(scaled(2.0), machine=hpmoe.cpu(3)),
    "a constant of a machine": lambda: key_of(scaled(2.0), machine=hpmoe.cpu(2).replace({"sync.task_us": 0.75})),
    "a policy": lambda: key_of(scaled(2.0), policy="round_robin"),
    "a policy of hpmoe's": lambda: key_of(scaled(2.0), policy=stage_order),
    "a transform of a user's": lambda: key_of(double_products(scaled(2.0))),
    "what gradients are taken of": lambda: key_of(hpmoe.guard_values(scaled(2.0))),
    "an operation": lambda: key_of(lambda x: hpmoe.swiglu(x) + 2.0), "a name": lambda: key_of(hpmoe.swiglu),
}


def test_all_that_decides_a_plan_is_in_its_key(monkeypatch):
    usual = key_of(scaled(2.0))
    assert usual == key_of(scaled(2.0))
    keys = {what: key() for what, key in KEYS.items()}
    monkeypatch.setattr(plan_key.metadata, "version", lambda name: "0")
    keys["a version"] = key_of(scaled(2.0))
    monkeypatch.undo()
    monkeypatch.setattr(plan_key, "_files", lambda: "other files")
    keys["files"] = key_of(scaled(2.0))
    monkeypatch.undo()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(77)))
    keys["cores"] = key_of(scaled(2.0))
    assert len({usual, *keys.values()}) == 1 + len(keys)


def test_received_rows_and_copies_are_in_the_key(folder):
    run(fused())
    run(fused(), Layer(ep=2, T=6, routing="one rank"))  # smaller buckets would be the same plan
    count = len(os.listdir(folder))
    for shares in ([9, 1, 1, 1], [1, 9, 1, 1]):
        run(fused(hpmoe.replicate_experts(hpmoe.moe_ffn, loads=shares)))
    assert len(os.listdir(folder)) == count + 6


@pytest.mark.parametrize("options", [{"more": (as_it_is,)}, {"priority": lambda flow: np.zeros(flow.num_tasks)}])
def test_plans_by_code_of_a_users_are_not_kept(options, folder):
    with pytest.warns(UserWarning, match=r"plans of moe_ffn\w* are not kept: .* is not of hpmoe"):
        result = run(fused(**options))
    assert not folder.exists() and same(result, run(fused(**options, keep_plans=False)))


def changed(data, change):
    """The content of a file with another Taskflow in it, and the right digest."""
    head, _, content = data.partition(b"\n")
    content = taskflow_bytes(change(read_taskflow(content)))
    return cached_plans._head(head.split()[2].decode(), content) + b"\n" + content


def swapped(flow):
    return flow.replace(queues=tuple(q[::-1] for q in flow.queues))


CONTENT = {
    "nothing": lambda data, other: b"", "half of it": lambda data, other: data[:len(data) // 2],
    "a bit": lambda data, other: data[:-9] + bytes([data[-9] ^ 4]) + data[-8:],
    "the plan of another": lambda data, other: other,
    "a pickle": lambda data, other: pickle.dumps({"a": 1}), "much": lambda data, other: b" " * (16 << 20) + b" ",
    "tasks in another order": lambda data, other: changed(data, swapped),
    "no waits": lambda data, other: changed(data, lambda flow: with_deps(flow, waits=flow.deps.waits[:0])),
    "signals in another order": lambda data, other: changed(
        data, lambda flow: with_deps(flow, signals=flow.deps.signals[::-1])),
}


@pytest.mark.parametrize("what", CONTENT)
def test_a_file_of_anything_else_is_made_again(what, folder):
    want = run(fused())
    paths = sorted(folder.iterdir())
    good = [path.read_bytes() for path in paths]
    for path, data, other in zip(paths, good, good[1:] + good[:1], strict=True):
        path.write_bytes(CONTENT[what](data, other))
    with pytest.warns(UserWarning, match="a cached plan cannot be used and is made again"):
        assert same(run(fused()), want)
    assert [path.read_bytes() for path in paths] == good
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(run(fused()), want)


def test_what_is_no_file_does_not_hold_up_a_call(folder):
    want = run(fused())
    for path, make in zip(sorted(folder.iterdir()), (os.mkfifo, os.mkdir, lambda p: p.symlink_to("/dev/zero")), strict=True):
        path.unlink()
        make(path)
    with pytest.warns(UserWarning, match="cached plan cannot be used|a plan cannot be kept"):
        assert same(run(fused()), want)


def test_a_folder_that_cannot_be_written_is_a_warning(folder):
    folder.parent.mkdir()
    folder.write_text("in the way")
    with pytest.warns(UserWarning, match="cached plan cannot be used|a plan cannot be kept"):
        run(fused())
    assert folder.read_text() == "in the way"


def test_the_plans_used_last_stay(folder, monkeypatch):
    run(fused())
    first = sorted(folder.iterdir())
    for i, path in enumerate(first):
        os.utime(path, (i, i))
    run(fused())  # which uses them
    assert all(path.stat().st_mtime > 1e9 for path in first)
    for i, path in enumerate(first):
        os.utime(path, (i, i))
    size = sum(path.stat().st_size for path in first)
    monkeypatch.setattr(cached_plans, "MOST_BYTES", size + 100)
    assert fused(hpmoe.swiglu)(ms.ops.ones((8, 4))).shape == (8, 2)
    left = sorted(folder.iterdir())
    assert len(left) < 4 and first[0] not in left and sum(path.stat().st_size for path in left) <= size + 100


def test_files_that_go_meanwhile_are_no_error(tmp_path):
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    keep_latest(tmp_path, 0)
    assert not os.listdir(tmp_path)


def misses(layer):
    return layer.cache_info().misses


@pytest.mark.parametrize("routing", ["random", "one rank"])
def test_no_call_plans_after_a_warm_up(routing, monkeypatch):
    given = Layer(ep=2, T=96, routing=routing)
    avals = [ShapeDtypeStruct(a.shape, str(a.dtype)) for a in given.arguments()]
    layer = hpmoe.spmd(fused(), Mesh(2))
    layer.warm_up(*avals, imbalance=2.0)
    before = misses(layer)
    ms.grad(lambda *a: (layer(*a) ** 2).sum(), (0, 2, 3, 4))(*tensors(given.arguments()))
    layer(*tensors(given.arguments()))
    assert misses(layer) == before > 0
    nothing_is_planned(monkeypatch)
    run(fused(), given)


def test_a_warm_up_by_ids_plans_for_these(folder):
    layer = hpmoe.spmd(fused(), Mesh(2))
    layer.warm_up(*tensors(LAYER.arguments()))
    assert misses(layer) == 3 == len(os.listdir(folder))
    run(fused())
    assert len(os.listdir(folder)) == 3


def routed(x, to_logits, gate_up, down):
    ids, weights = hpmoe.route(x @ to_logits, 2)
    return hpmoe.moe_ffn(x, ids, weights, gate_up, down)


def test_a_warm_up_where_ids_are_computed():
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(s).astype(np.float32) for s in [(2, 48, 4), (2, 4, 4), (2, 2, 4, 6), (2, 2, 3, 4)]]
    layer = hpmoe.spmd(fused(routed), Mesh(2))
    layer.warm_up(*(ShapeDtypeStruct(a) for a in args), imbalance=2.0)
    before = misses(layer)
    ms.grad(lambda *a: (layer(*a) ** 2).sum(), (0, 1, 2, 3))(*tensors(args))
    layer(*tensors(args))
    assert misses(layer) == before > 0


def test_a_warm_up_computes_nothing_and_leaves_no_gradient(monkeypatch):
    from hpmoe.runtime.targets import Executable
    from hpmoe.support.mindspore_private import takes_gradient
    monkeypatch.setattr(Executable, "run", lambda *args, **options: pytest.fail("a kernel is launched"))
    bias, scale = ms.Parameter(ms.ops.ones((4,))), ms.Tensor(2.0)
    f = fused(lambda x: hpmoe.swiglu(x * scale + bias), keep_plans=False)
    f.warm_up(ShapeDtypeStruct((8, 4), "float32"))
    assert not takes_gradient()
    monkeypatch.undo()
    before = misses(f)
    assert ms.grad(lambda x: f(x).sum())(ms.ops.ones((8, 4))).shape == (8, 4)
    assert misses(f) == before == 3


def test_a_warm_up_of_what_computes_with_closed_over_tensors():
    bias, scale = ms.ops.ones((4,)), ms.Tensor(2.0)
    g = fused(lambda x: hpmoe.swiglu(x * scale + bias * scale), keep_plans=False)
    g.warm_up(ShapeDtypeStruct((8, 4), "float32"))
    x = ms.ops.ones((8, 4))
    want = ms.grad(lambda x: hpmoe.swiglu(x * scale + bias * scale).sum())(x)
    np.testing.assert_allclose(ms.grad(lambda x: g(x).sum())(x).asnumpy(), want.asnumpy(), rtol=1e-5)


@pytest.mark.parametrize("imbalance", [0.5, "2", float("nan"), None])
def test_an_imbalance_that_cannot_be_is_refused(imbalance):
    text = re.escape(f"warm_up: imbalance is {imbalance!r}; it must be a number from")
    with pytest.raises(hpmoe.ArgumentError, match=text):
        fused().warm_up(ShapeDtypeStruct((8, 4), "float32"), imbalance=imbalance)


SCRIPT = """
    import sys
    sys.path[:] = {path!r}
    from test_cached_plans import *

    cached_plans.LEAST_SECONDS = 0.0
    if sys.argv[1:] == ["kept"]:
        cached_plans._made = lambda program, *unused: sys.exit(f"{{program.name}} is planned again")
    print(sum(float(a.sum()) for a in run(fused())))
"""


@pytest.mark.slow
def test_concurrent_writers_and_a_reader_compute_the_same(tmp_path, folder):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT).format(path=sys.path))

    def started(*args):
        return subprocess.Popen([sys.executable, "-W", "error::UserWarning:__main__", script, *args], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = [process.communicate(timeout=120) for process in (started(), started())]
    assert len(os.listdir(folder)) == 3, first
    last = started("kept").communicate(timeout=120)
    assert last[0] == first[0][0] == first[1][0] != "" and "again" not in last[1]
