"""PCAT (Gao & Zhang 2023): a pseudo-client that learns the task behind the server's own body, and nothing more."""

from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import torch

from ..nets.base import check_choice
from .base import EVERY, Attacker, Knowledge
from .parts.simulation import SIZES, Simulating, Simulation
from .parts.viewing import Viewing


@dataclass(frozen=True, repr=False)
class PCAT(Viewing):
    """Passive: a pseudo-client learns the task behind the server's own body, and a decoder inverts it.

    It is SDAR without critics, conditions and flipped labels. Where labels travel, its batches have the labels of the
    observed ones. A `private_share` of the victim's labelled images joins the auxiliary ones, as in FORA's comparison
    (0.05 for CIFAR-10, 0.1 for CelebA); the judge scores others.
    """

    steps: int = 400
    width: int = 16  # a quarter of the decoder's
    hidden: int = 512  # of the MLP reader
    batch: int = 64
    rate: float = 1e-3
    decoder_rate: float = 2e-3
    structure: float = 0.1
    private_share: float = 0.0
    reader: str = "auto"
    alongside: bool = False  # as published; else it learns from the end of the training
    knows: str = EVERY
    quick_forms: ClassVar[tuple[str, ...]] = Simulation.quick_forms

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.private_share < 1:
            raise ValueError(f"{self}: private_share is a share of the victim's images, from 0 to below 1")
        self.simulation()  # refuses whatever else cannot be

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        needs = self.simulation().needs
        return (*needs, "private") if self.private_share else needs

    @classmethod
    def sized(cls, budget: str) -> Self:
        """The sizes that SDAR has at this budget."""
        check_choice("budget", budget, tuple(SIZES))
        own = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in SIZES[budget].items() if name in own})

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        if knowledge.private is not None:
            assert knowledge.aux is not None and knowledge.aux_labels is not None
            images, labels = knowledge.private
            # Behind the others: the first ones are held out.
            knowledge = replace(
                knowledge,
                aux=torch.cat([knowledge.aux, images.to(knowledge.aux)]),
                aux_labels=torch.cat([knowledge.aux_labels, labels.to(knowledge.aux_labels)]),
            )
        return Simulating(self.simulation(), knowledge, seed)

    def simulation(self) -> Simulation:
        same = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "private_share"}
        return Simulation(**same, lambda1=0.0, lambda2=0.0, conditional=False, flip=0.0, aligned=True)
