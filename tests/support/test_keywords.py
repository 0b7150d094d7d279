"""A misspelt keyword of a public function, transform or Cell: the error names the nearest one."""

import inspect
import traceback

import mindspore as ms
import pytest

import hpmoe
import hpmoe.balance
import hpmoe.mindformers
import hpmoe.testing
from hpmoe.support.keywords import suggests_keywords

MODULES = (hpmoe, hpmoe.router, hpmoe.token_ops, hpmoe.nn, hpmoe.testing, hpmoe.balance, hpmoe.mindformers)
PUBLIC = {f"{module.__name__}.{name}": value for module in MODULES
          for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
MADE_BY_THE_LIBRARY = {"hpmoe.balance.Move", "hpmoe.balance.LoadRow"}


def keywords(f):
    """The names that a call may use; none if a call may use any name."""
    if isinstance(f, type) and issubclass(f, Exception):
        return []
    parameters = inspect.signature(f).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return []
    return [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and len(p.name) > 3]


NAMES = [name for name, f in PUBLIC.items() if name not in MADE_BY_THE_LIBRARY and keywords(f)]


def refused(call, **arguments):
    with pytest.raises(TypeError) as raised:
        call(**arguments)
    return str(raised.value)


def test_cases_are_of_all_kinds():
    assert {"hpmoe.route", "hpmoe.tile_partition", "hpmoe.nn.MoELayer", "hpmoe.Mesh", "hpmoe.token_ops.permute",
            "hpmoe.router.aux_loss", "hpmoe.testing.assert_same", "hpmoe.balance.Balancer"} <= set(NAMES)
    assert len(NAMES) > 70


def test_misspelt_keyword_gets_the_nearest():
    for name in NAMES:
        f = PUBLIC[name]
        who = f.__name__ if isinstance(f, type(hpmoe.tile_partition)) else name
        for keyword in keywords(f):
            misspelt = keyword[:-2] + keyword[-1] + "x"
            assert refused(f, **{misspelt: 1}) == (f"{who}: got an unexpected keyword argument {misspelt!r}; "
                                                   f"did you mean {keyword!r}?")


def test_the_users_line_is_just_above_the_check():
    with pytest.raises(TypeError) as raised:
        hpmoe.Mesh(epp=2)
    frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert frames == ["test_the_users_line_is_just_above_the_check", "checked", "check_keywords"]


def test_an_error_of_the_function_stays_its_own():
    @suggests_keywords
    def f(x):
        raise TypeError("got an unexpected keyword argument")

    assert refused(f, x=1) == "got an unexpected keyword argument"


def test_an_unlike_keyword_gets_all_names():
    assert refused(hpmoe.Mesh, color=2).startswith("hpmoe.Mesh: got an unexpected keyword argument 'color'; expected one of "
                                                   "ep, tp, ")


def test_calls_of_staged_functions_and_cells_suggest_too():
    x = ms.ops.ones((2, 4))
    layer = hpmoe.nn.MoELayer(hidden_size=4, moe_ffn_hidden_size=2, num_moe_experts=2)
    for call, who in ((hpmoe.tile_partition(lambda scaled: scaled * 2.0), "<lambda>"),
                      (hpmoe.spmd(lambda scaled: scaled * 2.0, hpmoe.Mesh(2)), "<lambda>")):
        assert refused(call, scald=x) == f"{who}: got an unexpected keyword argument 'scald'; did you mean 'scaled'?"
    assert refused(layer, hidden_states=x, with_loss=True) == (
        "hpmoe.nn.MoELayer.construct: got an unexpected keyword argument 'with_loss'; did you mean 'with_losses'?")
    assert refused(layer.mask_experts, expert=[1]) == (
        "hpmoe.nn.MoELayer.mask_experts: got an unexpected keyword argument 'expert'; did you mean 'experts'?")
