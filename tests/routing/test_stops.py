"""Routes over stops: what kinds answer, against counts, and ways that verify and the check of an image refuse."""

import dataclasses

import numpy as np
import pytest
from helpers import Layer, lowered, stages

import hpmoe
from hpmoe import VerifyError, moe_ffn
from hpmoe.kernels.image import unpack_image
from hpmoe.kernels.native import load
from hpmoe.kernels.packing import pack
from hpmoe.rewriting import Stops
from hpmoe.routing.kinds.direct import Direct
from hpmoe.routing.kinds.stops import Deduplicated, Hierarchical
from hpmoe.routing.routing import make_routing, routing_of_tokens
from hpmoe.verification.well_formed import check_sizes

EXPERTS = Direct(ep_size=4, num_tokens=3, num_choices=2, num_model_experts=8)
LAYER = Layer(ep=4, T=3, E=8, K=2, node_size=2)
BOTH = hpmoe.send_rows(scheme="hierarchical+deduplicated")


@dataclasses.dataclass(frozen=True)
class Table(Stops):
    """Stops as given, row by row."""

    rows: tuple[tuple[int, ...], ...]

    def stop(self, source, dest):
        return np.array(self.rows)[source, dest]


KINDS = {"ranks": Deduplicated(EXPERTS), "nodes": Hierarchical(EXPERTS, 2), "one node": Hierarchical(EXPERTS, 4),
         "first rank": Table(EXPERTS, ((0,) * 4,) * 4),
         "uneven": Table(EXPERTS, ((0, 1, 1, 1), (0, 1, 1, 1), (2,) * 4, (3,) * 4))}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_answer_as_counted(name):
    kind, rng = KINDS[name], np.random.default_rng(0)
    pairs = {(source, int(kind.stop(source, dest))) for source in range(4) for dest in range(4)}
    assert {tuple(pair) for pair in np.argwhere(kind.sends()).tolist()} == pairs
    assert kind.num_senders == max(sum(to == rank for _, to in pairs) for rank in range(4))
    assert kind.is_to_relays == any(kind.stop(s, d) != d for s in range(4) for d in range(4))
    arrived = rows = 0
    for _ in range(300):
        tokens = rng.integers(0, 4, 4)
        ids = [np.argsort(rng.random((n, 8)), axis=1)[:, :2] for n in tokens]
        experts = make_routing(EXPERTS, ids)
        routing = routing_of_tokens(kind, experts)
        for rank in range(4):
            assert routing.num_rows(rank) <= kind.rows_of(experts.num_rows(rank), tokens.tolist(), rank) <= kind.most_rows()
        arrived += routing.counts.sum()
        rows += experts.counts.sum()
    assert rows / arrived == pytest.approx(kind.rows_of_token(), rel=0.05)


def flow_of(f=BOTH):
    return lowered(stages()["queues"](f(moe_ffn)), LAYER.arguments(), LAYER.mesh)


def fault_of(image):
    return load().hpmoe_image_fault(image.ctypes.data, image.nbytes) or b""


def changed(routes, i, **changes):
    return (*routes[:i], dataclasses.replace(routes[i], **changes), *routes[i + 1:])


OF = flow_of().routes[1].kind.by_ids
WAYS = {
    "past the last rank": ({"kind": Table(OF, ((0, 1, 2, 4),) * 4)}, "sizes must fit each other"),
    "before the first rank": ({"kind": Table(OF, ((0, -1, 2, 3),) * 4)}, "sizes must fit each other"),
    "no tree": ({"kind": Table(OF, ((0, 1, 2, 3), (3, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)))},
                "rows of rank 1 for ranks 3 and 0 stop at rank 3, and come there over ranks 3 and 1"),
    "over experts": ({"over": 0}, "it must be a route of tokens to the same experts"),
    "over itself": ({"over": 1}, "the way has no beginning|only one route"),
    "over no route": ({"over": 3}, "it must be a route of tokens to the same experts"),
}


@pytest.mark.parametrize("name", WAYS)
def test_verify_refuses_ways_that_do_not_fit(name):
    changes, message = WAYS[name]
    flow = flow_of()
    check_sizes(flow)
    assert [(plan.of, plan.over) for plan in flow.routes] == [(-1, -1), (0, 2), (0, -1)]
    with pytest.raises(VerifyError, match=message):
        check_sizes(flow.replace(routes=changed(flow.routes, 1, **changes)))


def test_two_routes_over_one_are_refused():
    flow = flow_of()
    with pytest.raises(VerifyError, match="only one route may come over it"):
        check_sizes(flow.replace(routes=changed(flow.routes, 0, over=2)))


@pytest.mark.parametrize("change", ["a stop past the last rank", "no tree", "a table too long", "over experts", "two over"])
def test_an_image_of_such_ways_is_refused(change):
    image = pack(flow_of())
    assert fault_of(image) == b""
    _, sections = unpack_image(image)
    routes, stops = sections["routes"], sections["stops"]
    assert len(stops) == 2 * 4 * 4 and routes["first_stop"].tolist() == [-1, 0, 16]
    if change == "a stop past the last rank":
        stops[3] = 4
    elif change == "no tree":
        stops[4] = 3
    elif change == "a table too long":
        routes["first_stop"][1] = 17
    else:
        routes["over"][1 if change == "over experts" else 0] = 0 if change == "over experts" else 2
    assert fault_of(image) == b"a route's sizes do not fit together"
