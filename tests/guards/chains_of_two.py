"""What every chain of two guards sends, in bytes, or why there is none: python tests/guards/chains_of_two.py

Run as a program it writes docs/evidence/chains.json and chains.md; the test beside it holds the laws.
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from toys import ALL_GUARDS, TASK, cut_of

from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import seeded
from cutlayer.guards import Chain, Guard
from cutlayer.training.laws import toy_batch
from cutlayer.wire import frames

ROWS, PICTURES = 32, 6
FOLDER = Path(__file__).parents[2] / "docs" / "evidence"
COMMAND = "python tests/guards/chains_of_two.py"


class Pair(NamedTuple):
    first: Guard
    second: Guard
    alone: int  # bytes of what the first one sends by itself
    size: int | None  # of both; None: refused
    why: str = ""

    @property
    def grows(self) -> bool:
        """Whether a second part that is only there for fewer bytes makes them more."""
        return self.size is not None and self.second.only_compresses and self.size > self.alone


def sent_bytes(guard: Guard) -> int:
    """The frame of one batch: numbers around 0 at the toys' cut, or pictures."""
    shape = cut_of(guard.stages()[0])
    rows = PICTURES if shape == TASK.shape else ROWS
    with seeded(0):
        z = torch.rand(rows, *shape) if shape == TASK.shape else torch.randn(rows, *shape)
        module = guard.build(shape, 1, 2, TASK)
        seen = module(z, toy_batch(TASK, rows)).seen.detach()
    packed = {"z": module.packed} if module.packed is not None else {}
    return frames.size(Message(Kind.FORWARD, 0, 0, {"z": seen}, packed))


def pairs(first: Guard, seconds: list[Guard]) -> list[Pair]:
    """`first` with each of them behind it. A chain is refused when it is written, or when it meets its cut."""
    alone, found = sent_bytes(first), []
    for second in seconds:
        try:
            chain = Chain(first, second)
            chain.out_shape(cut_of(first))
        except ValueError as error:
            found.append(Pair(first, second, alone, None, str(error)))
        else:
            found.append(Pair(first, second, alone, sent_bytes(chain)))
    return found


def one_of_a_kind() -> list[Guard]:
    """The first of each guard in the tests' table."""
    return list({type(guard): guard for guard in reversed(ALL_GUARDS) if len(guard.stages()) == 1}.values())[::-1]


def written() -> None:
    guards = one_of_a_kind()
    table = {first: pairs(first, guards) for first in guards}
    rows = [
        {"first": repr(first), "second": repr(pair.second), "alone": pair.alone, "bytes": pair.size, "why": pair.why}
        for first, found in table.items()
        for pair in found
    ]
    (FOLDER / "chains.json").write_text(
        json.dumps({"command": COMMAND, "rows": ROWS, "pairs": rows}, indent=1) + "\n"
    )
    refused = sum(row["bytes"] is None for row in rows)
    compressors = [guard for guard in guards if guard.only_compresses]
    lines = [
        "# Chains of two",
        "",
        f"[chains.json](chains.json), written by `{COMMAND}`: every guard of the tests behind every other,",
        f"with the bytes of one message of {ROWS} rows of 4 x 5 x 5 ({PICTURES} pictures of 1 x 12 x 12), or the",
        f"sentence that refuses the chain. Of {len(rows)} chains {refused} are refused. Below are those whose second",
        "part is only there for fewer bytes; – is a refusal. None is larger than the first part alone, which",
        "`tests/guards/test_chains_of_two.py` holds for more settings of each.",
        "",
        "| behind | alone | " + " | ".join(f"`{type(one).__name__}`" for one in compressors) + " |",
        "|---|---|" + "---|" * len(compressors),
    ]
    for first, found in table.items():
        cells = [f"{pair.size:,}" if pair.size is not None else "–" for pair in found if pair.second.only_compresses]
        lines.append(f"| `{first!r}` | {found[0].alone:,} | " + " | ".join(cells) + " |")
    (FOLDER / "chains.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    written()
