"""Every attack, in all its forms, against eight guards: is any of them weaker than it was?

    attack_matrix.py run digits OUT.json [--jobs 8] [--device cuda]    one audit of every attack there is
    attack_matrix.py run cifar10 OUT.json --data-folder FOLDER
    attack_matrix.py run digits OUT.json --toys [--minutes 8]          all of them, each at its smallest
    attack_matrix.py table BEFORE.json AFTER.json                      a line a cell, and what fell
    attack_matrix.py forms OUT.json                                    a line an attack and form

`run` audits the package that Python finds: put another checkout on PYTHONPATH to see what it did before. Cut off, it
writes what is finished; the same command goes on.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

GUARDS = (
    "LightSplit(ratio=8)", "LightSplit(ratio=32)", "SEAL(energy=0.7)", "DCT(energy=0.7)", "KAnonymous(k=5)",
    "Noise(scale=1.0)", "LFQ()", "Prism(keep=0.1)",
)  # fmt: skip
KEPT = (
    "guard", "attack", "form", "secret", "target", "ceiling", "value", "metric", "chance", "interval", "valid",
    "why_invalid", "accuracy", "seconds", "seed", "p90", "reader", "readers",
)  # fmt: skip
TOY_HIJACK = 500  # steps of FSHA, which has no smaller size of its own


class TimeIsUp(Exception):
    """What is not finished is left."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    run = commands.add_parser("run")
    run.add_argument("data", choices=("digits", "cifar10"))
    run.add_argument("out", type=Path)
    run.add_argument("--data-folder", type=Path)
    run.add_argument("--budget", default="standard")
    run.add_argument("--jobs", type=int, default=1)
    run.add_argument("--device", default="cpu")
    run.add_argument("--images", type=int, default=256)
    run.add_argument("--passive", action="store_true", help="without attacks that need a training of their own")
    run.add_argument("--only", help="attacks by name, between commas; the others are not run")
    run.add_argument("--toys", action="store_true", help="every attack there is, at its smallest size")
    run.add_argument("--minutes", type=float, default=24 * 60.0)
    run.add_argument("--seed", type=int, default=0)
    forms = commands.add_parser("forms")
    forms.add_argument("file", type=Path)
    table = commands.add_parser("table")
    table.add_argument("before", type=Path)
    table.add_argument("after", type=Path)
    args = parser.parse_args()
    if args.command == "run":
        _run(args)
    elif args.command == "forms":
        print(by_guard(json.loads(args.file.read_text())["rows"]))
    else:
        print(compared(json.loads(args.before.read_text()), json.loads(args.after.read_text())))


def _run(args: argparse.Namespace) -> None:
    import cutlayer
    from cutlayer import attacks, nets
    from cutlayer.audit import AuditSpec, Resources, audit
    from cutlayer.audit.matrix import Matrix, alone_name, cell_name, floors_name
    from cutlayer.audit.parallel import PROCESSES, Where, spread
    from cutlayer.audit.store import ResultStore
    from cutlayer.core.spec import spec as parsed
    from cutlayer.data import CIFAR10, Digits
    from cutlayer.training.batches import task_of
    from cutlayer.training.plan.plan import Plan

    started = time.time()
    if args.data == "digits":
        plan = Plan(net=nets.MnistNet(), data=Digits(), epochs=5, aux_samples=2000, seed=args.seed)
    else:
        plan = Plan(
            net=nets.ResNet18(depth=2), data=CIFAR10(batches=(1, 2)), epochs=12, batch_size=128, aux_samples=6000,
            seed=args.seed,
        )  # fmt: skip
    loaded = plan.data.load(args.data_folder)
    task = task_of(loaded.train, len(loaded.classes))
    suite = toys(task) if args.toys else attacks.suite(args.budget, task, plan.protocol.labels_stay_home)
    suite = [attack for attack in suite if not (args.passive and attack.active)]
    if args.only:
        suite = [attack for attack in suite if type(attack).__name__ in args.only.split(",")]
    spec = AuditSpec(
        plan, [parsed(text, "guards") for text in GUARDS], (), optional_attacks=suite, seeds=[args.seed],
        images=args.images,
    )  # fmt: skip
    store = ResultStore(args.out.with_suffix(".cells"), spec.identity)

    def look_at_the_clock(shown: object) -> None:
        if time.time() > started + 60 * args.minutes:
            raise TimeIsUp

    resources = Resources(device=args.device, store=store, on_event=look_at_the_clock)
    matrix, left = Matrix(spec, loaded, resources), "cut off"
    try:
        if args.jobs > 1:
            spread(spec, loaded, resources, Where(PROCESSES, args.jobs, args.jobs), look_at_the_clock)
        audit(spec, loaded, resources)
        left = "finished"
    except TimeIsUp:
        pass
    cells = {
        cell_name(args.seed, guard, form): (guard, form) for guard in matrix.guards for form in matrix.forms[guard]
    }
    made = {name: cell[0] for name in cells if (cell := store.get(name)) is not None}
    alone = [store.get(alone_name(args.seed, one)) for one in matrix.alone if one.plan is not None]
    about = {
        "command": " ".join(["python", *sys.argv]),
        "version": cutlayer.__version__,
        "plan": repr(matrix.plan),
        "budget": "toys" if args.toys else args.budget,
        "floors": (store.get(floors_name(args.seed)) or ({}, {}))[0],
        "left_out": matrix.left_out,
        "not_tried": {name: row["not_tried"] for name, row in made.items() if "not_tried" in row},
        "not_made": [name for name in cells if name not in made],
        "ended": left,
        "seconds": round(time.time() - started),
        "alone": [cell[0] for cell in alone if cell is not None],
        "rows": [
            {name: row[name] for name in KEPT if name in row} for row in made.values() if "not_tried" not in row
        ],
    }
    args.out.write_text(json.dumps(about, indent=1) + "\n")


