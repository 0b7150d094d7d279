"""A kit for those who write transforms: random inputs, assertions and hypothesis strategies, on chex.

`pip install 'hpmoe[testing]'` brings what it needs; `import hpmoe` does not import it.

What there is:
    random_inputs(f, avals, mesh, routing=): arguments of a function, by routings that kernels find hard
    assert_same(transform, f, avals, mesh): a function computes the same under a transform, forward and in every gradient;
        with reference=g, the same as g
    assert_rewrite(transform, before, after): the text that a transform makes of a program, forward or backward
    strategies.layers(), .meshes(), .routings(), .chains(): for laws over random layers and schedules

Example:
    Two tests of a transform: what it makes, which takes no numbers, and that the numbers stay what they are.

    >>> import hpmoe
    >>> from hpmoe.rewriting import map_equations, primitives
    >>> from hpmoe.testing import assert_rewrite, assert_same
    >>> @hpmoe.transform(requires="program")
    ... def square_by_square(program):
    ...     def rule(builder, eqn):
    ...         if eqn.primitive is primitives.mul and eqn.inputs[0] is eqn.inputs[1]:
    ...             return [builder.add(primitives.square, eqn.inputs[0])]
    ...     return map_equations(program, rule)
    >>> x = hpmoe.ShapeDtypeStruct((5, 3), "float32")
    >>> assert_rewrite(square_by_square, (lambda x: x * x, [x]), '''
    ...     { lambda x:f32[5,3]
    ...       let a:f32[5,3] = square x
    ...       in (a,) : f32[5,3] }''')
    >>> assert_same(square_by_square, lambda x: x * x, [x])
"""

try:
    import chex  # noqa: F401
    import hypothesis  # noqa: F401
except ImportError as error:
    raise ImportError(f"hpmoe.testing needs {error.name}: pip install 'hpmoe[testing]'") from error

# isort: split
from hpmoe.testing import strategies as strategies
from hpmoe.testing.inputs import random_inputs as random_inputs
from hpmoe.testing.rewrites import assert_rewrite as assert_rewrite
from hpmoe.testing.same import assert_same as assert_same

__all__ = ["assert_rewrite", "assert_same", "random_inputs", "strategies"]
