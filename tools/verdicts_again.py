"""The verdicts of kept audits by today's rules: what their rows still allow to be said, without any new training.

    python tools/verdicts_again.py docs/evidence/attacks-quick.json [--write]

Rows of older audits lack what newer ones keep. Whether an attack was a white box and worked at its default strength
follows from its name; scores of single images do not, so nothing of theirs can be graded well. --write puts the
verdicts into the file.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cutlayer.audit.verdicts import guards_of, verdict
from cutlayer.core.spec import spec


def completed(row: dict[str, Any]) -> dict[str, Any]:
    """A row with those fields that follow from the others."""
    attack = spec(row["attack"], "attacks")
    known = {
        "secret": attack.secret,
        "target": getattr(attack, "attribute", ""),
        "plain": repr(attack.base()),
        "white_box": attack.white_box,
        "below_default": attack.below_default(),
        "why_control_failed": None,
        "ceiling": False,
        "bytes_weights": 0.0,
        "seed": 0,
    }
    whole = known | row
    if whole["secret"] == "images":  # the mean of the better sign, image by image, is at least the better mean
        whole["value"] = max(row["ssim"], row.get("ssim_inverted", -1.0))
    return whole


def audits(data: Any, name: str) -> list[tuple[str, dict[str, Any]]]:
    """Every audit in a file, wherever it is."""
    if not isinstance(data, dict):
        return []
    if "rows" in data and "floors" in data:
        return [(name, data)]
    return [found for key, inner in data.items() for found in audits(inner, f"{name}, {key}")]


def main() -> None:
    parser = argparse.ArgumentParser(description="The verdicts of kept audits by today's rules.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true")
    wanted = parser.parse_args()
    for file in wanted.files:
        data = json.loads(file.read_text())
        for name, audit in audits(data, file.name):
            rows = [completed(row) for row in audit["rows"]]
            judged = [verdict(rows, audit["floors"], guard) for guard in guards_of(rows)]
            print(name)
            for one in judged:
                secrets = ", ".join(f"{each.secret} {each.graded}" for each in one.secrets)
                print(f"  {one.guard}: {one.graded} ({secrets})\n    {one.sentence}")
            audit["verdicts"] = [asdict(one) for one in judged]
        if wanted.write:
            file.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
