"""Where a client stood when its detectors or its books stopped it, and that it stays so until a person has read why.

halted.safetensors   everything of the client's at that step
halted.json          why, when, and the scores over time; while it lies there nothing goes on from this folder
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core.errors import Halt, OffPlan
from ..training import checkpoint

MARK = "halted.json"


def lay_down(
    folder: Path, halt: Halt, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], found: Sequence[Any]
) -> Halt:
    """Keep the state, then the mark, each whole or not there; returns what to tell the user."""
    checkpoint.save(folder / "halted.safetensors", tensors, facts)
    why = {
        "why": str(halt),
        "exit_code": halt.exit_code,
        "step": facts.get("step", facts.get("steps")),
        "detectors": list(found),
    }
    checkpoint.write_text(folder / MARK, json.dumps(why, indent=1))
    return type(halt)(f"{halt}. Its state is in {folder}, {_shown(halt)} in {MARK}")


def refuse_halted(folder: Path) -> None:
    """A run that was stopped goes on only if a person says so, by taking the mark away."""
    if (folder / MARK).exists():
        mark = json.loads((folder / MARK).read_text())
        stopped = OffPlan if mark.get("exit_code") == OffPlan.exit_code else Halt
        by = "by what the server asked for" if stopped is OffPlan else "by a detector"
        raise stopped(
            f"{folder} was stopped {by} and does not go on by itself ({mark['why']}). If you trust the server all "
            f"the same, delete {folder / MARK} and try again"
        )


def _shown(halt: Halt) -> str:
    return "this" if isinstance(halt, OffPlan) else "the scores"
