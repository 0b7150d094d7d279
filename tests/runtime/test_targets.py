"""A target written outside of hpmoe: tasks in NumPy, a table of bodies, and what a machine lacks."""

import pickle

import mindspore as ms
import pytest
from ascend_helpers import own_targets
from helpers import Layer, assert_equals_numpy, stages

import hpmoe
from hpmoe.interpreters.interpret import interpret
from hpmoe.runtime.bodies import Bodies
from hpmoe.runtime.targets import Executable, Target, register_target


class NumpyTarget(Target):
    """Runs the tasks of a taskflow in NumPy. Executables count their launches."""

    name, lacks = "numpy", ()
    bodies = Bodies(functions=frozenset({"mul", "add"}), dtypes=("float32", "int32"))

    def missing(self):
        return list(self.lacks)

    def compile(self, flows, timeout):
        self.bodies.check(flows[0], "the numpy target")
        return Executable(self, tuple(flows[:1]), timeout)

    def new_state(self, executable):
        return []

    def run(self, executable, inputs, num_tokens, into, received):
        executable.state.append(num_tokens)
        return interpret(executable.flow, inputs, num_tokens)


@pytest.fixture(autouse=True)
def target():
    with own_targets():
        numpy = NumpyTarget()
        register_target(numpy)
        yield numpy


def in_numpy(f):
    return hpmoe.fuse_persistent(stages()["queues"](f), target="numpy")


@pytest.mark.parametrize("num_tokens", [None, (3, 5)])
def test_it_runs_a_layer_and_its_gradients(num_tokens):
    assert_equals_numpy(in_numpy(hpmoe.moe_ffn), Layer(num_tokens=num_tokens))


def test_results_end_up_in_main_gradients():
    """Although the target returns arrays of its own."""
    x, weight = ms.Tensor([[1.0, 2.0], [3.0, 4.0]], ms.float32), ms.ops.ones((2, 3))
    main = ms.ops.ones((2, 3))
    f = in_numpy(hpmoe.accumulate_grads(lambda x, w: x @ w, into={"w": main}))
    ms.grad(lambda x, w: f(x, w).sum(), (0, 1))(x, weight)
    assert main.asnumpy().tolist() == [[5.0] * 3, [7.0] * 3]


@pytest.mark.parametrize("f, dtype, words", [
    (lambda x: hpmoe.swiglu(x) * 2.0, "float16", "swiglu: the dtype of operand 0 is float16"),
    (lambda x: ms.mint.tanh(x), "float32", "its function is tanh; it must be one of add, mul"),
])
def test_what_the_table_lacks_is_refused_by_name(f, dtype, words):
    with pytest.raises(hpmoe.ArgumentError, match=f"the numpy target: .*{words}"):
        in_numpy(f).lower(hpmoe.ShapeDtypeStruct((4, 8), dtype))


def test_a_machine_that_lacks_something_is_told(target):
    target.lacks = ("no abacus",)
    with pytest.raises(hpmoe.ArgumentError, match="Missing here:\n  no abacus"):
        in_numpy(hpmoe.swiglu)


def test_a_copied_executable_has_a_state_of_its_own():
    kernel = in_numpy(hpmoe.swiglu).lower(hpmoe.ShapeDtypeStruct((4, 8), "float32"))
    other = pickle.loads(pickle.dumps(kernel))
    assert other.target is kernel.target and str(other) == str(kernel) and other.state is not kernel.state
    assert kernel.provenance[-1] == "fuse_persistent(numpy)" and "kernel numpy  image=0 bytes" in str(kernel)


def test_one_rank_of_a_target_without_links_is_refused():
    kernel = in_numpy(hpmoe.swiglu).lower(hpmoe.ShapeDtypeStruct((4, 8), "float32"))
    with pytest.raises(hpmoe.LaunchError, match="swiglu: run_rank of target 'numpy' launches no single rank; call run with"):
        kernel.run_rank(None, [], [])


def test_replaced_fields_leave_the_executable_as_it_was():
    kernel = in_numpy(hpmoe.swiglu).lower(hpmoe.ShapeDtypeStruct((4, 8), "float32"))
    other = kernel.replace(timeout=1.5)
    assert (other.timeout, other.flows) == (1.5, kernel.flows) and kernel.timeout != 1.5
