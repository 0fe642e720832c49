"""Words tried in the text around them: behind attention, what is sent for a word hangs on all others."""

from collections.abc import Callable

import torch
from torch import Tensor

APART = 8  # places between two that are tried at the same time: they hardly disturb each other


def best_in_context(best: Tensor, words: Tensor, error: Callable[[Tensor], Tensor]) -> Tensor:
    """Texts (N, length) with each place set to whichever of its candidates (N, length, candidates) explains what was
    sent for it best. `error` says of whole texts how badly each place is explained."""
    places = torch.arange(best.shape[1], device=best.device) % APART
    for group in range(min(APART, best.shape[1])):
        there = places == group
        chosen, least = best, error(best)
        for word in words.unbind(2):
            explained = error(torch.where(there, word, best))
            closer = there & (explained < least)
            chosen, least = torch.where(closer, word, chosen), torch.where(closer, explained, least)
        best = chosen
    return best
