"""A finished audit: the table, and the pictures behind it."""

from dataclasses import dataclass, field
from statistics import mean

from torch import Tensor

from ..core.columns import Column
from ..core.html import table
from ..training.plan.plan import Plan
from .rows import SCHEMA, AloneRow, AuditData, Floors, PoisonRow, Row, UntriedRow, Verdict
from .verdicts import guards_of, verdict


@dataclass
class Audit:
    """The table and the pictures behind it."""

    plan: Plan
    floors: Floors
    truth: Tensor  # private images of the first seed
    labels: Tensor
    lpips_missing: str | None = None
    left_out: dict[str, str] = field(default_factory=dict)  # guards that do not fit this plan, and why
    rows: list[Row] = field(default_factory=list)
    pictures: dict[str, Tensor] = field(
        default_factory=dict
    )  # by `picture_key`: what the first seed's rows made of `truth`
    secrets: tuple[str, ...] = ()  # those that the verdicts go by; none: all that were tried
    not_tried: list[UntriedRow] = field(default_factory=list)  # attacks that lacked something for their work
    failed: list[str] = field(default_factory=list)  # cells that an error has ended: where they lack it is told
    poisoned: list[PoisonRow] = field(default_factory=list)  # a row a training with malicious clients
    alone: list[AloneRow] = field(default_factory=list)  # what clients reach without a server; two rows a seed
    columns: tuple[Column, ...] = ()  # of `truth`, where that is a table whose columns have names
    words: tuple[str, ...] = ()  # by token id, where `truth` is texts and its tokenizer is known

    @property
    def seed(self) -> int:
        """The one whose truth and pictures are kept."""
        return self.rows[0]["seed"]

    def verdicts(self) -> list[Verdict]:
        """A verdict a guard, the unguarded cut first."""
        return [verdict(self.rows, self.floors, guard, self.secrets) for guard in guards_of(self.rows)]

    def _repr_html_(self) -> str:
        """In a notebook: the verdicts, with accuracy beside what is left of the leak."""
        reached = {
            guard: [row["accuracy"] for row in self.rows if row["guard"] == guard] for guard in guards_of(self.rows)
        }
        rows = [(one.guard, one.graded, one.leak, mean(reached[one.guard])) for one in self.verdicts()]
        return table(("guard", "verdict", "leak left", "accuracy"), rows, title=repr(self.plan))

    def as_dict(self) -> AuditData:
        return {
            "schema": SCHEMA,
            "plan": repr(self.plan),
            "floors": self.floors,
            "rows": self.rows,
            "poisoned": self.poisoned,
            "alone": self.alone,
            "left_out": self.left_out,
            "not_tried": self.not_tried,
            "failed": self.failed,
            "lpips_missing": self.lpips_missing,
            "secrets": list(self.secrets),
        }
