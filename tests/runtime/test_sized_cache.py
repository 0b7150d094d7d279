"""Caches by bytes: what is counted, what goes first, and results that live as long as their object."""

import gc
import weakref

import numpy as np
import pytest

import hpmoe
from hpmoe.ir.stages import cut_at_routes
from hpmoe.runtime.planned_rows import routes_of
from hpmoe.support.sized_cache import SizedCache, num_bytes


def layer(x, weight, up, down):
    ids, weights = hpmoe.route(x @ weight, 2)
    return hpmoe.moe_ffn(x, ids, weights, up, down)


AVALS = [hpmoe.ShapeDtypeStruct(shape, "float32") for shape in ((16, 8), (8, 4), (4, 8, 8), (4, 4, 8))]


def test_what_was_used_longest_ago_goes_first():
    cache = SizedCache("values", 2500)
    for key in "ab":
        cache.put(key, np.zeros(1000, np.uint8))
    assert cache.get("a") is not None
    cache.put("c", np.zeros(1000, np.uint8))
    assert [cache.get(key) is None for key in "abc"] == [False, True, False] and cache.num_bytes == 2000
    with pytest.warns(UserWarning, match="values take more than 0 MiB"):
        cache.put("b", np.zeros(9000, np.uint8))
    assert len(cache) == 1 and cache.get("b") is not None and cache.num_bytes == 9000
    cache.put("b", np.zeros(10, np.uint8))
    assert cache.num_bytes == 10


def test_the_bytes_of_a_plan_are_those_of_its_tables():
    def plan_of(tokens):
        avals = [hpmoe.ShapeDtypeStruct((tokens, *AVALS[0].shape[1:]), "float32"), *AVALS[1:]]
        staged = hpmoe.chain(hpmoe.tile_partition(rows=4), hpmoe.assign_queues, hpmoe.fuse_persistent)(layer)
        return staged.lower(*avals).irs[-1]
    small, large = plan_of(64), plan_of(4096)
    held = [(*vars(x.flow).values(), *vars(x.flow.deps).values(), x.image) for x in (small, large)]
    tables = [sum(v.nbytes for v in values if isinstance(v, np.ndarray)) for values in held]
    assert tables[1] > 10 * tables[0] and tables[1] < num_bytes(large) < 2 * tables[1]
    assert num_bytes(small) < num_bytes(large) / 5


@pytest.mark.parametrize("f", [cut_at_routes, routes_of])
def test_a_result_stays_however_many_programs_there_are(f):
    program = hpmoe.trace(layer, *AVALS)
    first, others = f(program), [program.replace(name=f"layer_{i}") for i in range(300)]
    assert all(f(other) is f(other) for other in others) and f(program) is first


def test_a_program_is_freed_with_its_results():
    program = hpmoe.trace(layer, *AVALS)
    cut_at_routes(program), routes_of(program)
    gone = weakref.ref(program)
    del program
    gc.collect()
    assert gone() is None
