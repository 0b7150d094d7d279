"""Restarts on another number of ranks, from what each rank wrote; and after a rank has died, with its file and without."""

import re
import shutil
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from elastic_script import train
from forked import start_forked

import hpmoe

pytestmark = pytest.mark.slow
SCRIPT = str(Path(__file__).parent / "elastic_script.py")


def launch(size, *command):
    """Returns the exit status, losses, lost experts, and all lines of a run of `size` ranks."""
    status, out, err = start_forked([SCRIPT, *command], size)
    found, lost = (re.search(rf"^{what} (.*)$", out, re.M) for what in ("losses", "lost"))
    assert found and lost, out + err
    return status, [float.fromhex(word) for word in found.group(1).split()], lost.group(1), out + err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    LOSSES.clear()  # of another folder, if tests of other files ran in between
    return tmp_path_factory.mktemp("elastic")


LOSSES = []  # of six steps on four ranks, that saved after three; the fourth rank dies after them


def of_four_ranks(folder):
    if not LOSSES:
        status, losses, _, text = launch(4, 4, folder, 0, 6, "dies")
        assert status == 137 and len(losses) == 6, text
        for rank in range(3):
            assert re.search(rf"rank {rank} told rank 3 was killed by SIGKILL", text), text
        LOSSES.extend(losses)
    return LOSSES[3:]


@pytest.mark.parametrize("size, ranks", [(4, "4"), (2, "2"), (4, "2x2")])
def test_a_run_goes_on_at_another_size(folder, size, ranks):
    expected = of_four_ranks(folder)
    status, losses, lost, text = launch(size, ranks, folder, 3, 6)
    assert (status, lost) == (0, "[]"), text
    if ranks == "4":
        assert losses == expected  # bit for bit
    np.testing.assert_allclose(losses, expected, rtol=2e-6)
    assert expected[0] != expected[1]


def test_what_is_saved_again_at_other_sizes_is_the_same(folder, tmp_path):
    of_four_ranks(folder)
    source = folder / "step_3"
    for size, ranks in (2, "1x2"), (3, "3"), (4, "4"):  # to shards of experts, and to experts of two ranks each time
        assert start_forked([SCRIPT, "move", ranks, source, tmp_path / ranks], size)[0] == 0
        source = tmp_path / ranks
    for rank in range(4):
        before, after = (ms.load_checkpoint(str(at / f"rank_{rank:05}_of_00004.ckpt")) for at in (folder / "step_3", source))
        assert before.keys() == after.keys() and before["adam_m.experts.weight1"].asnumpy().any()
        for name in before.keys() - {"hpmoe_save", "tokens_per_expert", "counted_tokens"}:  # a rank counts its own tokens
            assert np.array_equal(*(np.asarray(ckpt[name]) for ckpt in (before, after))), (rank, name)


def test_a_run_goes_on_on_one_rank(folder):
    expected = of_four_ranks(folder)
    np.testing.assert_allclose(train(hpmoe.world(), folder, 3, 6)[0], expected, rtol=2e-6)


def test_survivors_serve_a_dead_ranks_experts_from_copies(folder, tmp_path):
    expected = of_four_ranks(folder)
    shutil.copytree(folder / "step_3", tmp_path / "step_3")
    for path in ("rank_00003_of_00004.ckpt", "rank_00000_of_00004.copy_on_00003.ckpt"):  # what the dead rank wrote
        (tmp_path / "step_3" / path).unlink()
    status, losses, lost, text = launch(3, 3, tmp_path, 3, 6)
    assert (status, lost) == (0, "[]"), text
    np.testing.assert_allclose(losses, expected, rtol=2e-6)


def test_survivors_go_on_without_a_dead_ranks_experts(folder, tmp_path):
    expected = of_four_ranks(folder)
    shutil.copytree(folder / "step_3", tmp_path / "step_3")
    for path in (tmp_path / "step_3").glob("rank_00003*"):
        path.unlink()
    status, losses, lost, text = launch(3, 3, tmp_path, 3, 6, "zeros")
    assert (status, lost) == (0, "[9, 10, 11]"), text
    alone, of_one = train(hpmoe.world(), tmp_path, 3, 6, missing="zeros")
    assert of_one == [9, 10, 11] and abs(losses[0] - expected[0]) > 1e-3 * expected[0]
    np.testing.assert_allclose(losses, alone, rtol=2e-6)
