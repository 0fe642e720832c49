"""What records, series and texts that an attacker rebuilt are worth: the figures of a row of the audit."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.base import Parts
from ..metrics import columns, series, texts
from ..metrics.images import FIGURES
from .rows import Scores
from .uncertainty import sampled


class Worth(NamedTuple):
    """Figures of all samples together, and one score a sample."""

    figures: dict[str, Any]
    each: Tensor


def worth(truth: Tensor, guess: Tensor, data: Parts, units: Sequence[int] | None = None) -> Worth:
    """Of records (N, features), series (N, channels, length) or texts (N, length), which are whole numbers."""
    if not truth.is_floating_point():
        words = None if data.aux.tokenizer is None else data.aux.tokenizer.words
        striking = texts.striking_tokens(data.aux.vocabulary, data.aux.x, words)
        named = texts.names(truth, guess, striking)
        own = (
            None
            if units is None
            else [unit for unit, there in zip(units, named.there.tolist(), strict=True) if there]
        )
        each_name: dict[str, Any] = {"names_each": sampled(named.found, own)} if len(named.found) else {}
        return Worth({**texts.scores(truth, guess, striking), **each_name}, texts.token_accuracy(truth, guess))
    if truth.dim() == 3:
        return Worth(dict(series.scores(truth, guess)), series.correlation_either(truth, guess))
    found = columns.cells(truth, guess, columns.Limits.of(data.aux.images().to(truth.device), data.aux.columns))
    told = {"columns": columns.by_column(found, units), "still": list(found.still)}
    return Worth({**columns.scores(found), **told}, found.records)


def of_column(name: str) -> str:
    """What a floor's figure for one column is called."""
    return f"skill of {name}"


def figures_of(truth: Tensor, guess: Tensor, data: Parts) -> Scores:
    """The figures of a floor: single ones, and one a column. Those of pictures are there and empty."""
    found = worth(truth, guess, data).figures
    single = {name: value for name, value in found.items() if isinstance(value, float)}
    each = {of_column(one["name"]): one["skill"] for one in found.get("columns", ())}
    return {**dict.fromkeys(FIGURES), **single, **each}


def spread(truth: Tensor, guess: Tensor) -> float:
    """How much the guesses vary from sample to sample, in units of the truth's own: 0, they are all the same."""
    if len(guess) < 2:
        return float("nan")
    own, wanted = (rows.double().flatten(1).std(0, correction=0).mean() for rows in (guess, truth))
    return float(own / wanted.clamp_min(torch.finfo(torch.float64).tiny))
