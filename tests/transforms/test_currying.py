"""A transform called with options alone is the transform with these options, as it stands in a chain."""

import pickle

import pytest

import hpmoe
from hpmoe import ArgumentError, ShapeDtypeStruct, TransformError, chain, overlap_comm, tile_partition

X = ShapeDtypeStruct((8, 6), "float32")


@hpmoe.transform(requires="program")
def rename(program, *, name, suffix=""):
    return program.replace(name=name + suffix)


def text(f):
    return str(f.lower(X))


@pytest.mark.parametrize("curried, direct", [
    (tile_partition(rows=4), lambda f: tile_partition(f, rows=4)),
    (tile_partition(rows=4)(cols=2), lambda f: tile_partition(f, rows=4, cols=2)),
    (tile_partition(rows=4)(rows=2), lambda f: tile_partition(f, rows=2)),
    (tile_partition(), tile_partition),
    (lambda f: tile_partition(rows=4)(f, cols=2, rows=3), lambda f: tile_partition(f, rows=3, cols=2)),
    (lambda f: tile_partition(rows=4)(f=f), lambda f: tile_partition(f, rows=4)),
    (rename(name="other"), lambda f: rename(f, name="other")),
    (rename(suffix="s")(name="other"), lambda f: rename(f, name="other", suffix="s")),
    (chain(rename(name="other"), tile_partition(rows=2), overlap_comm(signal="peer")),
     lambda f: overlap_comm(tile_partition(rename(f, name="other"), rows=2), signal="peer")),
])
def test_it_is_the_transform_with_these_options(curried, direct):
    assert text(curried(hpmoe.swiglu)) == text(direct(hpmoe.swiglu))


@pytest.mark.parametrize("call, error, words", [
    (lambda: tile_partition(row=64), TypeError, "tile_partition: got an unexpected keyword argument 'row'"),
    (lambda: tile_partition(rows=0), ArgumentError, "tile_partition: rows is 0"),
    (lambda: tile_partition(rows=4)(cols="wide"), ArgumentError, "tile_partition: cols is 'wide'"),
    (lambda: overlap_comm(signal="rank"), ArgumentError, "overlap_comm: signal is 'rank'"),
    (lambda: rename(nme="f"), TypeError, "rename: got an unexpected keyword argument 'nme'"),
    (lambda: rename()(hpmoe.swiglu), TypeError, "rename: missing a required argument: 'name'"),
    (lambda: chain(rename(suffix="s"))(hpmoe.swiglu), TypeError, "rename: missing a required argument: 'name'"),
    (lambda: overlap_comm(signal="peer")(hpmoe.swiglu), TransformError, "overlap_comm: it needs the tile tasks"),
    (lambda: tile_partition(rows=2)(3), TransformError, "tile_partition: f is an int"),
])
def test_what_does_not_fit_is_refused_where_it_is_given(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).startswith(words)


def test_it_shows_its_options():
    one = overlap_comm(order=hpmoe.transforms.overlap_comm.sequential, signal="peer")
    assert repr(one) == "overlap_comm(order=sequential, signal=peer)"
    assert repr(chain(tile_partition(rows=64), chain(one), rename)) == (
        "chain(tile_partition(rows=64), chain(overlap_comm(order=sequential, signal=peer)), rename)")


def test_it_is_pickled_by_the_name_of_its_transform():
    one = pickle.loads(pickle.dumps(tile_partition(rows=64)))
    assert (one.transform, one.options, one.__name__) == (tile_partition, {"rows": 64}, "tile_partition")


def test_a_rewrite_of_ir_has_them_too():
    program = hpmoe.trace(hpmoe.swiglu, X)
    assert str(tile_partition(rows=4).apply_to(program)) == str(tile_partition.apply_to(program, rows=4))
