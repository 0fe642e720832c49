"""The command `check`: the laws of a plug-in, for whoever writes one."""

import json
from typing import Annotated

import typer

from ..training.device import prepare
from .options import AsJson, Threads


def check(
    plug_in: Annotated[
        str,
        typer.Argument(
            metavar="SPEC",
            help="What to try, with its arguments: 'my.py:SignBit(scale=2)', or a name from the package.",
        ),
    ],
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Try the laws of a plug-in's kind on toy shapes, and say in words which hold. Exits with 1 if one is broken.

    [bold]cutlayer check 'my.py:SignBit(scale=2)'[/bold]
    Guards, attacks, rules, detectors, partitions, networks, sources of data: split = unsplit, bytes = frames,
    claims = what is sent.
    """
    prepare(threads or 1, "cpu")  # toys are too small to share out
    from ..audit.check import check as try_laws
    from ..core.spec import spec

    thing = spec(plug_in)
    found = try_laws(thing)
    broken = [one for one in found if one.holds is False]
    if as_json:
        print(json.dumps({"plug_in": repr(thing), "holds": not broken, "laws": [one._asdict() for one in found]}))
    else:
        print(repr(thing))
        for one in found:
            mark = {True: "holds  ", False: "BROKEN ", None: "skipped"}[one.holds]
            print(f"{mark}  {one.law}" + (f": {one.why}" if one.why else ""))
        print(f"{len(broken)} of {len(found)} laws are broken" if broken else "all laws hold")
    if broken:
        raise SystemExit(1)


def register(app: typer.Typer) -> None:
    app.command()(check)
