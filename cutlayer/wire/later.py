"""Sizes that hang on what is in a tensor, without waiting for the device it is on: counted there, read later."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor


class Later(NamedTuple):
    """Numbers that a device is still counting, and the bytes that follow from them."""

    facts: tuple[Tensor, ...]  # whole numbers and truth values, gathered no sooner than somebody asks
    size: Callable[[Sequence[int]], int]

    @property
    def numbers(self) -> int:
        """How many there are."""
        return sum(fact.numel() for fact in self.facts)


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
                lengths.append(part.size(own[: part.numbers]))
                del own[: part.numbers]
            else:
                lengths.append(part)
        return size(lengths)

    return Later(tuple(fact for part in waits for fact in part.facts), of_all)


def settled(waiting: Sequence[Later]) -> list[int]:
    """All these sizes. A device is waited for once for whole numbers and once for truth values, however many."""
    numbers = iter(_read([fact for one in waiting for fact in one.facts]))
    return [one.size([number for _ in one.facts for number in next(numbers)]) for one in waiting]


def _read(facts: Sequence[Tensor]) -> list[list[int]]:
    """The numbers in each. Those of one kind come over together: a copy for each would be a wait for each."""
    kinds = [(fact.device, fact.dtype) for fact in facts]
    found: list[list[int]] = [[]] * len(facts)
    for kind in dict.fromkeys(kinds):
        here = [place for place, one in enumerate(kinds) if one == kind]
        row = torch.cat([facts[place].reshape(-1) for place in here]).tolist()
        at = 0
        for place in here:
            found[place] = row[at : at + facts[place].numel()]
            at += facts[place].numel()
    return found
