"""Have the tests teeth? Draws small bugs in `cutlayer/`, plants each in a copy of the checkout and runs the tests.

    python tools/mutants.py [--count 40] [--seed 1] [--only wire] [--stages 3] [--jobs 2] [--list] [--out FILE]

Every room (a folder of cutlayer/) gets two bugs at least. A room draws from a stream of its own: first an operator,
then a place of it, so that rare operators come up as well. The same seed and sources give the same bugs.
Tests run in stages until one fails; files that ran in an earlier stage are not run again:

    0  the test that killed the same bug in an earlier draw
    1  files of tests/<room> that mention the module or what it defines, the contracts of that kind, and files of any
       room that import the module
    2  all of tests/<room> and tests/contracts
    3  the whole suite, without the files of SLOW, which start processes
    4  these too

A failure counts when it happens twice with the bug, and not without it; more than five times the usual time is a
failure too. Times and verdicts are kept in the temporary folder: a draw that was interrupted goes on, as long as the
sources stay as they are. A whole draw writes docs/evidence/mutants.json and .md.

A bug that changes nothing anyone could see may be named in mutants_equivalent.json, with a reason: it is left out,
and the room draws its next one. What counts as a small bug is in mutation_operators.py.
"""

import argparse
import ast
import hashlib
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from mutation_copy import RUNNING, Outcome, copied, stop
from mutation_operators import ROOT, Mutant, places, short

EVIDENCE = ROOT / "docs" / "evidence" / "mutants.json"
SLOW = "tests/engines/grpc/"
CONTRACTS = {"wire": "codecs", "nets": "split_equals_whole", "training": "split_equals_whole"}  # others: as the room
PASSED = (0, 5)  # exit codes of pytest; 5: all tests of the files are left out, as those of a campaign are
PATIENCE = 5, 60  # times what the files take, and seconds on top: a short run on a busy machine takes longer
UNKNOWN = 20.0  # seconds of a test file that has not been timed yet