def toys(task: Any) -> list[Any]:
    """Every attack there is, those that an audit has only when it is asked for them among them."""
    from cutlayer import attacks

    found: list[Any] = []
    for name in attacks.__all__:
        kind = getattr(attacks, name)
        if kind is attacks.AttributeInference:
            found += kind.suite("quick", task, True)
        elif kind is attacks.FSHA:
            found.append(kind(steps=TOY_HIJACK))
        else:
            found.append(kind.sized("quick"))
    return found


def by_guard(rows: list[dict[str, Any]]) -> str:
    """A line an attack and form: what it reached on the open cut and behind each guard, in its own figure."""
    best = _best(rows)
    guards = ["none", *dict.fromkeys(row["guard"] for row in rows if row["guard"] != "none")]
    lines = [f"| attack | form | {' | '.join(f'`{guard}`' for guard in guards)} |", "|---" * (2 + len(guards)) + "|"]
    for name, form in sorted({(name, form) for _, name, form in best}):
        cells = (best.get((guard, name, form)) for guard in guards)
        lines.append(f"| {name} | {form or 'plain'} | {' | '.join(_short(row) for row in cells)} |")
    return "\n".join(lines)


def _short(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    return f"{row['value']:.2f}" if row["valid"] else f"({row['value']:.2f})"


def compared(before: dict[str, Any], after: dict[str, Any]) -> str:
    """A line a cell: what an attack found before and what it finds now. Cells are told apart by guard, attack, form;
    of several settings of one attack the best counts."""
    old, new = _best(before["rows"]), _best(after["rows"])
    lines = ["| guard | attack | form | before (95 %) | after (95 %) | |", "|---|---|---|---|---|---|"]
    fell = 0
    for key in dict.fromkeys([*old, *new]):
        was, now = old.get(key), new.get(key)
        lower = bool(was and now and was["valid"] and now["interval"]["value"][1] < was["interval"]["value"][0])
        higher = bool(was and now and now["interval"]["value"][0] > was["interval"]["value"][1])
        fell += lower
        word = "LOWER" if lower else "higher" if higher else "new" if not was else "gone" if not now else ""
        guard, name, form = key
        lines.append(f"| `{guard}` | {name} | {form or 'plain'} | {_shown(was)} | {_shown(now)} | {word} |")
    return "\n".join([*lines, "", f"{fell} of {len(old)} cells are lower than before, beyond both intervals."])


def _best(rows: list[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        name = row["attack"].split("(")[0] + (f" of {row['target']}" if row["target"] else "")
        key = row["guard"], name + (" (ceiling)" if row["ceiling"] else ""), row["form"]
        if key not in found or row["value"] > found[key]["value"]:
            found[key] = row
    return found


def _shown(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    low, high = row["interval"]["value"]
    return f"{row['value']:.3f} ({low:.3f} to {high:.3f})" + ("" if row["valid"] else ", does not count")


if __name__ == "__main__":
    main()
