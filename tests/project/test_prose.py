"""Counts of the prose: first words of docstrings, words that are not written, lengths of pages and of test names."""

import ast
import re

import documents
import pytest

FOLDERS = ("hpmoe", "transforms", "kernels", "examples", "tests")
OPENINGS = re.compile(r"(What|Of|Whether|That|How|Where|The same|So|As|Whatever)\b")
UNWRITTEN = re.compile(r"\b(anew|nobody|whatever|so many|alike|in place of|none of them|as many as there are|be it)\b",
                       re.IGNORECASE)
MOST_OPENINGS = 0.01
LONGEST_NAME = 60
MOST_WORDS, MOST_WORDS_OF_CHANGELOG = 1_500, 2_500


def sources():
    return sorted(path for folder in FOLDERS for path in (documents.ROOT / folder).rglob("*.py"))


def definitions():
    """Yields the path and node of each module, class and function."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield str(path.relative_to(documents.ROOT)), node


def docstrings():
    """Yields the place and text of each docstring."""
    for path, node in definitions():
        if text := ast.get_docstring(node):
            yield f"{path}:{getattr(node, 'lineno', 1)}", text


@pytest.mark.parametrize("text, opens", [("What it does.", True), ("The same rows.", True),
                                         ("Returns what is asked.", False), ("Ascending numbers.", False)])
def test_openings_are_whole_words(text, opens):
    assert bool(OPENINGS.match(text)) == opens


def test_few_docstrings_open_with_a_clause():
    texts = dict(docstrings())
    found = [place for place, text in texts.items() if OPENINGS.match(text)]
    assert len(texts) > 4000 and len(found) <= MOST_OPENINGS * len(texts), found


def test_docstrings_avoid_the_unwritten_words():
    assert [(place, word[0]) for place, text in docstrings() for word in UNWRITTEN.finditer(text)] == []


def test_pages_avoid_the_unwritten_words():
    found = {d: UNWRITTEN.findall(documents.prose_of(d)) for d in documents.documents() if not d.endswith("CHANGELOG.md")}
    assert found and not {document: words for document, words in found.items() if words}


@pytest.mark.parametrize("document", documents.documents())
def test_pages_are_short(document):
    most = MOST_WORDS_OF_CHANGELOG if document.endswith("CHANGELOG.md") else MOST_WORDS
    assert len(documents.text_of(document).split()) <= most


def test_names_of_tests_are_short():
    names = [(path, node.name) for path, node in definitions() if isinstance(node, ast.FunctionDef)
             and node.name.startswith("test_") and path.startswith("tests/")]
    assert names and [found for found in names if len(found[1]) > LONGEST_NAME] == []
