"""What a checkout calls by another name than this one: the only place where `same_results.py` knows it."""

import ast
import contextlib
import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

# Words of the plans below -> what a checkout may call them, the newest first. The first that is a field of its Plan
# is taken; `rounds` comes before `schedule`, which in older checkouts is that of the learning rate.
FIELDS = {
    "rounds": ("rounds", "schedule"),
    "lr_schedule": ("lr_schedule", "schedule"),
    "local_steps": ("local_steps", "turn"),
    "clients_per_round": ("clients_per_round", "take"),
    "frozen_parts": ("frozen_parts", "frozen"),
    "shared_client_network": ("shared_client_network", "shared"),
    "batch_size": ("batch_size", "batch"),
    "val_share": ("val_share", "val"),
    "aux_samples": ("aux_samples", "aux"),
    "guarded_clients": ("guarded_clients", "guarded"),
    "client_detectors": ("client_detectors", "watch"),
    "server_detectors": ("server_detectors", "server_watch"),
    "micro_batches": ("micro_batches", "pieces"),
}
# A spec with arguments that used to be fields beside it: word -> (of the spec, of the plan).
SPREAD = {
    "protocol": {"home": "home", "fusion": "fusion"},
    "compression": {"answers": "down", "gradients": "back"},
    "start": {"path": "weights", "skip_tail": "skip_tail"},
}
# Keys of result.json, history.jsonl and audit.json that were renamed.
KEYS = {"watch": "detectors_honest", "watched": "detectors_attacked", "server_watch": "server_detectors"}
# What is no result: times, texts of the plan, where and with what it was made.
LEFT_OUT = re.compile(r"seconds$|^(plan|version|command|date|time|out|fingerprint|schema|lpips_missing|digest)$")
# Where modules and packages may be, the newest first.
MODULES = {
    "message": ("cutlayer.core.message", "cutlayer.message"),
    "frames": ("cutlayer.wire.frames", "cutlayer.wire"),
    "main": ("cutlayer.cli.app", "cutlayer.cli"),
    "codecs": ("cutlayer.wire.codecs", "cutlayer.codecs"),
}


def module(name: str) -> Any:
    """A module of the checkout, wherever it is."""
    for place in MODULES[name]:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(place)
    raise ModuleNotFoundError(f"none of {', '.join(MODULES[name])} is there")


def codec_thing(name: str) -> Any:
    """A class of some file of the codecs, whichever has it."""
    home = module("codecs")
    for found in [home, *_inside(home)]:
        if hasattr(found, name):
            return getattr(found, name)
    raise AttributeError(f"no codec's file has {name}")


def _inside(package: Any) -> Iterator[Any]:
    for one in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        yield importlib.import_module(one.name)


def plan_text(words: dict[str, str]) -> str:
    """A plan of this file as the checkout spells it."""
    from cutlayer import Plan

    known = {field.name for field in dataclasses.fields(Plan)}
    spelled: dict[str, str] = {}
    for word, value in words.items():
        for name, text in _spread(word, value, known):
            field = next((one for one in FIELDS.get(name, (name,)) if one in known), None)
            if field is None:
                raise ValueError(f"Plan has no field for {name!r}: add its new name to FIELDS or SPREAD")
            spelled[field] = text
    return f"Plan({', '.join(f'{name}={text}' for name, text in spelled.items())})"


def _spread(word: str, value: str, known: set[str]) -> list[tuple[str, str]]:
    """A spec whose arguments are fields of the checkout's plan, as these fields."""
    fields = SPREAD.get(word, {})
    call = ast.parse(value, mode="eval").body
    if not isinstance(call, ast.Call) or not known & set(fields.values()):
        return [(word, value)]
    apart = [(fields[str(one.arg)], ast.unparse(one.value)) for one in call.keywords]
    return apart + ([(word, ast.unparse(call.func))] if word in known else [])
