"""Sizes that hang on what is in a tensor, without waiting for the device it is on: counted there, read later."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor


class Later(NamedTuple):
    """Numbers that a device is still counting, and the bytes that follow from them."""

    facts: Tensor  # whole numbers in a row
    size: Callable[[Sequence[int]], int]


@runtime_checkable
class CountedThere(Protocol):
    """Prepared bytes whose number can be told later as well."""

    def size_later(self) -> "int | Later": ...


def together(parts: Sequence["int | Later"], size: Callable[[Sequence[int]], int]) -> "int | Later":
    """`size` of what several parts come to; now where all of them are known."""
    waits = [part for part in parts if isinstance(part, Later)]
    if not waits:
        return size([part for part in parts if isinstance(part, int)])

    def of_all(facts: Sequence[int]) -> int:
        own, lengths = list(facts), []
        for part in parts:
            if isinstance(part, Later):
                lengths.append(part.size(own[: len(part.facts)]))
                del own[: len(part.facts)]
            else:
                lengths.append(part)
        return size(lengths)

    return Later(torch.cat([part.facts for part in waits]), of_all)


def settled(waiting: Sequence[Later]) -> list[int]:
    """All these sizes. One wait for each device, whatever the number of sizes."""
    found: list[int] = [0] * len(waiting)
    for device in dict.fromkeys(one.facts.device for one in waiting):
        here = [place for place, one in enumerate(waiting) if one.facts.device == device]
        facts = torch.cat([waiting[place].facts for place in here]).tolist()
        for place in here:
            count = len(waiting[place].facts)
            found[place], facts = waiting[place].size(facts[:count]), facts[count:]
    return found
