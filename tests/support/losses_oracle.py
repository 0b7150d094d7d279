"""The losses and counts of a layer from their definitions, over all tokens of all ranks at once, in NumPy and float64."""

import dataclasses

import numpy as np


def probabilities(z, score):
    """[T, E], adding up to 1 for each token."""
    if score == "softmax":
        s = np.exp(z - z.max(1, keepdims=True))
    else:
        s = 1 / (1 + np.exp(-z)) if score == "sigmoid" else np.sqrt(np.logaddexp(0, z))
    return s / s.sum(1, keepdims=True)


def top_k(z, k):
    """1 for the k largest of each row, [T, E]."""
    return (np.argsort(np.argsort(-z, axis=1), axis=1) < k).astype(np.float64)


def aux_loss(z, k, score):
    """E / (K T^2) sum_i n_i sum_t p_ti."""
    (tokens, experts), n = z.shape, top_k(z, k).sum(0)
    return experts / (k * tokens**2) * (n * probabilities(z, score).sum(0)).sum() if tokens else 0.0


def z_loss(z):
    """1 / T sum_t logsumexp(z_t)^2."""
    largest = z.max(1, initial=-np.inf)
    return ((np.log(np.exp(z - largest[:, None]).sum(1)) + largest) ** 2).mean() if len(z) else 0.0


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
        balance = (np.mean([aux_loss(part, self.k, self.score) for part in logits or [whole]]) if kind == "seq_aux_loss"
                   else aux_loss(whole, self.k, self.score))
        return aux * balance + z * z_loss(whole)

    def counts(self, x, weight):
        """The tokens of each expert, masked ones too."""
        left = np.delete(np.arange(len(weight)), self.masked)
        found = np.zeros(len(weight))
        for tokens in self.sequences(x):
            found[left] += top_k(self.logits(tokens, weight), self.k).sum(0)
        return found


def along(f, at, direction, step=1e-6):
    """The derivative of a scalar function along a direction."""
    return (f(at + step * direction) - f(at - step * direction)) / (2 * step)
