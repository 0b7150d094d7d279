"""Files of safetensors: what the safetensors library refuses, and names that repeat, are errors before a value is read."""

import json
import random

import numpy as np
import pytest
import safetensors
from safetensors.numpy import save

import hpmoe
from hpmoe.nn.checkpoint_folder import INDEX, open_arrays
from hpmoe.nn.safetensors import open_file, runs

ARRAYS = {"gate.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(4, dtype=np.float64),
          "c": np.zeros((2, 0), np.float16), "d": np.arange(3, dtype=np.int8), "e": np.ones((), np.float32)}
VALUES = (-1, 0, 1, 3, 2**40, 2**64, 1.0, True, False, None, "8", [], [0], [0, 8, 8], [-8, 0], [0, True], {}, "F32", "F99",
          "I64")


def split(data):
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8:8 + length]), data[8 + length:]


def joined(table, data, text=None):
    text = json.dumps(table).encode() if text is None else text
    return len(text).to_bytes(8, "little") + text + data


def mutated(rng, whole):
    """A file with one fault or two: a changed field, offset, shape, byte, length, or trailing bytes."""
    table, data = split(whole)
    for _ in range(rng.randint(1, 2)):
        entry, kind = table[rng.choice(list(table))], rng.randrange(7)
        if kind == 0:
            entry[rng.choice(["data_offsets", "shape", "dtype", "more"])] = rng.choice(VALUES)
        elif kind == 1:
            entry["data_offsets"] = [offset + rng.choice((-8, -1, 0, 1, 8)) for offset in (0, 8)]
        elif kind == 2:
            entry["shape"] = [rng.choice(VALUES) for _ in range(rng.randint(0, 3))]
        elif kind == 3:
            entry.pop(rng.choice(list(entry)), None)
            entry.setdefault("dtype", "F32")
        elif kind == 4:
            data += b"\0" * rng.randint(1, 9)
        elif kind == 5:
            data = data[:rng.randrange(len(data) + 1)]
        else:
            text = bytearray(json.dumps(table).encode())
            text[rng.randrange(len(text))] = rng.randrange(256)
            return joined(table, data, bytes(text))
    return joined(table, data)


def test_what_the_library_refuses_is_refused(tmp_path):
    """Reads 500 mutated files; files that the library accepts have the values that the library reads."""
    rng, path, taken = random.Random(0), tmp_path / "model.safetensors", 0
    whole = save(ARRAYS)
    for _ in range(500):
        path.write_bytes(mutated(rng, whole))
        try:
            with safetensors.safe_open(path, "np") as file:
                expected = {name: file.get_slice(name).get_dtype() for name in file.keys()}
        except safetensors.SafetensorError:
            with pytest.raises(hpmoe.ArgumentError, match="cut off, or no safetensors file"):
                open_file("test", path)
        else:
            taken += 1
            found = open_file("test", path)
            assert sorted(found) == sorted(expected)
    assert 5 < taken < 250


@pytest.mark.parametrize("entry", ['"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}', '"__metadata__": {}'])
def test_a_name_that_is_there_twice(entry, tmp_path):
    """The library takes one of both."""
    text = "{" + entry + ', "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, ' + entry + "}"
    (tmp_path / "model.safetensors").write_bytes(joined(None, b"1234", text.encode()))
    with pytest.raises(hpmoe.ArgumentError, match="there twice|duplicate"):
        open_file("test", tmp_path / "model.safetensors")


NAMES = ["../model.safetensors", "/tmp/model.safetensors", "..", "", "a/b.safetensors", 3, None, ["a"]]


@pytest.mark.parametrize("name", NAMES)
def test_an_index_names_files_beside_it(name, tmp_path):
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(hpmoe.ArgumentError, match="the file name"):
        open_arrays("test", tmp_path, "")


TEXTS = ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": "b", "a": "c"}}', "[" * 100_000, "\xff"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_malformed_index(text, tmp_path):
    (tmp_path / INDEX).write_bytes(text.encode("latin1"))
    with pytest.raises(hpmoe.ArgumentError, match="of another format"):
        open_arrays("test", tmp_path, "")


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(save(ARRAYS))
    arrays = open_file("test", path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(hpmoe.ArgumentError, match="cut off while it was read"):
        for array in arrays.values():
            array.read()


@pytest.mark.parametrize("ranges", [(), (range(1, 3),), (range(1, 3), range(2)), (range(3), range(5), range(1, 4)),
                                    (range(2, 3), range(1, 4), range(1, 2))])
def test_ranges_of_an_array(ranges, tmp_path):
    """A part within ranges is the slice of NumPy, and the runs of bytes have no others."""
    array = np.arange(60, dtype=np.float32).reshape(3, 5, 4)
    (tmp_path / "model.safetensors").write_bytes(save({"a": array}))
    expected = array[tuple(slice(r.start, r.stop) for r in ranges)]
    np.testing.assert_array_equal(open_file("test", tmp_path / "model.safetensors")["a"].read(*ranges), expected)
    assert sum(count for _, count in runs(array.shape, ranges)) == expected.size
