"""What a rule asks of the clients themselves: a term added to their gradients, against drifting apart."""

from collections.abc import Mapping

from torch import Tensor, nn


class Correction:
    """One client's half of a rule. Parameters go by the names of `named_parameters()`, without "net.".

    A turn is `start`, then `adjust` before each step of the optimizer, then `brought`.
    """

    def start(self, parameters: Mapping[str, nn.Parameter], state: Mapping[str, Tensor]) -> None:
        """A turn begins and the weights are loaded; `state` is what the order carries ("net.", "control.")."""

    def adjust(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Add the rule's term to the gradients, right before the optimizer's step."""

    def brought(self, parameters: Mapping[str, nn.Parameter], steps: int, lr: float) -> dict[str, Tensor]:
        """What else travels back with the weights, after `steps` steps at the rate `lr`."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """What this client must keep from one turn of its own to the next."""
        return {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up what `tensors` returned earlier."""


def add_to_gradient(parameter: nn.Parameter, term: Tensor) -> None:
    """Parameters that the last batch did not touch count as having gradient zero."""
    if parameter.requires_grad:
        term = term.to(parameter)
        parameter.grad = term.clone() if parameter.grad is None else parameter.grad + term
