"""What is searched: guards as they are typed, alone and two in a chain, with the settings their classes name."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from ...core.expand import expanded
from ...core.search import Between, Fixed, OneOf, Space
from ...core.search import space_of as space_of_class
from ...core.spec import find, parsed, spec
from ...guards import Chain, Guard, NoGuard, every

NOTHING = "nothing"  # behind the first guard


class Draw(Protocol):
    """Whoever chooses settings; a trial of Optuna is one."""

    def suggest_categorical(self, name: str, choices: Any) -> Any: ...
    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int: ...
    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float: ...


@dataclass(frozen=True)
class Kind:
    """A guard some of whose settings are searched: those of `space`; the others are as `plain` has them."""

    name: str
    plain: Guard | None  # None: some of its settings have no default
    made: type[Guard]
    space: tuple[tuple[str, Between | OneOf], ...] = ()

    def draw(self, trial: Draw, place: str) -> Guard:
        drawn = {name: _drawn(trial, f"{place}{self.name}.{name}", one) for name, one in self.space}
        if self.plain is None:
            return self.made(**drawn)
        return replace(self.plain, **drawn) if drawn else self.plain

    def settings(self, place: str) -> dict[str, Any]:
        """The usual ones, where they are within what is searched."""
        if self.plain is None:
            return {}
        usual = {name: getattr(self.plain, name) for name, _ in self.space}
        return {f"{place}{self.name}.{name}": usual[name] for name, one in self.space if usual[name] in one}


def kinds(typed: Sequence[str]) -> list[Kind]:
    """From what was typed: a bare name is searched over its class's space, one with settings is taken as it is, and
    braces stand for one guard each. Nothing typed: every guard of the suite."""
    if not typed:
        return [of_class(type(guard)) for guard in every()]
    found = [_kind(text) for one in typed for text in expanded(one)]
    return list({kind.name: kind for kind in found}.values())


def _kind(text: str) -> Kind:
    if isinstance(parsed(text)[0], ast.Name):
        made = find(text, "guards")
        assert issubclass(made, Guard)
        if made.search is None and any(field.init for field in fields(made)):
            raise ValueError(
                f"{text} says nothing of what may be tried for its settings: give its class "
                "`search: ClassVar[Search] = {...}`, or type its settings"
            )
        return of_class(made, text)
    guard = spec(text, "guards")
    return Kind(repr(guard), guard, type(guard))


def of_class(made: type[Guard], name: str | None = None) -> Kind:
    space: Space = space_of_class(made)
    try:
        plain: Guard | None = made.usual()
    except (TypeError, ValueError, NotImplementedError):
        plain = None
    if isinstance(made.search, Fixed) and plain is None:
        raise ValueError(f"{made.__name__} is not searched: {made.search.why}")
    return Kind(name or made.__name__, plain, made, tuple(space.items()))


def draw(trial: Draw, those: Sequence[Kind], chains: bool) -> Guard:
    """A guard, or two in a chain. ValueError: these two do not go together, or a setting does not fit."""
    by_name = {kind.name: kind for kind in those}
    first = by_name[trial.suggest_categorical("guard", list(by_name))]
    guard = first.draw(trial, "")
    if not chains:
        return guard
    then = trial.suggest_categorical("then", [NOTHING, *by_name])
    if then == NOTHING:
        return guard
    return Chain(guard, by_name[then].draw(trial, "then "))


class _Told:
    """Draws what it was told."""

    def __init__(self, settings: Mapping[str, Any]):
        self._settings = settings

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        return self._settings[name]

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        return self._settings[name]  # type: ignore[no-any-return]

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        return self._settings[name]  # type: ignore[no-any-return]


def built(settings: Mapping[str, Any], those: Sequence[Kind], chains: bool) -> Guard:
    """The guard that has these settings; ValueError where `draw` raises it."""
    return draw(_Told(settings), those, chains)


def guards_in(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """Which guards they are settings of."""
    return settings.get("guard"), settings.get("then")


def space_of(settings: Mapping[str, Any], those: Sequence[Kind]) -> dict[str, Between | OneOf]:
    """By the names that settings have here, what may be tried for each."""
    by_name = {kind.name: kind for kind in those}
    return {
        f"{place}{kind.name}.{name}": one
        for place, chosen in zip(("", "then "), guards_in(settings), strict=True)
        if (kind := by_name.get(chosen)) is not None
        for name, one in kind.space
    }


def firsts(those: Sequence[Kind], chains: bool) -> list[dict[str, Any]]:
    """Every kind in its usual setting: what is tried before anything is drawn."""
    alone = {"then": NOTHING} if chains else {}
    return [{"guard": kind.name, **alone, **kind.settings("")} for kind in those if kind.made is not NoGuard]


def _drawn(trial: Draw, name: str, one: Between | OneOf) -> Any:
    if isinstance(one, OneOf):
        return trial.suggest_categorical(name, list(one.values))
    if one.whole:
        return trial.suggest_int(name, int(one.low), int(one.high), log=one.log)
    return one.rounded(trial.suggest_float(name, one.low, one.high, log=one.log))
