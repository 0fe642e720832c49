"""What somebody probably meant who typed a file, or a folder, where a spec is asked for."""

import ast
import re
from pathlib import Path

_OF_FILES = {".npz": "Npz({!r})", ".npy": "Npz({!r})", ".csv": "Table({!r}, target='COLUMN')"}
_BARE = re.compile(r"[\w./~-]+\.(?:npz|npy|csv|py|safetensors|json|txt|parquet)")


def of_text(text: str, shown: str, kind: str | None) -> str:
    """The way out for `text`, of which `shown` is no literal; "" where nothing better is known."""
    path = Path(text)
    if kind == "data" and path.suffix in _OF_FILES:
        return f"a file of your own is {_OF_FILES[path.suffix].format(text)}"
    if kind == "data" and path.is_dir():
        return f"a folder of pictures is ImageFolder({text!r}, size=32)"
    if path.suffix == ".py" and path.is_file():
        return f"name what is in the file: {', '.join(f'{text}:{name}' for name in _offers(path)) or 'it is empty'}"
    if kind == "plans" and Path(f"{text.partition(':')[0]}.py").is_file():
        place, _, function = text.partition(":")
        return f"a recipe is named with its ending, {place}.py:{function or 'FUNCTION'}"
    if shown != text and _BARE.fullmatch(shown):
        return f"the name of a file stands in quotes, {shown!r}"
    return ""


def of_name(name: str, kind: str | None) -> str:
    """The same for a name that is none of a kind's."""
    if kind in ("data", "plans") and Path(name).is_dir():
        return of_text(name, name, kind) or f"{name} is a folder, and a plan is FILE.py:FUNCTION or 'Plan(epochs=3)'"
    if kind == "plans":
        return of_text(name, name, kind) or "a plan is FILE.py:FUNCTION or 'Plan(epochs=3)'"
    if kind == "attacks" and name == "all":
        return "--budget quick tries every attack that fits"
    return ""


def of_model(origin: str) -> str:
    """For a torch module where a network of a plan is asked for."""
    return f"a model of torch is a network with its cut: Own({origin!r}, at='LAYER', back='LAYER')"


def _offers(path: Path) -> list[str]:
    """Classes and functions at the top of a file; nothing of it is run."""
    try:
        tree = ast.parse(path.read_text())
    except (SyntaxError, ValueError, OSError):
        return ["NAME"]
    return [one.name for one in tree.body if isinstance(one, ast.ClassDef | ast.FunctionDef) and one.name[0] != "_"]
