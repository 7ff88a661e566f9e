"""Is the head of a reward model trained? Compared with heads drawn at random on the same model: whatever the data, that
is exact, because an untrained head knows nothing of them."""

from __future__ import annotations

from typing import Any

import numpy as np

DRAWS = 2000


class Head:
    """The layer that makes a score of a text's state, watched: the linear layer with one output that ran last."""

    def __init__(self, model: Any) -> None:
        from torch import nn

        self._ran: tuple[Any, Any, Any] | None = None
        for layer in model.modules():
            if isinstance(layer, nn.Linear) and layer.out_features == 1:
                layer.register_forward_hook(self._keep)

    def _keep(self, layer: Any, given: tuple[Any, ...], output: Any) -> None:
        self._ran = (layer, given[0].detach(), output.detach())

    def states(self, scores: Any) -> np.ndarray | None:
        """What the head has read of each text (texts by width), for the scores of the last batch; None if there is no
        such layer, or its output is not the score."""
        import torch

        if self._ran is None:
            return None
        _, given, output = self._ran
        if given.ndim == 3:  # at every token; the score is that of one
            at = (output[..., 0] - scores[:, None]).abs().argmin(1)
            rows = torch.arange(len(at), device=at.device)
            given, output = given[rows, at], output[rows, at]
        if given.ndim != 2 or not torch.allclose(output[:, 0].float(), scores.float(), atol=1e-4, rtol=1e-3):
            return None
        return np.asarray(given.float().cpu(), dtype=np.float64)

    @property
    def weights(self) -> np.ndarray:
        """The layer's, once it has run."""
        assert self._ran is not None
        return np.asarray(self._ran[0].weight.detach().float().cpu()[0], dtype=np.float64)


def untrained(weights: np.ndarray, better: np.ndarray, worse: np.ndarray) -> float:
    """The share of random heads that tell these texts apart as well: by the mean difference of their scores relative to
    the head's length, or by how many pairs they order alike, whichever is the rarer, both ways round. A head whose
    training shaped the model, too, stands out in the first, one that was fitted to a finished model in the second.
    `better`, `worse`: pairs by width, what the head reads of them."""
    differences = better - worse
    drawn = np.random.default_rng(0).normal(size=(DRAWS, len(weights)))
    mean = differences.mean(axis=0)

    def apart(heads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sides = np.sign(heads @ differences.T).mean(axis=1)
        return np.abs(heads @ mean) / np.linalg.norm(heads, axis=1), np.abs(sides)

    own, others = apart(weights[None, :]), apart(drawn)
    rarer = min(float((other >= one).sum() + 1) / (DRAWS + 1) for one, other in zip(own, others, strict=True))
    return min(1.0, 2 * rarer)
