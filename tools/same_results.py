"""Do two checkouts compute the same? Runs both on this machine, one thread each, and compares what they leave behind.

    python tools/same_results.py OLD NEW [--only plans] [--only frames/Grid] [--python .venv/bin/python]

OLD and NEW are folders with a `cutlayer` package in them, before and after a refactor. One line an item, `same` or
`DIFFERS` with the first places; the exit code is 1 on any difference, and where an item cannot be made. Items, by the
names that --only takes (a part of a name is enough, and it may be repeated):

    plans/...   trained by `cutlayer train` with fixed private seeds: networks and kept state bit for bit, history,
                result and ledger, and the frames that the server received
    deploy      one `serve` and two `join` over loopback: the weights of all three, their results and ledgers
    frames/...  wire version 1, byte for byte: every kind and dtype, every codec, chosen, asked for and prepared
    audit       the numbers of a small `audit.json`, and how it judges

Tensors are hashed by dtype, shape and bytes. Where both checkouts use the same names they are compared by name;
otherwise without names, as the same tensors in any order (files do not keep the order of parameters). Times,
versions, paths and the plan's text are left out; sentences may be worded differently (it says how many are). Hashes
differ between processors: none is worth keeping.

Needs what the extras `deploy` and `entropy` install. Commands and files on disk are all that is looked at, but for
frames; whatever a checkout calls by another name is in `checkout_names.py`, and nowhere else.
"""

import argparse
import base64
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import checkout_results
from checkout_frames import FRAME
from checkout_results import Facts


def run(python: str, checkout: Path, chosen: list[str]) -> dict[str, Facts]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = {**os.environ, **threads, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        asked = [python, checkout_results.__file__, str(checkout), str(out), json.dumps(chosen)]
        if code := subprocess.run(asked, env=environment, cwd=folder).returncode:
            sys.exit(f"{checkout}: the comparison's own process ended with {code}")
        return dict(json.loads(out.read_text()))


def differences(old: Facts, new: Facts) -> tuple[list[str], int]:
    """Where two items differ, and how many sentences do: those do not count."""
    errors = [f"{side} failed: {facts['error']}" for side, facts in (("OLD", old), ("NEW", new)) if "error" in facts]
    if errors:
        return errors, 0
    found, reworded = [], 0
    for part in [part for part in {**old, **new} if part != "seconds"]:
        before, after = old.get(part, {}), new.get(part, {})
        if "tensors" in before and "tensors" in after:
            found += [f"{part}: {where}" for where in _other_tensors(before["tensors"], after["tensors"])]
            continue
        for way in sorted(set(before) | set(after), key=_natural):
            one, other = before.get(way, "not there"), after.get(way, "not there")
            if one == other:
                continue
            if _is_sentence(one) and _is_sentence(other):
                reworded += 1
            else:
                found.append(f"{part}: {way}: {_told(one, other)}")
    return found, reworded


def _other_tensors(before: dict[str, str], after: dict[str, str]) -> list[str]:
    if set(before) == set(after):
        return [name for name in sorted(before, key=_natural) if before[name] != after[name]]
    gone, came = (
        Counter(before.values()) - Counter(after.values()),
        Counter(after.values()) - Counter(before.values()),
    )
    lost = [f"{name} of OLD is not in NEW" for name, value in before.checkout_results.items() if value in gone]
    return lost + [f"{name} of NEW is not in OLD" for name, value in after.checkout_results.items() if value in came]


def _is_sentence(text: str) -> bool:
    """Words for a person, neither a number nor a spec nor the name of something."""
    return text[:1] in "'\"" and " " in text and not re.match(r"['\"]\w+\(.*\)['\"]$", text)


def _told(one: str, other: str) -> str:
    if not (one.startswith(FRAME) and other.startswith(FRAME)):
        return f"{one[:60]} -> {other[:60]}"
    first, second = (base64.b64decode(text.removeprefix(FRAME)) for text in (one, other))
    at = next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    return f"from byte {at} on; {len(first)} -> {len(second)} bytes"


def _first_of_each(places: list[str]) -> list[str]:
    """Two places of each part, and how many more there are."""
    parts: dict[str, list[str]] = {}
    for place in places:
        parts.setdefault(place.partition(":")[0], []).append(place)
    return [
        line
        for part, own in parts.checkout_results.items()
        for line in own[:2] + ([f"{part}: and {len(own) - 2} more (--all)"] if len(own) > 2 else [])
    ]


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--python", default=sys.executable, help="which runs both; it has what cutlayer needs")
    parser.add_argument("--only", action="append", metavar="NAME", help="items with this in their name; repeatable")
    parser.add_argument("--all", action="store_true", help="every place that differs, not the first few")
    given = parser.parse_args()
    chosen = [name for name in checkout_results.items() if not given.only or any(part in name for part in given.only)]
    if not chosen:
        parser.error(f"nothing is called that; there is {', '.join(checkout_results.items())}")
    for checkout in (given.old, given.new):
        if not (checkout / "cutlayer" / "__init__.py").is_file():
            parser.error(f"{checkout} has no package cutlayer in it")
    old, new = (run(given.python, checkout.resolve(), chosen) for checkout in (given.old, given.new))
    bad, wide = 0, max(map(len, chosen))
    for name in chosen:
        places, reworded = differences(old[name], new[name])
        seconds = f"({old[name]['seconds']:.1f} s, {new[name]['seconds']:.1f} s)"
        if not places:
            words = f"; {reworded} sentences are worded differently" if reworded else ""
            print(f"{name:{wide}}  same  {seconds}{words}")
            continue
        bad += 1
        where = "is not made" if "error" in old[name] or "error" in new[name] else f"in {len(places)} places"
        print(f"{name:{wide}}  DIFFERS  {where} {seconds}")
        for place in places if given.all else _first_of_each(places):
            print(f"{'':{wide}}    {place.strip()}")
    print(f"{len(chosen) - bad} of {len(chosen)} items are the same")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
