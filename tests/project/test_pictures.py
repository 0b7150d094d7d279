"""Pictures in pages: each is drawn again by the command or the session beside it, and shows the same times."""

import doctest
import re
import shlex

import documents
import pytest
from documents import ROOT
from PIL import Image

from hpmoe import cli


def same_times(drawn, kept):
    """Compares the times in the titles of two pictures, and their sizes; returns the title."""
    with Image.open(drawn) as new, Image.open(ROOT / "examples" / kept) as old:
        assert (new.text["Title"], new.size) == (old.text["Title"], old.size)
        return old.text["Title"]


@pytest.mark.slow
def test_picture_of_readme_is_what_its_command_draws(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (command,) = [c for c in documents.inline_commands("README.md") if "--out=" in c]
    assert cli.main(shlex.split(command)[1:]) == 0
    spans = re.findall(r"([\d.]+ ms) simulated", same_times("picture.png", "unfused_and_fused.png"))
    prose = " ".join(documents.prose_of("README.md").split())
    assert len(spans) == 2 and all(span in prose for span in spans)


@pytest.mark.slow
def test_picture_of_timelines_is_what_its_session_draws(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = documents.blocks_of("hpmoe/timelines/README.md")[0].text
    examples = doctest.DocTestParser().get_doctest(text, {}, "page", "page", 0)
    assert not doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples).failed
    assert "simulated" in same_times("timeline.png", "timeline.png")
