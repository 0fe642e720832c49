"""The quick audit of six guards as evidence: its JSON without single images, and a page of what follows from it.

python tools/quick_page.py runs/quick/audit.json
python tools/quick_page.py                          # the page alone, from the JSON that is there
"""

import json
import sys
from pathlib import Path
from typing import Any

EVIDENCE = Path(__file__).parents[1] / "docs" / "evidence"
# What of a row is long and read by no verdict of the page.
LONG = ("sampled", "sides", "privacy", "client_memory", "rates", "ledger", "worst", "knows")
ATTACKS = ("FORA", "SDAR", "PCAT", "FeatureSniffer", "UnSplit")
BLIND = ("", "oblivious")  # forms that do not know the guard

Rows = list[dict[str, Any]]


def shortened(audit: dict[str, Any], minutes: float | None) -> dict[str, Any]:
    """The audit in evidence: all rows and verdicts, no single image and no picture."""
    rows = [{key: _short(value) for key, value in row.items() if key not in LONG} for row in audit["rows"]]
    more = {} if minutes is None else {"cpu_minutes": round(minutes, 1)}
    return {**{key: value for key, value in audit.items() if key != "rows"}, **more, "rows": rows}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    return [_short(one) for one in value] if isinstance(value, list) else value


def page(audit: dict[str, Any]) -> str:
    rows = [row for row in audit["rows"] if not row.get("ceiling")]
    images = [row for row in rows if row.get("secret", "images") == "images"]
    grades = {one["guard"]: one["grade"] for one in audit["verdicts"]}
    spent = audit.get("cpu_minutes")
    cost = f" It took {spent:.0f} CPU minutes in one thread." if spent else ""
    lines = [
        "# A quick audit of six guards",
        "",
        "[attacks-quick.json](attacks-quick.json): every passive attack at its smallest size, in the form of the",
        f"papers and in those that know the guard, one seed, on digits. Version {audit['version']}; this page is "
        "made of it by `python tools/quick_page.py`. The command:",
        "",
        "```console",
        f"$ {audit['command']}",
        "```",
        "",
        f"SSIM; where an attack has two figures, they are without / with knowledge of the guard.{cost} The",
        f"class-mean image scores {audit['floors']['class_mean']['ssim']:.2f}.",
        "",
        f"| guard | accuracy | strongest (95 % over images) | by | verdict | {' | '.join(ATTACKS)} |",
        f"|---|---|---|---|---|{'---|' * len(ATTACKS)}",
        *(_line(guard, [row for row in images if row["guard"] == guard], grades) for guard in grades),
        *(_alone(one) for one in audit.get("alone", ())),
        "",
        "What follows from it:",
        "",
        *(f"- {text}" for text in _sentences(audit, rows, images, list(grades))),
    ]
    return "\n".join(lines) + "\n"


def _line(guard: str, own: Rows, grades: dict[str, str]) -> str:
    best = max((row for row in own if row["valid"]), key=lambda row: row["value"])
    between = best.get("interval", {}).get("value")
    shown = f"{best['value']:.3f}" + (f" ({between[0]:.3f} to {between[1]:.3f})" if between else "")
    cells = [_two([row for row in own if row["attack"].startswith(name)]) for name in ATTACKS]
    told = (f"`{guard}`", f"{best['accuracy']:.3f}", shown, f"`{best['attack']}`", grades[guard], *cells)
    return f"| {' | '.join(told)} |"


def _two(own: Rows) -> str:
    blind, knowing = ([row["value"] for row in own if (row["form"] in BLIND) == told] for told in (True, False))
    return " / ".join(f"{max(values):.2f}" for values in (blind, knowing) if values) or "-"


def _alone(one: dict[str, Any]) -> str:
    reached = "-" if one["accuracy"] is None else f"{one['accuracy']:.3f}"
    return f"| {one['name']} | {reached} | nothing leaves | - | - |{' - |' * len(ATTACKS)}"


def _sentences(audit: dict[str, Any], rows: Rows, images: Rows, guards: list[str]) -> list[str]:
    return [
        *([words] if isinstance(words := audit.get("split_buys_words"), str) else words or []),
        *_strongest(images, guards),
        *_worse(images, guards),
        *_failed(rows),
        *_labels(rows, guards),
        *(f"Not tried: {one}." for one in dict.fromkeys(map(str, audit.get("not_tried") or ()))),
    ]


def _strongest(images: Rows, guards: list[str]) -> list[str]:
    best: dict[str, list[str]] = {}
    for guard in guards:
        own = [row for row in images if row["guard"] == guard and row["valid"]]
        best.setdefault(max(own, key=lambda row: row["value"])["attack"].partition("(")[0], []).append(f"`{guard}`")
    return [
        "The strongest attacker: "
        + "; ".join(f"`{name}` against {', '.join(them)}" for name, them in best.items())
        + "."
    ]


def _worse(images: Rows, guards: list[str]) -> list[str]:
    """Where knowing the guard read less: an attack that is too weak in that form, not a guard that is strong."""
    found = []
    for guard in guards:
        for name in ATTACKS:
            own = [row for row in images if row["guard"] == guard and row["attack"].startswith(name)]
            blind, knowing = (
                [row["value"] for row in own if (row["form"] in BLIND) == told] for told in (True, False)
            )
            if blind and knowing and max(knowing) < max(blind) - 0.02:
                found.append(f"`{name}` against `{guard}` ({max(blind):.2f} without it, {max(knowing):.2f} with it)")
    pairs = f"Knowing the guard made {len(found)} pairs worse: {', '.join(found)}."
    return [f"{pairs} Their low figures are those of a weak attack."] if found else []


def _failed(rows: Rows) -> list[str]:
    lost = dict.fromkeys(
        (row["attack"], row.get("why_control_failed")) for row in rows if row.get("why_control_failed")
    )
    return [f"The control of `{attack}` failed, so its rows count for nothing: {why}" for attack, why in lost]


def _labels(rows: Rows, guards: list[str]) -> list[str]:
    told = []
    for guard in guards:
        values = [
            row["value"] for row in rows if row["guard"] == guard and row["secret"] == "labels" and row["valid"]
        ]
        if values:
            told.append(f"{max(values):.2f} behind `{guard}`")
    return [f"Labels, the share that the best attacker names: {', '.join(told)}."] if told else []


def main() -> None:
    kept = EVIDENCE / "attacks-quick.json"
    if len(sys.argv) > 1:
        file = Path(sys.argv[1])
        minutes = float(sys.argv[2]) if len(sys.argv) > 2 else None
        kept.write_text(json.dumps(shortened(json.loads(file.read_text()), minutes), indent=1) + "\n")
    (EVIDENCE / "attacks-quick.md").write_text(page(json.loads(kept.read_text())))


if __name__ == "__main__":
    main()
