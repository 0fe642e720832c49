"""SDAR (Zhu et al. 2023): a simulated client behind the server's own body; a critic makes it send like the victim."""

from dataclasses import dataclass
from typing import ClassVar

from ..core.batch import Task
from .base import Attack
from .parts.simulation import Simulation


@dataclass(frozen=True, repr=False)
class SDAR(Simulation):
    """Passive: a simulated client learns the task behind the server's own body, and a critic makes it send alike.

    A decoder learns to invert the simulator and is applied to the victim's messages. Where labels travel, decoder and
    critics are told them (`conditional`); in the U shape the attacker trains a tail of its own, on labels of which a
    share `flip` is drawn at random. `lambda1` weights the critic of messages, `lambda2` that of images (0: none).
    """


@dataclass(frozen=True, repr=False)
class SDARLabels(SDAR):
    """Labels that stayed home, by SDAR's simulated client and tail: the tail reads what the body makes of a message.

    The same attacker as SDAR, without a decoder. Its auxiliary images are labelled: it knows what classes are called.
    """

    secret: ClassVar[str] = "labels"

    @classmethod
    def suite(cls, budget: str, task: Task, labels_stay_home: bool) -> list[Attack]:
        return [cls.sized(budget)] if labels_stay_home and budget != "quick" else []
