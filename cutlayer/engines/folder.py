"""A run's folder on disk: its plan and secrets, each file whole or not there."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from .. import __version__
from ..core.spec import NotNamed, spec
from ..data.base import Source
from ..data.meaning import Meaning
from ..data.scaling import AS_THEY_ARE, Scale
from ..data.texts import TextSource
from ..data.tokenizer import Tokenizer, WordTokenizer
from ..training import checkpoint
from ..training.plan.code import refuse_other_code
from ..training.plan.plan import Plan
from ..training.plan.plan_text import refuse_old_names

TRANSCRIPT = "transcript.bin"
RESULT = "result.json"
SCALE = "input_scale.json"
MEANING = "meaning.json"
WORDS = "words.txt"
SECRET = "private.json"
OWN_DATA = "own_data.json"


def refuse_finished(folder: Path) -> None:
    """A result is never written over."""
    if (folder / RESULT).exists():
        raise FileExistsError(f"the run in {folder} is finished, with its result in {RESULT}: begin another")


def load_plan(folder: Path, given: Plan | None = None) -> Plan:
    """The plan a folder was started with, secrets included. A recipe's own network must be `given` again."""
    path = folder / "plan.json"
    if not path.exists():
        if not folder.is_dir():
            raise FileNotFoundError(
                f"there is no folder {folder} (looked for {folder.resolve()}): name that of a run"
            )
        raise FileNotFoundError(
            f"{folder} is not a training run: there is no {path.name} in it. Name a folder that `cutlayer train` or "
            "`cutlayer join` has written"
        )
    try:
        told = json.loads(path.read_text())
        text = told["plan"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ValueError(
            f"{path} is damaged, and {folder} cannot go on without it ({error}): put back a copy of it, or begin "
            "anew with another --out"
        ) from error
    secret = known_secret(folder)
    checkpoint.refuse_other_version(told.get("version"), folder)
    refuse_old_names(text)
    if given is not None and repr(given) != text and not _is_text_of(given, text):
        raise ValueError(
            f"{folder} was started with another plan ({_differences(given, text)}): leave these options out to go "
            "on, or begin anew without --resume"
        )
    try:
        # Nobody typed this text here: it may name code outside the package, and imports none.
        plan = replace(given or spec(text, "plans", imports=False), private_seed=secret)
    except NotNamed as error:
        place = error.origin.place
        way_out = f"if you trust {place}, type --code {place} beside it, or name the recipe again"
        raise ValueError(f"{folder}: {error}; {way_out}") from error
    except ValueError as error:
        raise ValueError(
            f"{folder} was started by a recipe: give the same recipe and options beside --resume ({error})"
        ) from error
    refuse_other_code(told.get("code", {}), plan.code(), str(folder))
    return plan


def known_secret(folder: Path) -> int | None:
    """The private seed that a run draws from; a step that is made again must draw the same numbers."""
    path = folder / SECRET
    try:
        seed: int | None = json.loads(path.read_text())["private_seed"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        trouble = "is not there" if isinstance(error, FileNotFoundError) else "is empty or damaged"
        raise ValueError(
            f"{path} {trouble}, and without the private seed in it no step can be made again as it was: put back a "
            'copy of it; if you chose the seed yourself, write {"private_seed": SEED} into it; else begin anew with '
            "another --out (the weights in this folder are whole, and can still be read)"
        ) from error
    return seed


def _differences(given: Plan, text: str) -> str:
    """The fields in which a plan is not the one that was written down."""
    try:
        begun = spec(text, "plans", imports=False)
    except ValueError:
        return f"it is {text}"
    pairs = {one.name: (getattr(begun, one.name), getattr(given, one.name)) for one in fields(given)}
    changed = [f"{name} was {old!r}, now {new!r}" for name, (old, new) in pairs.items() if old != new]
    return "; ".join(one for one in changed if not one.startswith("private_seed")) or f"it is {text}"


def _is_text_of(plan: Plan, text: str) -> bool:
    """Whether `text` is this plan: the same file may be named by another path."""
    try:
        return bool(spec(text, "plans", imports=False) == plan)
    except ValueError:
        return False


def typable(plan: Plan) -> bool:
    """Whether the text of a plan is enough to build it again; code from outside the package must be named, too."""
    try:
        return bool(spec(repr(plan), "plans") == plan) and not plan.code()
    except ValueError:
        return False


def write_plan(plan: Plan, folder: Path, data: str) -> None:
    """`data` is the fingerprint of what it learns from and is tested on."""
    told = {
        "version": __version__,
        "plan": repr(plan),
        "fingerprint": plan.fingerprint(),
        "code": plan.code(),
        "data": data,
    }
    checkpoint.write_text(folder / "plan.json", json.dumps(told, indent=1))


def refuse_other_data(folder: Path, plan: Plan, data: str) -> None:
    """The name of a data set says little of what lies in a folder under it."""
    begun = json.loads((folder / "plan.json").read_text()).get("data", data)
    if begun != data:
        raise ValueError(
            f"{folder} was begun with other samples than those of {plan.data} that are at hand now: name the folder "
            "that holds the ones it was begun with by --data-dir, or begin anew without --resume"
        )


def keep_own_data(folder: Path, data: Source | None, samples: str) -> None:
    """What a site joined with: where it lies if that is not what the plan names, and the fingerprint of its samples.
    For its owner alone."""
    told = {"samples": samples} | ({} if data is None else {"data": repr(data)})
    checkpoint.write_text(folder / OWN_DATA, json.dumps(told), mode=0o600)


def refuse_other_samples(folder: Path, samples: str, data: str) -> None:
    """A site goes on with what it began with: other samples may mean the same, and are no part of this run."""
    begun = _own_data(folder).get("samples", samples)
    if begun != samples:
        raise ValueError(
            f"{folder} was begun with other samples than those of {data}: give the same --data, and --data-dir, as "
            "then, or begin anew with another --out"
        )


def _own_data(folder: Path) -> dict[str, Any]:
    """What `keep_own_data` wrote; nothing where nobody joined."""
    path = folder / OWN_DATA
    try:
        return dict(json.loads(path.read_text())) if path.exists() else {}
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def learnt_from(folder: Path, plan: Plan) -> Source:
    """The data that the network in a folder has learnt from: a site's own, or those that the plan names."""
    path = folder / OWN_DATA
    try:
        told = _own_data(folder)
        if "data" not in told:
            return plan.data
        source: Source = spec(told["data"], "data", imports=False)
    except NotNamed as error:
        place = error.origin.place
        raise ValueError(f"{path}: {error}; if you trust {place}, type --code {place} beside it") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} does not say what was learnt from ({error}): name the data by --data") from error
    return source


def keep_scale(folder: Path, scale: Scale | None) -> None:
    """What a client's inputs were put on: facts of its data, readable by its owner alone."""
    if scale is not None:
        checkpoint.write_text(folder / SCALE, json.dumps(scale.as_dict()), mode=0o600)


def known_scale(folder: Path) -> Scale:
    """The scale that the network in a folder learnt on."""
    path = folder / SCALE
    try:
        return Scale.from_dict(json.loads(path.read_text())) if path.exists() else AS_THEY_ARE
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def keep_meaning(folder: Path, meaning: Meaning) -> None:
    """What a client's numbers stand for, readable by its owner alone."""
    if meaning != Meaning():
        checkpoint.write_text(folder / MEANING, json.dumps(meaning.as_dict()), mode=0o600)


def known_meaning(folder: Path) -> Meaning:
    """What the features and classes of the network in a folder stand for."""
    path = folder / MEANING
    try:
        return Meaning.from_dict(json.loads(path.read_text())) if path.exists() else Meaning()
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def refuse_other_meaning(folder: Path, meaning: Meaning, data: str, or_else: str = "") -> None:
    """The network in a folder knows features and classes by their places alone. `or_else`: another way out."""
    if difference := meaning.difference(known_meaning(folder)):
        raise ValueError(
            f"{data} is not what the run in {folder} has learnt from: {difference}. Give it the same "
            f"names and values, in the same order{or_else}"
        )


def keep_words(folder: Path, tokenizer: Tokenizer | None) -> None:
    """What the token ids of a run stand for, where they are words of the client's own texts: for its owner alone."""
    if isinstance(tokenizer, WordTokenizer):
        checkpoint.write_text(folder / WORDS, tokenizer.as_text(), mode=0o600)


def with_words(source: Source, folder: Path) -> Source:
    """Texts by the words that a run has learnt, whatever words those at hand would give."""
    known = folder / WORDS
    if not isinstance(source, TextSource) or source.words or not known.exists():
        return source
    return replace(source, words=str(known.absolute()))  # type: ignore[type-var]  # all that descend are dataclasses


def scale_in_words(scale: Scale | None) -> list[str]:
    if scale is None or not scale.why:  # a table is always standardised, and says so
        return []
    return [f"inputs: {scale.why}, so each feature is standardised by the training rows (kept in {SCALE})"]
