"""One MoE-FFN as files on disk, the input of every side of a comparison.

Imports nothing but NumPy, so that a worker can use it without importing hpmoe and with it MindSpore.
"""

from __future__ import annotations

import dataclasses
import json
from functools import cached_property
from pathlib import Path

import numpy as np

SIZES = ("ep", "tokens", "hidden", "intermediate", "experts", "top_k")
PASSES = ("forward", "forward + backward")
LIMITS = ("matmul", "read")  # what a machine does at most, also passes of sides
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
RESULTS = ("output", "hidden_states", "topk_weights", "gate_up_weight", "down_weight")  # the gradients are named by argument


@dataclasses.dataclass(frozen=True)
class LayerProblem:
    """Sizes of the layer and the folder with its arrays; N = ep * tokens, all ranks' tokens one after another.

    Arrays, float32 holding values of `dtype`: hidden_states [N, H], topk_ids [N, K] int32, topk_weights [N, K],
    gate_up_weight [E, H, 2I], down_weight [E, I, H], cotangent [N, H].
    """

    folder: Path
    dtype: str
    ep: int
    tokens: int
    hidden: int
    intermediate: int
    experts: int
    top_k: int

    @staticmethod
    def read(folder: str | Path) -> LayerProblem:
        folder = Path(folder)
        return LayerProblem(folder, **json.loads((folder / "problem.json").read_text(encoding="utf-8")))

    def write(self, arrays: dict[str, np.ndarray]) -> None:
        for name, array in arrays.items():
            np.save(self.folder / f"{name}.npy", array)
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "folder"}
        (self.folder / "problem.json").write_text(json.dumps(fields), encoding="utf-8")

    def array(self, name: str) -> np.ndarray:
        return np.load(self.folder / f"{name}.npy")

    @property
    def num_tokens(self) -> int:
        return self.ep * self.tokens

    @property
    def flops(self) -> dict[str, int]:
        """Floating-point operations of the matmuls of each pass: two forward, four more backward."""
        forward = 6 * self.num_tokens * self.top_k * self.hidden * self.intermediate
        return {"forward": forward, "forward + backward": 3 * forward}

    @property
    def weight_bytes(self) -> dict[str, int]:
        """Bytes of weights in each pass: experts with rows are read once each way, and all gradients are written."""
        expert = 3 * self.hidden * self.intermediate * ITEM_BYTES[self.dtype]
        read = len(self.slices) * expert
        return {"forward": read, "forward + backward": 2 * read + self.experts * expert}

    # The routing is fixed, so what follows from it is known before the first run.

    @cached_property
    def order(self) -> np.ndarray:
        """[N*K]: entry i of topk_ids, flattened, that is row order[i] of the rows sorted by expert."""
        return np.argsort(self.array("topk_ids").reshape(-1), kind="stable").astype(np.int32)

    @cached_property
    def rows(self) -> np.ndarray:
        """[N*K]: the token of each sorted row."""
        return self.order // np.int32(self.top_k)

    @cached_property
    def places(self) -> np.ndarray:
        """[N, K]: where the rows of each token are among the sorted ones."""
        return np.argsort(self.order, kind="stable").astype(np.int32).reshape(self.num_tokens, self.top_k)

    @cached_property
    def counts(self) -> list[int]:
        """Rows of each expert."""
        return np.bincount(self.array("topk_ids").reshape(-1), minlength=self.experts).tolist()

    @property
    def slices(self) -> list[tuple[int, slice]]:
        """(expert, its sorted rows) for every expert that has some."""
        ends = np.cumsum(self.counts).tolist()
        return [(e, slice(end - n, end)) for e, (n, end) in enumerate(zip(self.counts, ends, strict=True)) if n]
