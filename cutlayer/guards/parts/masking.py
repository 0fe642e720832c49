"""PRISM's masker: a score for every coordinate of a cut, and the binary mask that a threshold makes of the scores."""

from math import prod
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from ...core.guard import Shape

SCORES = ("hybrid", "channel", "spatial")
THRESHOLDS = ("topk", "fixed", "learned", "statistical")
WIDTH = 16


class Mask(NamedTuple):
    """1 where a coordinate leaves. `soft` is the smooth mask whose gradient stands for that of the hard one."""

    hard: Tensor  # of booleans, in the shape of the cut
    soft: Tensor  # in the shape of the scores: one value a channel, or one a coordinate
    logits: Tensor  # soft = sigmoid(logits)

    def lever(self) -> Tensor:
        """Exactly 0, with the gradient of `soft`: hard + lever is the straight-through mask (thesis, Sec. 3.3.3).

        In this order: (hard + soft) - soft would not be 0 or 1 any more, for rounding.
        """
        return self.soft - self.soft.detach()

    def share(self) -> Tensor:
        """The share of coordinates that leave, with the straight-through gradient."""
        return self.hard.to(self.soft.dtype).mean() + self.lever().mean()

    def entropy(self) -> Tensor:
        """Mean entropy of the soft mask in nats, 0 where it is all zeros and ones: log(1 + e^l) - l σ(l)."""
        return (softplus(self.logits) - self.logits * self.soft).mean()


class Masker(nn.Module):
    """Two 3x3 convolutions, then scores: per channel from averages, per coordinate from a 1x1, or a mix of both.

    There is no BatchNorm: the mask of a sample is a function of that sample alone.
    """

    def __init__(self, shape: Shape, keep: float, score: str, threshold: str):
        super().__init__()
        self.keep, self.threshold = keep, threshold
        channels = shape[0]
        self.trunk = nn.Sequential(
            nn.Conv2d(channels, WIDTH, 3, padding=1), nn.ReLU(), nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.ReLU()
        )
        self.channel = None if score == "spatial" else nn.Linear(WIDTH, channels)
        self.spatial = None if score == "channel" else nn.Conv2d(WIDTH, channels, 1)
        self.score_weight = nn.Parameter(torch.zeros(())) if score == "hybrid" else None
        # Scores have a bias, so no other start of the threshold would say more than 0.
        self.tau = nn.Parameter(torch.zeros(())) if threshold == "learned" else None
        self.count = kept_scores(shape, keep, score)

    def forward(self, z: Tensor, temperature: float) -> Mask:
        scores = self.scores(z)
        tau, hard = self.cut(scores.flatten(1))
        logits = (scores - tau.reshape(-1, 1, 1, 1)) / temperature
        return Mask(hard.reshape(scores.shape).expand_as(z), logits.sigmoid(), logits)

    def scores(self, z: Tensor) -> Tensor:
        """n x C x 1 x 1 for scores by channel, n x C x H x W otherwise."""
        seen = self.trunk(z)
        if self.channel is None:
            assert self.spatial is not None
            return self.spatial(seen)
        by_channel = self.channel(seen.mean((2, 3)))[:, :, None, None]
        if self.spatial is None:
            return by_channel
        assert self.score_weight is not None
        weight = self.score_weight.sigmoid()
        return weight * by_channel + (1 - weight) * self.spatial(seen)

    def cut(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """(threshold, which scores pass it), row by row.

        Only a learned threshold has a gradient; the others are read off the scores. A score that equals its
        threshold stays home: where all scores are alike, nothing leaves. (Top-k sends its k even then.)
        """
        if self.threshold == "topk":
            # Sorted, not compared with the k-th score: ties would let more than k through. Stable: the same ones.
            values, places = scores.detach().sort(dim=1, descending=True, stable=True)
            hard = torch.zeros_like(scores, dtype=torch.bool).scatter(1, places[:, : self.count], True)
            return values[:, self.count - 1], hard
        tau = self._tau(scores)
        return tau, scores > tau.reshape(-1, 1)

    def _tau(self, scores: Tensor) -> Tensor:
        if self.tau is not None:
            return self.tau
        if self.threshold == "fixed":
            return scores.new_zeros(())
        # So many standard deviations above the mean that `keep` of normal scores would pass.
        above = NormalDist().inv_cdf(1 - self.keep)
        with torch.no_grad():
            return scores.mean(1) + above * scores.std(1, correction=0)


def kept_scores(shape: Shape, keep: float, score: str) -> int:
    """How many scores of a sample top-k lets pass: the share `keep` of all, but at least one and never every one."""
    count = shape[0] if score == "channel" else prod(shape)
    return min(count - 1, max(1, round(keep * count)))
