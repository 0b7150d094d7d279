"""host/cann_device.cc on a stand-in for acl and aclshmem 1.1: heaps that open again, versions, and ranks out of reach."""

import subprocess
from pathlib import Path

import pytest

from hpmoe.kernels import build_native
from hpmoe.kernels.ascendc.build import HOST

NATIVE = Path(__file__).parents[1] / "native"
MET = ["met"] * 3
WAITED = "rank {} waited 1 s for rank {}, which launches other kernels or has ended"
PLACE = "expected ranks in one node of an A2, or in one supernode of an A3"


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    path = tmp_path_factory.mktemp("cann") / "driver"
    done = subprocess.run([*build_native.find_compiler(), "-std=c++17", "-O0", "-DHPMOE_MEETING_SECONDS=1",
                           f"-I{NATIVE / 'cann'}", f"-I{HOST}", NATIVE / "cann_driver.cc", HOST / "cann_device.cc", "-o",
                           path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


def said(driver, scenario):
    """Returns how each of three ranks ended."""
    lines = subprocess.run([driver, scenario], capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    return [line.split(": ", 1)[1] for line in sorted(lines)]


@pytest.mark.parametrize("scenario", ["opened once", "opened again"])
def test_heaps_open_and_open_again(driver, scenario):
    assert said(driver, scenario) == MET


@pytest.mark.parametrize("scenario, error", [
    ("a version", "the library of aclshmem is 1.2 with state"), ("a state", "the library of aclshmem is 1.1 with state"),
    ("in use", "aclshmem is in use by other code of this process"),
    ("two at once", "this process has a symmetric heap open already"),
])
def test_a_heap_that_must_not_open_is_refused(driver, scenario, error):
    assert all(line.startswith(error) for line in said(driver, scenario))


@pytest.mark.parametrize("scenario, rank, peer, why", [
    ("an unlisted rank", 0, 2, "aclshmem lists no way for a core's copies"),
    ("a lost word", 1, 2, "a word that was written there reads back as another"),
    ("a failing copy", 1, 0, "a copy of one word ended with 507"),
])
def test_a_rank_out_of_reach_is_refused_by_name(driver, scenario, rank, peer, why):
    found = said(driver, scenario)
    assert found[rank] == f"copies of rank {rank} do not reach rank {peer}: {why}; {PLACE}"
    assert all(line.startswith(f"rank {r} waited") for r, line in enumerate(found) if r != rank)


def test_an_absent_rank_is_named_after_a_bounded_time(driver):
    assert said(driver, "an absent rank") == [WAITED.format(0, 2), WAITED.format(1, 2), "absent"]
