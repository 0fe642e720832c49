"""A tune from its first guard to its last word: search, front, and the full audit of what was chosen."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...attacks import Attack
from ...core.spec import spec as read_spec
from ...data.base import Loaded
from ...guards import Guard, NoGuard
from ...training.plan.plan import Plan
from ..jobs import POLL, Failed, Finished, Job, Shown, Workers, made_or_failed, run
from ..matrix import audit
from ..parallel import Where, spread, workers
from ..result import Audit
from ..spec import AuditSpec, Resources
from ..store import ResultStore
from .budget import Budget
from .front import Checked, beaten, chosen, judged, meets, told, waiting
from .study import Study
from .trial import Reference, Tried, TuneWork, again, attempt, finish, over_seeds, reference, sends

MOST_ASKED = 12  # times the trials: draws that cost nothing, because they do not fit or were tried before
TRIALS_A_FINALIST = 6  # one of so many that were trained meets the full attack, and one at least
LEADERS = 1  # is trained under other seeds, and whoever leads then, until the one who leads was
ROUNDS = 2  # of that, at most
OTHER_SEEDS = (1001, 1002)  # further on than the one of the search; those of the last word are near to it
REFERENCE = "the unguarded cut"


@dataclass
class Search:
    """What was tried, in the order in which it ended, and what all of it is compared with."""

    open_cut: Reference
    tried: list[Tried]


class Here:
    """Jobs in this process, one at a time."""

    room = 1

    def __init__(self, shared: Any):
        self._shared, self._waiting = shared, list[tuple[Job, Sequence[Any]]]()

    def start(self, job: Job, given: Sequence[Any]) -> None:
        self._waiting.append((job, given))

    def finished(self, seconds: float) -> list[Finished]:
        done = [
            Finished(job.name, made_or_failed(partial(job.work, self._shared, *given)))
            for job, given in self._waiting
        ]
        self._waiting = []
        return done

    def running(self) -> list[str]:
        return [job.name for job, _ in self._waiting]


@contextmanager
def at_work(work: TuneWork, where: Where | None) -> Iterator[Workers]:
    if where is None or not where.apart:
        yield Here(work)
        return
    with workers(where, work, "tune", work.device) as there:
        yield there


def search(
    work: TuneWork, study: Study, store: ResultStore, there: Workers, trials: int, show: Callable[[Shown], None],
    note: Callable[[str], None] = lambda line: None,
) -> Search:  # fmt: skip
    """Until so many guards were trained. What the store has is told to the study, and not tried again.

    `note` is given a line for whatever was found, `show` how far it has come.
    """
    open_cut = _open_cut(work, store, there, show)
    note(f"the unguarded cut: accuracy {open_cut.accuracy:.3f}, {open_cut.bytes:,.0f} bytes a sample")
    study.sends = partial(_sends, work)
    before = _kept(store)
    known: dict[str, Tried] = {}
    for settings, found in before:
        study.again(settings, found)
        known[found.guard] = found
    begun: dict[str, tuple[int, Guard]] = {}
    ended = sum(_counts(one) for one in known.values())
    while ended < trials or begun:
        while ended + len(begun) < trials and len(begun) < there.room and study.count < MOST_ASKED * trials:
            number, guard = study.ask()
            if isinstance(guard, str):
                _tell(study, store, number, Tried("", "fit", guard))
            elif repr(guard) in known:
                _tell(study, store, number, known[repr(guard)])
            elif repr(guard) in begun:  # the same again while it is tried: it waits for nothing
                _tell(study, store, number, Tried(repr(guard), "fit", "it is being tried"))
            else:
                begun[repr(guard)] = number, guard
                there.start(Job(repr(guard), attempt), (guard, open_cut))
        if not begun:
            break
        show(Shown(ended, trials, there.running()))
        for name, made in there.finished(POLL):
            number, guard = begun.pop(name)
            found = Tried(name, "training", str(made)) if isinstance(made, Failed) else made
            _tell(study, store, number, found)
            known[name] = found
            ended += _counts(found)
            note(f"{ended} of {trials}  {told(found)}")
        show(Shown(ended, trials, there.running()))
    finals = _Finals(work, store, there, open_cut, max(1, trials // TRIALS_A_FINALIST), known, show, note)
    finals.confirm(waiting)
    finals.read()
    finals.confirm(chosen)
    return Search(open_cut, list(known.values()))


@dataclass
class _Finals:
    """Those that promise most to cheap readers: under other seeds, and by the full attack. What is found of them
    replaces what is `known`."""

    work: TuneWork
    store: ResultStore
    there: Workers
    open_cut: Reference
    enough: int
    known: dict[str, Tried]
    show: Callable[[Shown], None]
    note: Callable[[str], None]

    def confirm(self, ranked: Callable[[Sequence[Tried], Budget], list[Tried]]) -> None:
        """The best of many that were trained once is the luckiest: whoever leads is trained under other seeds."""
        for _ in range(ROUNDS):
            leading = ranked(list(self.known.values()), self.work.budget)[:LEADERS]
            if not (once := [one for one in leading if one.trainings == 1]):
                return
            self.note(f"under {len(OTHER_SEEDS)} other seeds as well: {' and '.join(one.guard for one in once)}")
            self._again(once)

    def read(self) -> None:
        """Until enough keep to the budget. Side by side only as many as are wanted in any case, so what is read does
        not hang on who computes."""
        read = sum(one.whole for one in self.known.values())
        while read < 2 * self.enough and (wanted := self.enough - self._kept()) > 0:
            left = waiting(list(self.known.values()), self.work.budget)[: min(wanted, 2 * self.enough - read)]
            if not left:
                break
            for one in left:
                self.known[one.guard] = self._out(one) if beaten(one, list(self.known.values())) else one
            those = [one for one in left if self.known[one.guard].waits]
            self._finish(those)
            read += len(those)

    def _kept(self) -> int:
        return sum(meets(one, self.work.budget) for one in self.known.values())

    def _out(self, one: Tried) -> Tried:
        return one._replace(why="another leaks, loses and sends no more than this by cheap readers")

    def _again(self, those: Sequence[Tried]) -> None:
        seeds = [self.work.seed + further for further in OTHER_SEEDS]
        guards = [NoGuard(), *(_read(one.guard) for one in those)]  # the unguarded cut first: some are fitted to it
        jobs = [Job(_under(repr(guard), seed), again, (guard, seed)) for seed in seeds for guard in guards]
        reached = self._made(jobs)
        open_cuts = [reached[_under(repr(NoGuard()), seed)] for seed in seeds]
        for one in those:
            own = [reached[_under(one.guard, seed)] for seed in seeds]
            if all(isinstance(accuracy, float) for accuracy in (*open_cuts, *own)):
                found = over_seeds(one, self.work.budget, open_cuts, own)
            else:
                found = one._replace(why="it does not train under other seeds")
            self.known[one.guard] = found
            self.note(f"  {told(found)}")

    def _finish(self, those: Sequence[Tried]) -> None:
        jobs = [Job(_full(one), finish, (_read(one.guard), self.open_cut, one)) for one in those]
        made = self._made(jobs)
        for one, job in zip(those, jobs, strict=True):
            value = made[job.name]
            self.known[one.guard] = one._replace(why=str(value)) if isinstance(value, Failed) else Tried(*value)
            self.note(f"{job.name}\n  {told(self.known[one.guard])}")

    def _made(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """Those that the store does not have are made, each kept as it comes."""
        made = {job.name: cell[0] for job in jobs if (cell := self.store.get(job.name)) is not None}
        for job, value in run([job for job in jobs if job.name not in made], self.there, self.show):
            made[job.name] = value
            if not isinstance(value, Failed):
                self.store.put(job.name, value)
        return made


def _full(one: Tried) -> str:
    return f"the full attack on {one.guard}"


def _under(guard: str, seed: int) -> str:
    return f"{guard} under seed {seed}"


def _read(guard: str) -> Guard:
    return read_spec(guard, "guards", imports=False)  # type: ignore[no-any-return]


def _sends(work: TuneWork, guard: Guard) -> float | None:
    """One that cannot be built is not drawn for that."""
    made = made_or_failed(partial(sends, work, guard))
    return None if isinstance(made, Failed) else made


def _counts(found: Tried) -> bool:
    """Whether it was trained: what is ruled out before costs next to nothing."""
    return found.stage not in ("fit", "cost")


def _open_cut(work: TuneWork, store: ResultStore, there: Workers, show: Callable[[Shown], None]) -> Reference:
    if (cell := store.get(REFERENCE)) is None:
        there.start(Job(REFERENCE, reference), ())
        made: list[Finished] = []
        while not made:
            show(Shown(0, 1, there.running()))
            made = there.finished(POLL)
        value = made[0].value
        if isinstance(value, Failed):
            raise value.error if value.error is not None else RuntimeError(value.why)
        store.put(REFERENCE, value._asdict())
        return value
    return Reference(**cell[0])


def _tell(study: Study, store: ResultStore, number: int, found: Tried) -> None:
    settings = study.settings(number)
    study.tell(number, found)
    place = len(_kept(store))
    store.put(f"trial {place}", {"settings": settings, **found._asdict()})


def _kept(store: ResultStore) -> list[tuple[dict[str, Any], Tried]]:
    found: list[tuple[dict[str, Any], Tried]] = []
    while (cell := store.get(f"trial {len(found)}")) is not None:
        told = dict(cell[0])
        found.append((told.pop("settings"), Tried(**told)))
    return found


# ------------------------------------------------------------------------------ the last word
@dataclass(frozen=True)
class Check:
    """How what was chosen is judged: every attack of a budget, under seeds that nothing was searched with."""

    attacks: Sequence[Attack]
    seeds: tuple[int, ...] = (1, 2)
    candidates: int = 3
    images: int = 256


def last_word(
    plan: Plan, loaded: Loaded, budget: Budget, tried: Sequence[Tried], check: Check, resources: Resources,
    where: Where | None, show: Callable[[Shown], None], note: Callable[[str], None] = lambda line: None,
) -> list[tuple[Checked, Audit]]:  # fmt: skip
    """Audit what was chosen; where it does not keep to its budgets, the next, until one does or enough were asked.

    After those that the full attack has read come those that wait for it: the audit has that attack, too."""
    found: list[tuple[Checked, Audit]] = []
    best = chosen(tried, budget)
    for one in [*best, *(waiting(tried, budget) if best else ())][: check.candidates]:
        guard = _read(one.guard)
        note(f"the last word on {one.guard}: every attack, seeds {', '.join(map(str, check.seeds))}")
        wanted = AuditSpec(
            plan, [guard], (), optional_attacks=check.attacks, seeds=check.seeds, images=check.images, alone=False
        )
        if where is not None and where.apart:
            spread(wanted, loaded, resources, where, show)
        result = audit(wanted, loaded, resources)
        found.append((judged(one, budget, result), result))
        if not found[-1][0].missed:
            break
    return found
