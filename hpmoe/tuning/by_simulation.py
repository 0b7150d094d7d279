"""by_simulation: the policy that simulates a few schedules on routings of its own and takes the one that ends first."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from importlib import metadata

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.kernels.simulate import outline
from hpmoe.machines.machine import Machine
from hpmoe.runtime.requeue import as_queues, transitive_reduction
from hpmoe.support.host import cache_folder
from hpmoe.support.kept_files import read_object, write_object
from hpmoe.transforms.assign_queues import POLICIES
from hpmoe.tuning.sample_routings import SAMPLES, sample_routings

CANDIDATES = ("critical_path", "slot_major", "expert_phases", "round_robin")  # the default first
WORTH = 1.02  # how much faster another must be, in the mean of all samples, to be taken
LOST = 1.01  # how much slower it may be on one of them
_chosen: dict[str, str] = {}  # of this process, by key


def by_simulation(flow: tf.Taskflow, machine: Machine) -> Sequence[np.ndarray]:
    """The queues of the policy with which a taskflow ends first on a model of the machine.

    Tried are "critical_path", "slot_major", "expert_phases" and "round_robin", on routings that are drawn for this: experts
    alike, by Dirichlet(0.3), one hot expert and half of the ranks empty, each so uneven that the fullest rank gets the rows
    that the plan has room for. Another than the default is taken where it is 2 % faster in their mean, and on none more than
    1 % slower. What was chosen is kept in this process and in $XDG_CACHE_HOME/hpmoe. The default is taken at once where
    there is nothing to choose by: on a CPU, without a route, where weights decide what is dropped, and where rows take
    other ways than straight to their experts.

    Args:
        flow: with puts or collectives, without queues.
        machine: what the queues are for.

    Returns:
        The queues.

    Example:
        >>> import hpmoe
        >>> stages = hpmoe.chain(hpmoe.tile_partition, hpmoe.assign_queues(policy=hpmoe.by_simulation))
        >>> stages(hpmoe.swiglu).lower(hpmoe.Aval((64, 32), "float32")).num_tasks
        1
    """
    if machine.unified or not _has_samples(flow):
        return POLICIES[CANDIDATES[0]](flow, machine)
    key = _key(flow, machine)
    queues: dict[str, Sequence[np.ndarray]] = {}
    name = _kept(key)
    if name is None:
        queues = {name: POLICIES[name](flow, machine) for name in CANDIDATES}
        name = _fastest(flow, machine, queues)
        _keep(key, name)
    return queues[name] if queues else POLICIES[name](flow, machine)


def _has_samples(flow: tf.Taskflow) -> bool:
    """Whether ids alone say where rows go, and the same ids can be those of every route."""
    return len({(p.num_experts, p.top_k, p.num_tokens) for p in flow.routes}) == 1 and not any(
        p.weights >= 0 or p.once_of >= 0 or p.node_size or p.tp_size > 1 for p in flow.routes)


def _fastest(flow: tf.Taskflow, machine: Machine, queues: dict[str, Sequence[np.ndarray]]) -> str:
    """The candidate with the least time in the mean of the samples, of those that lose little on any; or the default."""
    default, assigned = CANDIDATES[0], {name: transitive_reduction(flow.replace(queues=as_queues(of), machine=machine))
                                        for name, of in queues.items()}
    spans = np.array([[outline(of, routing=ids).span for of in assigned.values()] for _, ids in sample_routings(flow)])
    if not len(spans):
        return default
    over = spans / spans[:, :1]
    mean = np.where((over <= LOST).all(axis=0), np.exp(np.log(over).mean(axis=0)), 1.0)
    return list(assigned)[int(mean.argmin())] if mean.min() * WORTH <= 1.0 else default


def _key(flow: tf.Taskflow, machine: Machine) -> str:
    what = metadata.version("hpmoe"), machine, CANDIDATES, SAMPLES, WORTH, LOST, flow.ops, flow.routes, flow.buffers
    digest = hashlib.sha256(repr((*what, flow.ep_size, flow.tile_rows)).encode())
    for table in (flow.tasks, flow.waits, flow.signals, flow.events):
        digest.update(np.ascontiguousarray(table).tobytes())
    return digest.hexdigest()


def _kept(key: str) -> str | None:
    if key in _chosen:
        return _chosen[key]
    try:
        found = read_object(cache_folder() / f"policy-{key[:32]}.json")
        return str(found["policy"]) if found["key"] == key and found["policy"] in CANDIDATES else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a file of something else is written anew


def _keep(key: str, name: str) -> None:
    _chosen[key] = name
    try:
        write_object(cache_folder() / f"policy-{key[:32]}.json", {"key": key, "policy": name})
    except OSError as error:
        warnings.warn(f"hpmoe.by_simulation: what was found cannot be kept: {error}", stacklevel=4)
