"""Go a part of the way to the mean."""

from dataclasses import dataclass

from cutlayer.rules import Merging, like


@dataclass(frozen=True, repr=False)
class HalfWay(Merging):
    """A share of the way from here to the mean of what clients bring."""

    share: float = 0.5

    def step(self, name, now, g, current):
        return {f"net.{name}": like(now, now.double() - self.share * g)}
