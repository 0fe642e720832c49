"""Objects as text: `spec("LightSplit(ratio=8)")` and `repr(...)` are each other's inverse.

The command line, recipes, reports and test ids all use this one form. Names come from the `__all__` of the
plug-in folders and from what installed packages announce; `path/to/file.py:SignBit(scale=2)` and
`package.module:SignBit(scale=2)` name a class by where it is. Arguments are literals or further specs; nothing is
ever evaluated.
"""

import ast
import dataclasses
import difflib
import importlib
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

from . import hints
from .outside import load_module, named, written
from .outside.announced import announced
from .outside.makers import found_by, import_home
from .outside.placeholders import Origin, rewritten
from .search import Search

# Every folder or module whose `__all__` names things a person may type.
HOMES = {
    "guards": "cutlayer.guards",
    "projections": "cutlayer.guards.parts.projection",
    "attacks": "cutlayer.attacks",
    "codecs": "cutlayer.wire.codecs",
    "rules": "cutlayer.rules",
    "rounds": "cutlayer.training.plan.schedule",
    "detectors": "cutlayer.detectors",
    "poisons": "cutlayer.data.poisons",
    "roles": "cutlayer.training.plan.roles",
    "nets": "cutlayer.nets",
    "data": "cutlayer.data",
    "partitions": "cutlayer.data.partitions",
    "optimizers": "cutlayer.training.plan.optimizers",
    "schedules": "cutlayer.training.plan.lr_schedules",
    "protocols": "cutlayer.training.protocols",
    "starts": "cutlayer.training.plan.pretrained",
    "compressions": "cutlayer.core.compressor",
    "adapters": "cutlayer.nets.lora",
    "plans": "cutlayer.training.plan.plan",
}
# What a class from outside has to descend from, by kind: a folder of this package and names in it.
BASES = {
    "guards": ("cutlayer.guards", "Guard"),
    "attacks": ("cutlayer.attacks", "Attack"),
    "rules": ("cutlayer.rules", "Rule"),
    "rounds": ("cutlayer.training.plan.schedule", "Rounds"),
    "detectors": ("cutlayer.detectors", "Detector", "ServerDetector"),
    "poisons": ("cutlayer.data", "Poison"),
    "roles": ("cutlayer.training.plan.roles", "Roles"),
    "nets": ("cutlayer.nets", "Net"),
    "data": ("cutlayer.data", "Source"),
    "partitions": ("cutlayer.data", "Partition"),
    "optimizers": ("cutlayer.training.plan.optimizers", "Optimizer"),
    "schedules": ("cutlayer.training.plan.lr_schedules", "Schedule"),
    "protocols": ("cutlayer.training.protocols", "Protocol"),
    "starts": ("cutlayer.training.plan.pretrained", "Pretrained"),
    "compressions": ("cutlayer.core.compressor", "Compression"),
    "adapters": ("cutlayer.nets.lora", "LoRA"),
    "plans": ("cutlayer.training.plan.plan", "Plan"),
}


