"""HTML that notebooks show of programs, taskflows, timelines, plans and memory."""

from html.parser import HTMLParser

import pytest
from simulated_layers import NPU

import hpmoe

AVALS = [hpmoe.ShapeDtypeStruct(shape, dtype) for shape, dtype in (
    ((256, 256), "bfloat16"), ((256, 2), "int32"), ((256, 2), "float32"), ((4, 256, 256), "bfloat16"),
    ((4, 128, 256), "bfloat16"))]
TWO = hpmoe.Mesh(2)
TILED = hpmoe.overlap_comm(hpmoe.tile_partition(hpmoe.moe_ffn, machine=NPU))


class Text(HTMLParser):
    """The words of a page, and the tags that were left open."""

    def __init__(self, html):
        super().__init__()
        self.words, self.open = "", []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        assert tag != "script"
        if tag != "rect":
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag != "rect":
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data + "\n"


def test_ir_is_shown_as_its_text_and_long_text_is_folded():
    for ir in (hpmoe.trace(hpmoe.moe_ffn, *AVALS, mesh=TWO), TILED.lower(*AVALS, mesh=TWO)):
        page = Text(ir._repr_html_())
        lines = [line for line in page.words.splitlines() if line and not line.endswith("more lines")]
        assert page.open == [] and lines == [line for line in str(ir).splitlines() if line]
        assert ("<details>" in ir._repr_html_()) == (len(str(ir).splitlines()) > 30)


def test_reports_are_shown_as_tables():
    program = hpmoe.trace(hpmoe.moe_ffn, *AVALS, mesh=TWO)
    trials = hpmoe.tuning.compare_plans(program, machine=NPU, budget=2, fixed={"scheme": "direct"})
    for report in (TILED.memory(*AVALS, mesh=TWO), trials):
        page = Text(report._repr_html_())
        assert page.open == [] and set(str(report).split()) <= {*page.words.split(), "*", "chosen:"}
        assert report._repr_html_().startswith("<table>")


@pytest.mark.parametrize("text", ["a < b & c"])
def test_text_is_escaped(text):
    from hpmoe.support.notebook import NotebookText

    shown = type("Shown", (NotebookText,), {"__str__": lambda self: text})()
    assert Text(shown._repr_html_()).words.strip() == text and "a &lt; b" in shown._repr_html_()
