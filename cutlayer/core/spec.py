"""Objects as text: `spec("LightSplit(ratio=8)")` and `repr(...)` are each other's inverse.

The command line, recipes, reports and test ids all use this one form. Names come from the `__all__` of the
plug-in folders, arguments are literals or further specs; nothing is ever evaluated.
"""

import ast
import dataclasses
import difflib
import importlib
import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

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
    "protocols": "cutlayer.core.split",
    "plans": "cutlayer.training.plan.plan",
}


class Spec:
    """Base of every frozen dataclass a person can type. `repr` shows what differs from the defaults."""

    # How many of the first fields are shown even so: a guard's main setting belongs to its name in a table.
    always_shown: ClassVar[int] = 0

    def __repr__(self) -> str:
        shown = []
        for place, field in enumerate(dataclasses.fields(self)):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            usual = _default(field) is not dataclasses.MISSING and value == _default(field)
            if field.repr and (not usual or (place < self.always_shown and value is not None)):
                shown.append(f"{field.name}={_text(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"


def spec(text: str, kind: str | None = None) -> Any:
    """The object that `text` names. `kind` (a key of `HOMES`) restricts the outermost name."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(
            f"cannot read {text!r}: write it as Name(argument=value), e.g. LightSplit(ratio=8)"
        ) from error
    return _build(tree, text, kind)


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


def signature(thing: Any) -> str:
    """The arguments that a spec of it takes, with their defaults."""
    fields = [field for field in dataclasses.fields(thing) if field.init] if dataclasses.is_dataclass(thing) else []
    return ", ".join(
        field.name if _default(field) is dataclasses.MISSING else f"{field.name}={_text(_default(field))}"
        for field in fields
    )


def _build(node: ast.expr, text: str, kind: str | None = None) -> Any:
    if isinstance(node, ast.Call):
        thing = _find(node.func, text, kind)
        if any(keyword.arg is None for keyword in node.keywords):
            raise ValueError(f"cannot read {text!r}: ** is not allowed in a spec")
        arguments = [_build(argument, text) for argument in node.args]
        keywords = {keyword.arg: _build(keyword.value, text) for keyword in node.keywords if keyword.arg}
        try:
            inspect.signature(thing).bind(*arguments, **keywords)
        except TypeError as error:
            raise ValueError(f"{thing.__name__} takes {signature(thing) or 'no arguments'}; got {text!r}") from error
        try:
            return thing(*arguments, **keywords)
        except TypeError as error:
            raise ValueError(f"{text!r} has a value of the wrong type: {error}") from error
    if isinstance(node, ast.Name):
        thing = _find(node, text, kind)
        # A protocol is a module that needs its parts; a plan names the class. Everything else is made.
        if dataclasses.is_dataclass(thing):
            return _build(ast.Call(func=node, args=[], keywords=[]), text, kind)
        return thing
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_build(element, text) for element in node.elts)
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise ValueError(
            f"cannot read {text!r}: arguments are numbers, strings or other specs, not {ast.unparse(node)!r}"
        ) from error


def _find(node: ast.expr, text: str, kind: str | None) -> Any:
    if not isinstance(node, ast.Name):
        raise ValueError(f"cannot read {text!r}: write it as Name(argument=value), e.g. LightSplit(ratio=8)")
    known: dict[str, Any] = {}
    for home in [kind] if kind else HOMES:
        known |= names(home)
    if node.id in known:
        return known[node.id]
    near = difflib.get_close_matches(node.id, known, n=3, cutoff=0.4)
    lower = {name.lower(): name for name in known}
    if node.id.lower() in lower:
        near = [lower[node.id.lower()]]
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(sorted(known))}"
    raise ValueError(f"there is no {node.id!r} among the {kind or 'known names'}; {hint}")


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        inside = ", ".join(_text(element) for element in value)
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return value.__name__ if isinstance(value, type) else repr(value)
