"""Which guard is tried next: Optuna's sampler over leak, loss and bytes at once, with budgets as its constraints.

The only place with Optuna. After the usual settings two of three draws are beside the guard that leads, for so few
trainings tell a sampler next to nothing (`neighbours.step`). Where all around it was tried they are Optuna's: every
other for the front, those between by the rule that chooses in the end (`Budget.used`), for a front is wide, and what
was asked for is one place on it. Every third draw is of the kind that was tried least, for one unlucky training of
its usual setting says little of a kind. What was tried lies in a `ResultStore`, and the studies are made of it anew:
the next draw hangs on the seed and on what was tried, so a tune that was killed goes on as if it had not been.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...core.seeds import derive
from ...guards import Guard
from .budget import NAMES, Budget
from .front import leading
from .neighbours import Settings, step
from .space import Kind, built, draw, firsts, guards_in, space_of
from .trial import Tried

OBJECTIVES = ("leak", "loss", "bytes")
SELDOM = 3  # the last draw of so many is of the kind that was tried least
UNFIT = 10.0  # how much two guards that do not go together violate: more than anything that was measured


class Study:
    """Ask and tell. A trial that was ruled out early tells the sampler by how much it missed its budget."""

    def __init__(self, kinds: Sequence[Kind], chains: bool, budget: Budget, seed: int):
        self.optuna = _optuna()
        self.sends: Callable[[Guard], float | None] = lambda guard: None  # bytes of a sample; None: it does not fit
        self.kinds, self.chains, self.budget, self.seed = kinds, chains, budget, seed
        self.first = firsts(kinds, chains)
        self.optuna.logging.set_verbosity(self.optuna.logging.ERROR)
        self._front = self.optuna.create_study(directions=["minimize"] * len(OBJECTIVES))
        self._rule = self.optuna.create_study(direction="minimize")
        self._running: dict[int, Any] = {}
        self._told: list[tuple[Settings, Tried]] = []
        self._sizes: dict[str, float | None] = {}
        self._missed: dict[str, list[float]] = {kind.name: [] for kind in kinds if kind.space or chains}
        self.count = 0  # asked so far

    def ask(self) -> tuple[int, Guard | str]:
        """A number and the guard to try; a sentence where what was drawn cannot be built."""
        number = self._asked(self._next())
        try:
            return number, draw(self._running[number], self.kinds, self.chains)
        except ValueError as error:
            return number, str(error)

    def _next(self) -> Settings | None:
        """None: Optuna draws."""
        if self.count < len(self.first):
            return self.first[self.count]
        return self._seldom() if (self.count - len(self.first)) % SELDOM == SELDOM - 1 else self._beside()

    def _beside(self) -> Settings | None:
        """One step from the guard that leads."""
        by_name = {found.guard: settings for settings, found in self._told}
        lead = next(iter(leading([found for _, found in self._told], self.budget)), None)
        if lead is None or not (space := space_of(own := by_name[lead.guard], self.kinds)):
            return None
        running = [dict(trial.params) for trial in self._running.values()]
        tried = [one for one in (*by_name.values(), *running) if guards_in(one) == guards_in(own)]
        return step(own, space, tried, self._bytes, less=self.budget.asks_for_less(lead._asdict()))

    def _bytes(self, settings: Settings) -> float | None:
        try:
            guard = built(settings, self.kinds, self.chains)
        except ValueError:
            return None
        if repr(guard) not in self._sizes:
            self._sizes[repr(guard)] = self.sends(guard)
        return self._sizes[repr(guard)]

    def _seldom(self) -> Settings | None:
        """Of the kinds tried least the one that came nearest to the budget; None: draw whatever promises most."""
        fitting = {name: missed for name, missed in self._missed.items() if not missed or min(missed) < UNFIT}
        if not fitting:
            return None
        return {"guard": min(fitting, key=lambda name: (len(fitting[name]), min(fitting[name], default=0.0)))}

    def settings(self, number: int) -> dict[str, Any]:
        return dict(self._running[number].params)

    def tell(self, number: int, found: Tried) -> None:
        """Both studies learn of it, whichever asked."""
        trial = self._running.pop(number)
        self._told.append((dict(trial.params), found))
        if (kind := trial.params.get("guard")) in self._missed:
            self._missed[kind].append(sum(self._over(found)))
        for study in (self._front, self._rule):
            own = trial if study is self._of(number) else self._twin(study, trial.params)
            own.set_user_attr("over", self._over(found))
            values = self._values(found) if study is self._front else self.budget.used(found._asdict())
            state = self.optuna.trial.TrialState.PRUNED if values is None else None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                study.tell(own, values, state=state)

    def again(self, settings: Mapping[str, Any], found: Tried) -> None:
        """One that was tried before this process began: asked for with these settings, and told at once."""
        number = self._asked(settings)
        with suppress(ValueError):
            draw(self._running[number], self.kinds, self.chains)
        self.tell(number, found)

    def _of(self, number: int) -> Any:
        return self._front if number % 2 == 0 else self._rule

    def _asked(self, settings: Mapping[str, Any] | None) -> int:
        number = self.count
        self.count += 1
        self._running[number] = self._trial(self._of(number), number, settings)
        return number

    def _twin(self, study: Any, settings: Mapping[str, Any]) -> Any:
        trial = self._trial(study, self.count, settings)
        with suppress(ValueError):
            draw(trial, self.kinds, self.chains)
        return trial

    def _trial(self, study: Any, number: int, settings: Mapping[str, Any] | None) -> Any:
        study.sampler = self._sampler(number)
        if settings is not None:
            study.enqueue_trial(dict(settings))
        return study.ask()

    def _sampler(self, number: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is experimental in it
            return self.optuna.samplers.TPESampler(
                seed=derive(self.seed, "tune", number) % 2**32, n_startup_trials=len(self.first),
                multivariate=True, group=True, constant_liar=True, constraints_func=_constraints,
            )  # fmt: skip

    def _over(self, found: Tried) -> list[float]:
        if found.stage == "fit":
            return [UNFIT]
        missed = self.budget.over(found._asdict())
        return [missed.get(name, 0.0) for name in NAMES]

    def _values(self, found: Tried) -> list[float] | None:
        values = [getattr(found, name) for name in OBJECTIVES]
        return None if any(value is None for value in values) else values


def _constraints(trial: Any) -> Sequence[float]:
    return trial.user_attrs.get("over", [0.0])


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ValueError("tune searches with Optuna: pip install 'cutlayer[tune]'") from error
    return optuna
