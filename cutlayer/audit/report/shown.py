"""What of an audit a reader is shown: of each guard the row that counts, of the samples some of each class."""

from torch import Tensor

from ..kinds import rebuilt
from ..result import Audit
from ..rows import Row
from ..verdicts import guards_of, over_seeds, strongest, total_bytes

SHOWN = 10  # pictures in a line of the grid


def shown_rows(audit: Audit) -> list[Row]:
    """The strongest attacker of each guard under the seed whose truth is kept."""
    own = [row for row in audit.rows if row["seed"] == audit.seed]
    return [row for guard in guards_of(audit.rows) if (row := counted(own, guard)) is not None]


def counted(rows: list[Row], guard: str) -> Row | None:
    """The row of a guard; where no attack on it is valid, the first one, which is shown as failed."""
    tried = [row for row in rows if row["guard"] == guard and rebuilt(row)]
    return strongest(rows, guard) or next(iter(tried), None)


def cost(rows: list[Row], guard: str) -> dict[str, float]:
    """Accuracy, and the bytes a sample costs: means over the seeds."""
    own = [row for row in rows if row["guard"] == guard]
    return {
        "accuracy": over_seeds(own, lambda row: row["accuracy"]),
        "up": over_seeds(own, lambda row: row["bytes_up"]),
        "down": over_seeds(own, lambda row: row["bytes_down"]),
        "bytes": over_seeds(own, total_bytes),
    }


def several_seeds(audit: Audit) -> bool:
    return len({row["seed"] for row in audit.rows}) > 1


def one_of_each(labels: Tensor) -> list[int]:
    """Row numbers, ordered so that the first ones show every class once."""
    if labels.dim() > 1:  # of pixels
        return list(range(len(labels)))
    times: dict[int, int] = {}
    order = []
    for row, label in enumerate(labels.tolist()):
        times[label] = times.get(label, 0) + 1
        order.append((times[label], label, row))
    return [row for _, _, row in sorted(order)]
