"""LoadMonitor beside NumPy."""

import mindspore as ms
import numpy as np

from hpmoe.balance import LoadMonitor


def test_numbers_are_those_of_numpy():
    rng = np.random.default_rng(0)
    counts = {layer: rng.poisson(rng.uniform(0, 30, 24), (50, 2, 24)) for layer in ("layer 0", "a longer name")}
    monitor = LoadMonitor(keep=20)
    for step in range(50):
        for layer, each in counts.items():
            monitor.record(layer, ms.Tensor(each[step].astype(np.int32)))
    assert monitor.layers == ("layer 0", "a longer name")
    for layer, each in counts.items():
        assert np.array_equal(monitor.counts(layer), each[30:].sum(1))
        for last in (None, 7):
            loads = each[-last if last else 30:].sum(1).astype(np.float64)
            row, shares = monitor.row(layer, last), loads.mean(0) / loads.mean()
            assert (row.steps, row.hottest, row.unused) == (len(loads), shares.argmax(), (loads.sum(0) == 0).sum())
            np.testing.assert_allclose([row.tokens, row.max_over_mean, row.p50, row.p90, row.p99],
                                       [loads.sum(1).mean(), shares.max(), *np.percentile(shares, (50, 90, 99))], rtol=1e-12)


def test_a_layer_without_tokens_has_no_load():
    monitor = LoadMonitor()
    monitor.record("masked", np.zeros(4))
    assert monitor.row("masked")[1:] == (1, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 4)


def test_the_table_has_a_row_for_each_layer():
    monitor = LoadMonitor()
    assert len(str(monitor).splitlines()) == 1
    for layer in ("one", "the second layer"):
        monitor.record(layer, [1, 2, 3])
    header, *rows = str(monitor).splitlines()
    assert [row[:len("the second layer")].strip() for row in rows] == ["one", "the second layer"]
    assert {len(row) for row in rows} == {len(header)}
