"""Attacks with networks of their own, which look at the cut through a `View`."""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from ...core.guard import Shape
from ...guards.base import Guard
from ..base import FORMS, Attack
from .keys import check_keys
from .view import matches


@dataclass(frozen=True, repr=False)
class Viewing(Attack):
    """An attack that takes a view of the cut: its field `knows` says in which form.

    `keys` says whose key is in its copy of a guard that has a secret one (`parts/keys.py`). Forms without a copy have
    none, and where there is no key to know all are alike.
    """

    keys: str = field(default="own", kw_only=True)
    forms: ClassVar[tuple[str, ...]] = FORMS

    def __post_init__(self) -> None:
        check_keys(self.keys)

    def against(self, guard: Guard, shape: Shape) -> list[Attack]:
        forms = replace(self, keys="own")._forms_against(guard, shape)
        copying = [form for form in forms if matches(getattr(form, "knows", ""))]
        if self.keys == "own" or not guard.has_key or not copying:
            return forms
        return [replace(form, **{"keys": self.keys}) for form in copying]

    def _forms_against(self, guard: Guard, shape: Shape) -> list[Attack]:
        return super().against(guard, shape)

    def base(self) -> Self:
        return replace(super().base(), keys="own")

    def ceiling(self, guard: Guard) -> bool:
        return self._told_the_key() and guard.has_key

    def in_words(self) -> list[str]:
        return [*super().in_words(), *(["the client's own key, which no server has"] if self._told_the_key() else [])]

    def _told_the_key(self) -> bool:
        return self.keys == "true" and matches(getattr(self, "knows", ""))
