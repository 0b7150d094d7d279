"""Graph mode: where MindSpore's graph compiler meets a call of ours, the call becomes one operator each way.

The compiler parses `Graphed._call_in_graph` instead of `__call__`. While the graph is compiled the function is traced for
the shapes at hand, and what the compiler goes on with is the operator of hpmoe.runtime.graph_operators that runs it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

import optree
from mindspore import Parameter, Tensor, jit_class, ops

from hpmoe.ir.avals import ShapeDtypeStruct
from hpmoe.runtime.graph_operators import picked
from hpmoe.support.errors import check_argument
from hpmoe.support.mindspore_private import is_computed, keep_whole
from hpmoe.support.trees import Function, PyTree

constexpr: Function = ops.constexpr  # whose annotations know no arguments
UNKNOWN = "known when the graph is compiled"


class Graphed:
    """Callable with a `_runner` that a compiled graph can call.

    Attributes:
        frozen_arguments: None, or gives the names of arguments that no gradient is wanted of, which a graph cannot see.
    """

    frozen_arguments: Callable[[], Collection[str]] | None = None

    @property
    def __code__(self):
        """Code object by which `ms.grad` and similar functions identify a function."""
        return type(self).__call__.__code__

    def _let_graphs_call(self) -> None:
        """Sets `__call__` on the instance, where a graph looks for it; Python keeps finding the one of the class."""
        self.__dict__["__call__"] = self._call_in_graph

    def __getstate__(self):
        """Returns the state of a copy, also in a copied Cell: it plans again, and graphs call the copy itself."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_runner", "__call__")}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._let_graphs_call()

    def _call_in_graph(self, *args, **kwargs):
        known, tensors = _told_apart((args, kwargs))
        operator, order, structure, is_single = _operator(self, known)
        outputs = operator(*picked(tensors, order))
        return _arranged(structure, (outputs,) if is_single else outputs)

keep_whole(Graphed)
jit_class(Graphed)  # makes the graph compiler look up attributes of the object, among them `__call__`


# The compiler parses these two, so they are written in the Python that it knows.

def _told_apart(x):
    """Returns a compiling graph's description of arguments, flat, containers before items, and the tensors among them."""
    if isinstance(x, Tensor):
        return (("array", x.shape, x.dtype),), (x,)
    tensors = ()
    if isinstance(x, dict):
        known = (("dict", tuple(x.keys())),)
        for key in x.keys():
            one, more = _told_apart(x[key])
            known = known + one
            tensors = tensors + more
        return known, tensors
    if isinstance(x, (tuple, list)):
        known = (("list" if isinstance(x, list) else "tuple", len(x)),)
        for item in x:
            one, more = _told_apart(item)
            known = known + one
            tensors = tensors + more
        return known, tensors
    return (("value", x, ops.isconstant(x)),), tensors


def _arranged(structure, outputs):
    """Returns the operator's outputs in the structure that the function returns."""
    if structure is None:
        return None
    if isinstance(structure, int):
        return outputs[structure] if structure >= 0 else ops.reshape(outputs[-1 - structure], ())
    result = ()
    for item in structure:
        result = result + (_arranged(item, outputs),)
    return result


@constexpr(reuse_result=False)
def _operator(layer, known):
    """Returns a call's operator in a graph, its tensors, the places of its outputs, and True if it has a single output."""
    runner = layer._runner
    check_argument(known, "hpmoe", "an argument in a graph", "of unknown type", UNKNOWN)
    avals = []
    given: PyTree = _recovered(iter(known), avals)
    args, kwargs = given
    num_tokens = kwargs.pop("num_tokens", None) if hasattr(layer, "mesh") else None
    call, arrays = runner.prepare(args, kwargs, num_tokens)
    if layer.frozen_arguments is not None:
        frozen = layer.frozen_arguments()
        needed = [name not in frozen for name in call.traced.program.input_names]
        call = dataclasses.replace(call, traced=call.traced.asked(needed))
    program = call.traced.program
    for capture in program.captures:
        name = capture.name if isinstance(capture, Parameter) else "computed"
        check_argument(not isinstance(capture, Parameter) and not is_computed(capture), program.name, "a closed-over tensor",
                       f"{name}, whose gradient a compiled graph would lose", "an argument of the function in graph mode")
    order = tuple(next(i for i, x in enumerate(avals) if x is a) for a in arrays)
    in_graph = runner.backend.in_graph(call, len(arrays))
    results = program.outputs[:program.num_results]
    for a in results:
        check_argument(0 not in a.aval.shape, program.name, "its output in a graph", f"of shape {a.aval.shape}",
                       "of at least one element, as MindSpore takes an empty one from no operator of a graph")
    places = [i if a.aval.shape or runner.plans.batched else -1 - i for i, a in enumerate(results)]
    structure = optree.tree_unflatten(call.traced.out_tree, places)
    is_single = len(in_graph.output_avals()) == 1
    return in_graph.forward_operator(), order, _in_tuples(structure, program.name), is_single


def _in_tuples(structure, name):
    """Returns the structure with tuples for lists, which a graph would build at run time."""
    if isinstance(structure, (tuple, list)):
        return tuple(_in_tuples(item, name) for item in structure)
    check_argument(structure is None or isinstance(structure, int), name, "its output in a graph",
                   f"a {type(structure).__name__}", "a tensor, None, or a tuple of them")
    return structure


def _recovered(known, avals):
    """Rebuilds the arguments from the iterator `known`; replaces tensors by ShapeDtypeStructs, also appended to `avals`."""
    kind, *facts = next(known)
    if kind == "array":
        shape, dtype = facts
        check_argument(None not in shape, "hpmoe", "an array in a graph", f"of shape {shape}", UNKNOWN)
        check_argument(0 not in shape, "hpmoe", "an array in a graph", f"of shape {shape}",
                       "of at least one element, as MindSpore hands an empty one to no operator of a graph")
        avals.append(ShapeDtypeStruct(tuple(shape), str(dtype).lower()))
        return avals[-1]
    if kind == "dict":
        return {key: _recovered(known, avals) for key in facts[0]}
    if kind == "value":
        check_argument(facts[1], "hpmoe", "a value in a graph", "a variable", UNKNOWN)
        return facts[0]
    return (list if kind == "list" else tuple)(_recovered(known, avals) for _ in range(facts[0]))
