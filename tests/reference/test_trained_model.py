"""Example 21: a model of transformers is trained and given back."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.reference
EXAMPLE = Path(__file__).parents[2] / "examples" / "21_train_a_hugging_face_model.py"


def test_transformers_computes_with_trained_blocks():
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("differs from the trained layer by") == 2
