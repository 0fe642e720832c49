"""Step by the sign of the mean move."""

from dataclasses import dataclass

from cutlayer.rules import Merging, like


@dataclass(frozen=True, repr=False)
class SignSGD(Merging):
    """The sign of the mean move: x − η sign(g)."""

    lr: float = 0.001

    def step(self, name, now, g, current):
        return {f"net.{name}": like(now, now.double() - self.lr * g.sign())}