# -------------------------------------------------------------------------------------------------------------- draw
def draw(rooms: list[str], count: int, seed: int) -> tuple[list[Mutant], list[dict[str, Any]]]:
    """The bugs to plant, and those that were drawn and are known to change nothing."""
    files = {room: sorted((ROOT / "cutlayer" / room).rglob("*.py")) for room in rooms}
    offered = {room: [mutant for path in own for mutant in places(path)] for room, own in files.items()}
    reasons = {as_name(one): one["reason"] for one in known()}
    here = {mutant.name for own in offered.values() for mutant in own}
    if gone := [name for name in reasons if name[0].split("/")[1] in rooms and name not in here]:
        sys.exit(f"mutants_equivalent.json names what is no longer there: {gone}")
    each = min(2, count // len(rooms))
    rest = random.Random(f"{seed}").choices(
        rooms, [len(offered[room]) for room in rooms], k=count - each * len(rooms)
    )
    wanted, drawn, discarded = Counter(rooms * each + rest), [], []
    for room in rooms:
        stream = in_order(offered[room], random.Random(f"{seed} {room}"))
        while wanted[room] and (mutant := next(stream, None)):
            if mutant.name in reasons:
                discarded.append({**mutant.facts(), "reason": reasons[mutant.name]})
            else:
                drawn.append(mutant)
                wanted[room] -= 1
    return drawn, discarded


def known() -> list[dict[str, str]]:
    return list(json.loads((ROOT / "tools" / "mutants_equivalent.json").read_text()))


def in_order(offered: list[Mutant], dice: random.Random) -> Iterator[Mutant]:
    by_operator: dict[str, list[Mutant]] = {}
    for mutant in offered:
        by_operator.setdefault(mutant.operator, []).append(mutant)
    lines = set()  # two bugs in one line are mostly the same bug
    while by_operator:
        own = by_operator[operator := dice.choice(sorted(by_operator))]
        mutant = own.pop(dice.randrange(len(own)))
        if not own:
            del by_operator[operator]
        if (mutant.path, mutant.line) not in lines and mutant.changes_the_program():
            lines.add((mutant.path, mutant.line))
            yield mutant


# ------------------------------------------------------------------------------------------------------------- tests
def stages_of(mutant: Mutant, most: int, killer: str | None) -> list[list[str]]:
    """Test files, each in the first stage that has it. Stage 0 is a test, the one that noticed this bug before."""
    every = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    near = [path for path in every if path.startswith(f"tests/{mutant.room}/")]
    contracts = [path for path in every if path.startswith("tests/contracts/")]
    kind = f"tests/contracts/test_{CONTRACTS.get(mutant.room, mutant.room)}.py"
    fast = [path for path in every if not path.startswith(SLOW)]
    module = Path(mutant.path)
    defined = ast.parse((ROOT / module).read_text()).body
    words = {one.name for one in defined if isinstance(one, ast.ClassDef | ast.FunctionDef)}
    words.add(module.parent.name if module.stem == "__init__" else module.stem)
    said = re.compile(rf"\b({'|'.join(sorted(words))})\b")
    first = [path for path in near if said.search((ROOT / path).read_text())]
    first += [path for path in contracts if path == kind]
    dotted = ".".join(module.with_suffix("").parts).removesuffix(".__init__")
    imported = re.compile(rf"^\s*(from {re.escape(dotted)} import|import {re.escape(dotted)}\b)", re.MULTILINE)
    first += [path for path in fast if imported.search((ROOT / path).read_text())]
    found = [[killer] if killer else []]
    for files in (first, near + contracts, fast, every)[:most]:
        found.append([path for path in dict.fromkeys(files) if not any(path in earlier for earlier in found)])
    return found


# ----------------------------------------------------------------------------------------------------------- verdicts
class Kept:
    """What earlier draws found, in a file: seconds of test files, and verdicts with the sources they are about."""

    def __init__(self) -> None:
        digest = hashlib.sha256(sys.version.encode())
        for folder in ("cutlayer", "tests", "recipes", "docs"):
            for path in sorted((ROOT / folder).rglob("*.*")):
                if path.suffix in (".py", ".j2", ".md") and EVIDENCE.parent not in path.parents:
                    digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
        self.sources = digest.hexdigest()[:16]
        self._file = Path(tempfile.gettempdir()) / "cutlayer-mutants.json"
        known = json.loads(self._file.read_text()) if self._file.is_file() else {"seconds": {}, "verdicts": []}
        self.seconds: dict[str, float] = known["seconds"]
        self._verdicts: list[dict[str, Any]] = known["verdicts"]
        recorded = json.loads(EVIDENCE.read_text())["mutants"] if EVIDENCE.is_file() else []
        self._killers = {as_name(one): one["killer"] for one in recorded + self._verdicts if one["killer"]}

    def killer(self, mutant: Mutant) -> str | None:
        """The test that noticed this bug in other sources, where it is still there."""
        killer = self._killers.get(mutant.name)
        return killer if killer and (ROOT / killer.partition("::")[0]).is_file() else None

    def verdict(self, mutant: Mutant, stages: int) -> dict[str, Any] | None:
        about = {"sources": self.sources, **mutant.facts()}
        for one in reversed(self._verdicts):
            if one.items() >= about.items() and (one["verdict"] != "survived" or one["stage"] >= stages):
                return one
        return None

    def add(self, mutant: Mutant, verdict: dict[str, Any]) -> None:
        self._verdicts.append({"sources": self.sources, **mutant.facts(), **verdict})
        self._file.write_text(json.dumps({"seconds": self.seconds, "verdicts": self._verdicts}))


def as_name(facts: dict[str, str]) -> tuple[str, ...]:
    """Mutant.name, of a bug that was written down."""
    return tuple(facts[part] for part in ("path", "operator", "before", "after"))


def passing(tests: set[str]) -> set[str]:
    """Those that pass without a bug, tried together: a start of pytest takes longer than most of them."""
    with copied() as copy:
        found = copy.run(sorted(tests), None) if tests else None
    return tests - set(found.failed) if found and found.code in (0, 1) else set()


def judge(mutant: Mutant, stages: list[list[str]], seconds: dict[str, float], sound: set[str]) -> dict[str, Any]:
    """Whether a test notices. Those of `sound` are known to pass without the bug."""
    began, doubted = time.monotonic(), []

    def verdict(word: str, stage: int, killer: str | None = None) -> dict[str, Any]:
        spent = round(time.monotonic() - began, 1)
        return {"verdict": word, "stage": stage, "killer": killer, "failed_once": doubted, "seconds": spent}

    with copied() as copy:
        file = copy.root / mutant.path
        without = file.read_bytes()

        def run(tests: list[str], *options: str, bug: bool = True) -> Outcome:
            file.write_bytes(mutant.source() if bug else without)
            usual = sum(seconds.get(test.partition("::")[0], UNKNOWN) for test in tests)
            return copy.run(tests, PATIENCE[0] * usual + PATIENCE[1], "-x", *options)

        for stage, files in enumerate(stages):
            fastest_first = sorted(files, key=lambda path: seconds.get(path, UNKNOWN))
            while files:
                found = run(fastest_first, *(f"--deselect={name}" for name in doubted))
                if found.code in PASSED:
                    seconds.update(found.seconds)
                    break
                tests = found.failed[:1] or fastest_first  # all: the process ended without a word, or hangs
                known = stage == 0 and tests == files  # this very test has failed in an earlier draw
                twice = known or run(tests).code not in PASSED
                noticed = twice and (sound.issuperset(tests) or run(tests, bug=False).code in PASSED)
                if noticed and found.code is None:
                    return verdict("timed out", stage)
                if noticed:
                    return verdict(
                        "killed", stage, (*found.failed, f"pytest itself, which ended with {found.code}")[0]
                    )
                doubted += tests  # a test that fails now and then, or without a bug, says nothing about it
                if tests == fastest_first:
                    break
    return verdict("survived", len(stages) - 1)


def table(results: dict[str, Any]) -> str:
    rows = sorted(results["mutants"], key=lambda one: (one["verdict"] != "survived", one["path"], one["line"]))
    lines = [
        "# Small bugs and who notices",
        f"\nWritten by `make mutants`: seed {results['seed']}, stages up to {results['stages']}. Of {len(rows)} bugs "
        f"{results['killed']} were killed (a test failed, or took too long) and {results['survived']} survived.",
        f"\n{len(results['discarded'])} more were drawn and change nothing; the JSON file says why.",
        "\n| where | operator | before | after | killed by |\n|---|---|---|---|---|",
    ]
    for one in rows:
        killer = as_code(one["killer"]) if one["killer"] else f"**{one['verdict']}**"
        change = f"{as_code(short(one['before']))} | {as_code(short(one['after']))}"
        lines.append(f"| {one['path']}:{one['line']} | {one['operator']} | {change} | {killer} |")
    return "\n".join(lines) + "\n"


def as_code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def main() -> None:
    rooms = sorted(path.parent.name for path in (ROOT / "cutlayer").glob("*/__init__.py"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=rooms, metavar="ROOM", help="repeatable")
    parser.add_argument("--stages", type=int, default=3, choices=(1, 2, 3, 4))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="draw only")
    parser.add_argument("--out", type=Path, help="for a draw of some rooms: where its results go, a .json")
    given = parser.parse_args()
    chosen = sorted(set(given.only or rooms))
    if given.count < (least := len(chosen) * (1 if given.only else 2)):
        parser.error(f"--count: {least} at least, or fewer rooms by --only")
    drawn, discarded = draw(chosen, given.count, given.seed)
    if given.list:
        print("\n".join(map(str, drawn)))
        return
    kept = Kept()
    plan = {mutant: stages_of(mutant, given.stages, kept.killer(mutant)) for mutant in drawn}
    pool = ThreadPoolExecutor(given.jobs)
    try:
        left = [mutant for mutant in drawn if kept.verdict(mutant, given.stages) is None]
        sound = passing({test for mutant in left for test in plan[mutant][0] if "::" in test})
        todo = {pool.submit(judge, mutant, plan[mutant], kept.seconds, sound): mutant for mutant in left}
        for done in as_completed(todo):
            kept.add(todo[done], done.result())
            print(f"{done.result()['verdict']:9}  {done.result()['seconds']:6.1f} s  {todo[done]}", flush=True)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(RUNNING):
            stop(process)
        raise
    found = [kept.verdict(mutant, given.stages) for mutant in drawn]
    survived = sum(one["verdict"] == "survived" for one in found)
    results = {"seed": given.seed, "sources": kept.sources, "stages": given.stages}
    results |= {"killed": len(found) - survived, "survived": survived}
    results |= {"mutants": found, "discarded": discarded}
    print(f"{len(found) - survived} of {len(found)} killed")
    if out := given.out or (None if given.only else EVIDENCE):
        out.write_text(json.dumps(results, indent=1) + "\n")
        out.with_suffix(".md").write_text(table(results))


if __name__ == "__main__":
    main()
