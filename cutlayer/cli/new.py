"""`cutlayer new`: a recipe that comes with the package, copied to where it can be changed."""

import ast
import difflib
import shlex
from pathlib import Path
from typing import Annotated

import typer

from ..core.files import write_bytes
from .terminal import say

_PACKAGE = Path(__file__).parents[1]


def recipes() -> dict[str, Path]:
    """By name: those inside an installed package, or beside it in a checkout."""
    folder = next((path for path in (_PACKAGE / "recipes", _PACKAGE.parent / "recipes") if path.is_dir()), None)
    if folder is None:
        raise FileNotFoundError(
            f"the recipes are missing from this installation ({_PACKAGE}): install cutlayer again"
        )
    return {str(path.relative_to(folder).with_suffix("")): path for path in sorted(folder.rglob("*.py"))}


def new(
    recipe: Annotated[str | None, typer.Argument(help="Which one. Without a name: what there is.")] = None,
    target: Annotated[Path | None, typer.Argument(help="The new file. Default: the recipe's own name, here.")] = None,
) -> None:
    """Copy a recipe that comes with the package, to start from.

    [bold]cutlayer new fashion mine.py[/bold], then [bold]cutlayer train mine.py:quick[/bold]
    """
    known = recipes()
    if recipe is None:
        width = max(map(len, known))
        for name, path in known.items():
            print(f"{name:{width}}  {_first_line(path)}")
        return
    name = recipe.removesuffix(".py").removeprefix("recipes/")
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(f"there is no recipe {recipe!r} in the package; {hint}`cutlayer new` lists them")
    made = target or Path(known[name].name)
    if made.is_dir():
        made = made / known[name].name
    if made.suffix != ".py":  # no command would take it as a plan
        raise ValueError(
            f"a recipe is a Python file: cutlayer new {name} {shlex.quote(str(made.with_suffix('.py')))}"
        )
    if made.exists():
        raise FileExistsError(f"{made} is already there: name another file, cutlayer new {name} FILE.py")
    if not made.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {made.parent} to put {made.name} in: make it, or choose another")
    write_bytes(made, known[name].read_bytes())
    functions = _functions(made)
    first = shlex.quote(f"{made}:{functions[0]}") if functions else ""
    say(f"wrote {made}" + (f"; try it: cutlayer train {first}" if functions else ""))
    if len(functions) > 1:
        say(f"it has {', '.join(functions)}")


def _first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def _functions(path: Path) -> list[str]:
    """Functions that return a plan, the quickest first where there is one."""
    found = [
        one.name
        for one in ast.parse(path.read_text()).body
        if isinstance(one, ast.FunctionDef) and isinstance(one.returns, ast.Name) and one.returns.id == "Plan"
    ]
    return sorted(found, key=lambda name: name != "quick")


def register(app: typer.Typer) -> None:
    app.command()(new)
