"""An attack gets what the server gets, and nothing else; what it was told beforehand is written down."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..message import Handler, Message
from ..spec import Spec


@dataclass(frozen=True)
class Knowledge:
    """All that an attacker can be told beyond the messages. An attack is handed the fields it names, no others."""

    aux: Tensor | None = None  # images like the victim's, none of them the victim's
    aux_labels: Tensor | None = None
    encode: Callable[[Tensor, Tensor], Tensor] | None = None  # white box: images and labels -> what would be sent
    undo: nn.Module | None = None  # the public map of the guard back to the shape of the cut

    def only(self, names: Sequence[str]) -> "Knowledge":
        """This knowledge without everything that is not in `names`; what is needed and missing is an error."""
        missing = [name for name in names if name in REQUIRED and getattr(self, name) is None]
        if missing:
            raise ValueError(
                f"the attack needs {' and '.join(REQUIRED[name] for name in missing)}, but was not given it"
            )
        return Knowledge(**{name: getattr(self, name) for name in names})


REQUIRED = {
    "aux": "auxiliary images (set some aside: --aux N)",
    "aux_labels": "labels of the auxiliary images",
    "encode": "the client's head and guard (white box)",
}
IN_WORDS = {
    "aux": "auxiliary images of the same kind, disjoint from the private ones",
    "aux_labels": "the auxiliary images' labels",
    "encode": "the client's head, weights included (white box), and its guard",
    "undo": "the guard's public map and seed",
}
assert set(IN_WORDS) == {field.name for field in fields(Knowledge)}


class Attacker:
    """An attack at work. As a watcher it sees every message; a passive one lets them pass."""

    def __call__(self, message: Message, handle: Handler) -> Message:
        return handle(message)

    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        """Images in [0, 1] behind these messages, in order."""
        raise NotImplementedError

    def remarks(self) -> dict[str, object]:
        """What a reader of the table should know of this run, e.g. which reader won."""
        return {}


@dataclass(frozen=True, repr=False)
class Attack(Spec):
    """The description of an attack. `needs` is the list of what its attacker is told."""

    needs: ClassVar[tuple[str, ...]] = ()

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        """Prepare the attack from what it knows. Runs under its own seed."""
        raise NotImplementedError

    def bar(self, data: str, net: str) -> tuple[str, float] | None:
        """(metric, least value) this attack must reach on the unguarded cut of a known setting, if one is known."""
        return None

    def knows(self) -> list[str]:
        return ["what the server receives", *(IN_WORDS[name] for name in self.needs)]


def smashed(messages: Sequence[Message]) -> Tensor:
    """What the server saw of the samples, one row each."""
    return torch.cat([message["z"] for message in messages])
