"""The notebook examples/tour.ipynb: its cells print and draw what is stored with them; `--update-golden` stores it again."""

import ast
import base64
import contextlib
import io
import json
import re
import shlex
import sys
import types

import pytest
from documents import ROOT
from PIL import Image

from hpmoe import cli

PATH = ROOT / "examples" / "tour.ipynb"
MOST_PNG = 60_000


class Picture:
    """IPython.display.Image of a PNG file, where IPython is not installed."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.png = file.read()


def run_cell(source, names):
    """Runs a cell as IPython does, `!hpmoe` commands in this process; returns its outputs as a notebook stores them."""
    source = re.sub(r"^!hpmoe (.*)$", r"_command(\1!)", source, flags=re.MULTILINE)
    source = re.sub(r"_command\((.*)!\)", lambda m: f"_command({m[1]!r})", source)
    *body, last = ast.parse(source).body
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        is_value = isinstance(last, ast.Expr)
        exec(compile(ast.Module([*body, *([] if is_value else [last])], []), "tour", "exec"), names)
        if is_value:
            value = eval(compile(ast.Expression(last.value), "tour", "eval"), names)
    return [*_stream(printed.getvalue()), *_result(value)]


def run_command(text):
    assert cli.main(shlex.split(text)) == 0


def _stream(text):
    return [{"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}] if text else []


def _result(value):
    if value is None:
        return []
    if isinstance(value, Picture):
        data = {"image/png": base64.b64encode(value.png).decode(), "text/plain": ["<IPython.core.display.Image object>"]}
    else:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
    return [{"output_type": "execute_result", "execution_count": None, "data": data, "metadata": {}}]


def comparable(outputs):
    """Outputs with, for a picture, the title that has its time; pixels depend on the version of matplotlib."""
    out = []
    for output in outputs:
        data = dict(output.get("data", {}))
        if png := data.pop("image/png", None):
            with Image.open(io.BytesIO(base64.b64decode(png))) as picture:
                data["picture"] = picture.text["Title"], picture.size
        out.append((output.get("text"), data))
    return out


def load():
    return json.loads(PATH.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_tour_prints_and_draws_what_it_stores(request, monkeypatch, tmp_path):
    notebook, names = load(), {"__name__": "__main__", "_command": run_command}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for module in ("IPython", "IPython.display"):
        monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(Image=Picture, version_info=(9, 0)))
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(codes, 1):
        outputs = run_cell("".join(cell["source"]), names)
        if request.config.getoption("--update-golden"):
            for output in outputs:
                output |= {"execution_count": number} if "execution_count" in output else {}
            cell |= {"execution_count": number, "outputs": outputs}
        assert comparable(cell["outputs"]) == comparable(outputs), "".join(cell["source"])
    if request.config.getoption("--update-golden"):
        PATH.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def test_the_tour_is_small_and_names_no_machine():
    text, notebook = PATH.read_text(encoding="utf-8"), load()
    assert not re.search(r"/(home|root|work|tmp|usr)/", text)
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"} and all(not c["metadata"] for c in notebook["cells"])
    pictures = [data["image/png"] for cell in notebook["cells"] for output in cell.get("outputs", ())
                if "image/png" in (data := output.get("data", {}))]
    assert len(pictures) == 5 and max(len(base64.b64decode(png)) for png in pictures) < MOST_PNG


def test_links_of_the_tour_lead_somewhere():
    words = "".join("".join(cell["source"]) for cell in load()["cells"] if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)\s]+)\)", words)
    assert links and all((PATH.parent / link).exists() for link in links)