class Spec:
    """Base of every frozen dataclass a person can type. `repr` shows what differs from the defaults."""

    # How many of the first fields are shown even so: a guard's main setting belongs to its name in a table.
    always_shown: ClassVar[int] = 0
    # What `cutlayer tune` may try for its settings. None: it takes a plug-in as it is typed.
    search: ClassVar[Search | None] = None

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Python takes True for the number 1, and 'no' for true; who typed it meant something else."""
        fields = _typed(cls)
        given = {field.name: value for field, value in zip(fields, arguments, strict=False)} | named
        for field in fields:
            if field.name not in given:
                continue
            value, kinds = given[field.name], _kinds(field.type)
            if isinstance(value, bool) and kinds & {"int", "float"} and "bool" not in kinds:
                raise ValueError(f"{cls.__name__}'s {field.name} is a number; got {value}")
            if kinds == {"bool"} and not isinstance(value, bool):
                raise ValueError(f"{cls.__name__}'s {field.name} is True or False; got {value!r}")
        return super().__new__(cls)

    def __repr__(self) -> str:
        shown = []
        for place, field in enumerate(dataclasses.fields(self)):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            usual = _default(field) is not dataclasses.MISSING and value == _default(field)
            if field.repr and (not usual or (place < self.always_shown and value is not None)):
                shown.append(f"{field.name}={_text(value)}")
        return f"{written(type(self))}({', '.join(shown)})"


def spec(text: str, kind: str | None = None, *, imports: bool = True) -> Any:
    """The object that `text` names. `kind` (a key of `HOMES`) restricts the outermost name.

    `imports=False` is for texts that nobody typed here (a run's folder): what they name outside the package must
    have been imported already, because the person at this machine has named it.
    """
    tree, origins = parsed(text)
    reader = _Reader(text, origins, imports)
    with found_by(reader.home):
        return reader.build(tree, kind)


def find(text: str, kind: str) -> type:
    """The class that a name without settings stands for."""
    tree, origins = parsed(text)
    if not isinstance(tree, ast.Name):
        raise ValueError(f"{text!r} is no name of a class")
    return _Reader(text, origins, imports=True)._find(tree, kind)


def parsed(text: str) -> tuple[ast.expr, dict[str, Origin]]:
    """The syntax tree of a spec, and what the names in it stand for that were written with their origin."""
    plain, origins = rewritten(text.strip())
    try:
        return ast.parse(plain, mode="eval").body, origins
    except SyntaxError as error:
        form = "write it as Name(argument=value), e.g. LightSplit(ratio=8)"
        if ".py:" in text:
            form += "; a path with spaces or other signs stands in quotes: 'my files/sign.py':SignBit(scale=2)"
        raise ValueError(f"cannot read {text!r}: {form}") from error


def bases(kind: str) -> tuple[type, ...]:
    """The classes that everything of a kind descends from."""
    home, *classes = BASES[kind]
    return tuple(getattr(importlib.import_module(home), name) for name in classes)


def kind_of(thing: type) -> str | None:
    """Which kind a class is of."""
    return next((kind for kind in BASES if issubclass(thing, bases(kind))), None)


def names(kind: str) -> dict[str, Any]:
    """What a folder offers: name -> class."""
    home = importlib.import_module(HOMES[kind])
    return {name: getattr(home, name) for name in home.__all__}


def plug_ins(namespace: Mapping[str, Any], *bases: type[Spec]) -> list[str]:
    """The `__all__` of a plug-in folder, from what it imports: every kind of `bases`, abbreviations first."""
    found = [
        name
        for name, thing in namespace.items()
        if isinstance(thing, type) and issubclass(thing, bases) and thing not in bases
    ]
    return sorted(found, key=lambda name: (not name.isupper(), name))


def summary(thing: Any) -> str:
    """The first line of a docstring: what `cutlayer list` prints."""
    return (thing.__doc__ or "").strip().partition("\n")[0]


def _does_not_take(thing: Any, keywords: list[str], text: str) -> str:
    """Which argument is unknown, and what was meant; else all that there are."""
    known = [field.name for field in _typed(thing)]
    for name in keywords:
        if name not in known and (near := difflib.get_close_matches(name, known, n=1)):
            return f"{thing.__name__} has no {name!r}, did you mean {near[0]!r}? (got {text!r})"
    return f"{thing.__name__} takes {signature(thing) or 'no arguments'}; got {text!r}"


def signature(thing: Any) -> str:
    """The arguments that a spec of it takes, with their defaults."""
    return ", ".join(
        field.name if _default(field) is dataclasses.MISSING else f"{field.name}={_text(_default(field))}"
        for field in _typed(thing)
    )


class _Reader:
    """From the tree of one text to the object it names."""

    def __init__(self, text: str, origins: Mapping[str, Origin], imports: bool):
        self.text, self.origins, self.imports = text, origins, imports

    def build(self, node: ast.expr, kind: str | None = None) -> Any:
        text = self.text
        if isinstance(node, ast.Call):
            thing = self._find(node.func, kind)
            if any(keyword.arg is None for keyword in node.keywords):
                raise ValueError(f"cannot read {text!r}: ** is not allowed in a spec")
            given = [keyword.arg for keyword in node.keywords]
            if twice := next((name for name in given if given.count(name) > 1), None):
                raise ValueError(f"{thing.__name__} has {twice!r} twice: leave one of them out (got {text!r})")
            arguments = [self.build(argument) for argument in node.args]
            keywords = {keyword.arg: self.build(keyword.value) for keyword in node.keywords if keyword.arg}
            try:
                inspect.signature(thing).bind(*arguments, **keywords)
            except TypeError as error:
                raise ValueError(_does_not_take(thing, list(keywords), text)) from error
            try:
                return thing(*arguments, **keywords)
            except TypeError as error:
                raise ValueError(f"{text!r} has a value of the wrong type: {error}") from error
        if isinstance(node, ast.Name):
            return self.build(ast.Call(func=node, args=[], keywords=[]), kind)
        if isinstance(node, ast.Tuple | ast.List):
            return tuple(self.build(element) for element in node.elts)
        try:
            return ast.literal_eval(node)
        except ValueError as error:
            shown = ast.unparse(node)
            for placeholder, origin in self.origins.items():
                shown = shown.replace(placeholder, str(origin))
            way_out = hints.of_text(text, shown, kind)
            told = way_out or f"arguments are numbers, strings or other specs, not {shown!r}"
            raise ValueError(f"cannot read {text!r}: {told}") from error

    def _find(self, node: ast.expr, kind: str | None) -> Any:
        if not isinstance(node, ast.Name):
            raise ValueError(f"cannot read {self.text!r}: write it as Name(argument=value), e.g. LightSplit(ratio=8)")
        if node.id in self.origins:
            origin = self.origins[node.id]
            return _fit(self._load(origin), str(origin), kind)
        known: dict[str, Any] = {}
        for home in [kind] if kind else HOMES:
            known |= names(home)
        offers, _ = announced(node.id, self.imports)
        if len(offers) + (node.id in known) > 1:
            there = [f"{known[node.id].__module__}:{node.id} of cutlayer"] if node.id in known else []
            everywhere = " and as ".join([*there, *map(str, offers)])
            raise ValueError(
                f"{node.id} is there twice, as {everywhere}: write which one, e.g. {offers[-1].origin}(...)"
            )
        if node.id in known:
            return known[node.id]
        if offers:
            self._refuse_import(Origin(offers[0].origin.partition(":")[0], node.id, is_file=False))
            return _fit(offers[0].load(), offers[0].origin, kind)
        known |= {one.name: None for one in announced(imports=False)[0]}
        near = difflib.get_close_matches(node.id, known, n=3, cutoff=0.4)
        lower = {name.lower(): name for name in known}
        if node.id.lower() in lower:
            near = [lower[node.id.lower()]]
        hint = hints.of_name(node.id, kind)
        if not hint:
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(sorted(known))}"
        raise ValueError(f"there is no {node.id!r} among the {kind or 'known names'}; {hint}")

    def home(self, origin: Origin) -> Any:
        """The module that something is in."""
        return import_home(origin) if self.imports else self._refuse_import(origin)

    def _load(self, origin: Origin) -> Any:
        if not origin.is_file and origin.place.partition(".")[0] == __name__.partition(".")[0]:
            raise ValueError(f"{origin} is in the package itself: write {origin.name}(...)")
        home = self.home(origin)
        if not hasattr(home, origin.name):
            offers = [n for n, thing in vars(home).items() if _is_own(thing, home.__name__)]
            raise ValueError(
                f"{origin.place} has no {origin.name!r}; it has {', '.join(offers) or 'no class for a spec'}"
            )
        return getattr(home, origin.name)

    def _refuse_import(self, origin: Origin) -> Any:
        """The module of `origin`, if somebody here has named it; a text that came from elsewhere imports nothing."""
        if not self.imports and not origin.is_file and origin.place not in sys.modules:
            raise NotNamed(origin)
        if not origin.is_file:
            return load_module(origin.place)
        there = {Path(file.path): name for name, file in named().items()}
        path = Path(origin.place).expanduser().resolve()
        # The folder a run was started from may be another one: its digests tell whether it is the same file.
        alike = [path] if path in there else [one for one in there if one.name == path.name]
        if len(alike) != 1:
            raise NotNamed(origin)
        return load_module(there[alike[0]])


class NotNamed(ValueError):
    """A text that came from elsewhere names code that nobody here has named."""

    def __init__(self, origin: Origin):
        self.origin = origin
        super().__init__(
            f"{origin} is not part of cutlayer, and a plan from a folder or another machine imports nothing by itself"
        )


def _is_own(thing: Any, module: str) -> bool:
    return isinstance(thing, type) and issubclass(thing, Spec) and thing.__module__ == module


def _fit(thing: Any, origin: str, kind: str | None) -> Any:
    """A class from outside, if it is one that a spec may name here."""
    wanted = bases(kind) if kind in BASES else (Spec,)
    if isinstance(thing, type) and issubclass(thing, wanted):
        return thing
    home = BASES[kind][0] if kind in BASES else __name__
    needed = " or ".join(f"{home}.{base.__name__}" for base in wanted)
    from torch.nn import Module  # late: what only reads names needs no torch

    if isinstance(thing, type) and issubclass(thing, Module) and kind in (None, "nets"):
        raise ValueError(f"{origin} is no spec: {hints.of_model(origin)}")
    raise ValueError(f"{origin} cannot stand among the {kind or 'specs'}: it is no class that descends from {needed}")


def _typed(kind: Any) -> "list[dataclasses.Field[Any]]":
    """The fields of a spec that arguments fill, in their order."""
    return [field for field in dataclasses.fields(kind) if field.init] if dataclasses.is_dataclass(kind) else []


def _kinds(kind: Any) -> frozenset[str]:
    """The names of the types that a field may have."""
    text = kind if isinstance(kind, str) else kind.__name__ if isinstance(kind, type) else str(kind)
    return _names(text)


@cache
def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split("|"))


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        inside = ", ".join(_text(element) for element in value)
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return repr(value)
