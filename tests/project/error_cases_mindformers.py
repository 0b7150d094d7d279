"""More of error_cases.py: hpmoe.mindformers where there is no MindFormers."""

import sys
from unittest import mock

from error_cases import cases

import hpmoe


def _without_mindformers():
    with mock.patch.dict(sys.modules, {"mindformers": None}):
        hpmoe.mindformers.enable()


cases("mindformers.enable", {
    "without MindFormers": _without_mindformers,
    "no transform": lambda: hpmoe.mindformers.enable(transforms="fused"),
    "a mesh by its size": lambda: hpmoe.mindformers.enable(mesh=2),
})
