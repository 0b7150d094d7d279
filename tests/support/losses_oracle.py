"""The losses and counts of a layer from their definitions, over all tokens of all ranks at once, in NumPy and float64."""

import dataclasses

import numpy as np
from router_oracle import aux_loss, counts, z_loss


@dataclasses.dataclass
class Case:
    """Tokens x [B, S, H] of ranks with B / ranks sequences each; the first `num_tokens[rank]` tokens of a rank are real."""

    num_tokens: tuple[int, ...]
    k: int = 2
    score: str = "softmax"
    masked: tuple[int, ...] = ()

    def sequences(self, x):
        """The real tokens of each sequence, [T, H]; sequences of padding have no place here."""
        per_rank = len(x) // len(self.num_tokens)
        for b, sequence in enumerate(x):
            length = len(sequence)
            real = np.clip(self.num_tokens[b // per_rank] - b % per_rank * length, 0, length)
            if real:
                yield sequence[:real]

    def logits(self, tokens, weight):
        """Covers the experts that may be chosen, as if the masked experts did not exist."""
        return tokens @ np.delete(weight, self.masked, axis=0).T

    def loss(self, kind, x, weight, aux, z):
        logits = [self.logits(tokens, weight) for tokens in self.sequences(x)]
        whole = np.concatenate(logits) if logits else np.zeros((0, len(weight)))
        if not len(whole):
            return 0.0
        parts = logits if kind == "seq_aux_loss" else [whole]
        return aux * np.mean([aux_loss(part, self.k, self.score) for part in parts]) + z * z_loss(whole)

    def counts(self, x, weight):
        """The tokens of each expert, masked ones too."""
        left = np.delete(np.arange(len(weight)), self.masked)
        found = np.zeros(len(weight))
        for tokens in self.sequences(x):
            found[left] += counts(self.logits(tokens, weight), self.k, self.score)
        return found


def along(f, at, direction, step=1e-6):
    """The derivative of a scalar function along a direction."""
    return (f(at + step * direction) - f(at - step * direction)) / (2 * step)
