"""What is to be audited, and with what: the two arguments of `audit` beside the data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..attacks import Attack, Decoder
from ..data.auxiliary import Auxiliary
from ..guards import Guard
from ..metrics.lpips import LPIPS
from ..training.facts.link import Link
from ..training.plan.code import outside
from ..training.plan.plan import Plan
from .rows import SCHEMA, Event
from .store import ResultStore


@dataclass(frozen=True)
class AuditSpec:
    """Everything the figures of an audit hang on.

    Args:
        plan: What is trained, with each guard in place of its own.
        guards: The guards that are judged, beside the unguarded cut. One that cannot work with the plan is an error.
        attacks: What is tried against each of them.
        optional_guards: More guards; one that cannot work with the plan is left out and named.
        optional_attacks: More attacks; one that has nothing to find here is left out and named.
        seeds: Everything is repeated with each of them.
        images: How many inputs of the first client are reconstructed and scored.
        auxiliary: What becomes of the images that the plan sets aside for the attacker.
        link: Also say how long training with each guard would take over it.
        alone: Also train clients without a server: what the split is worth hangs on what they reach.
        tries: How often an attack that fails on the unguarded cut is tried there; None: as usual.
    """

    plan: Plan
    guards: Sequence[Guard] = ()  # lists become tuples
    attacks: Sequence[Attack] = (Decoder(),)
    optional_guards: Sequence[Guard] = ()
    optional_attacks: Sequence[Attack] = ()
    seeds: Sequence[int] = (0,)
    images: int = 256
    auxiliary: Auxiliary = Auxiliary()
    link: Link | None = None
    alone: bool = True
    tries: int | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("guards", "attacks", "optional_guards", "optional_attacks", "seeds"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.tries is not None and self.tries < 1:
            raise ValueError(f"--tries is at least 1; got {self.tries}")

    @property
    def identity(self) -> str:
        """What all cells of an audit hang on, for its `ResultStore`. Guard, attack and seed are in a cell's name, and
        so are clients alone: an interrupted audit may go on without a guard that failed, or with one more seed. Code
        from outside the package may change under the same name, so its hash is here."""
        common = repr(
            replace(self, guards=(), attacks=(), optional_guards=(), optional_attacks=(), seeds=(), alone=True)
        )
        code = outside([self.plan, *self.guards, *self.optional_guards, *self.attacks, *self.optional_attacks])
        tries = f" tries={self.tries}" if self.tries is not None else ""
        told = "".join(f" {name} {source.digest}" for name, source in code.items())
        return f"schema {SCHEMA}: {common}{tries}{told}"


def _unseen(event: Event) -> None:
    pass


@dataclass(frozen=True)
class Resources:
    """Where an audit computes, keeps and shows. But for rounding on another device, no figure hangs on it."""

    device: str = "cpu"
    lpips: LPIPS | None = None
    lpips_missing: str | None = None  # why there is none, for the report
    store: ResultStore = field(default_factory=ResultStore)  # what is in it already is not computed again
    on_event: Callable[[Event], None] = _unseen
