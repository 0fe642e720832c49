"""The command `layers`: where a network can be cut, and what each place costs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..training.device import prepare
from .options import AsJson, DataDir, Threads
from .terminal import say

if TYPE_CHECKING:
    from ..core.batch import Task
    from ..nets.base import Net

USUAL_CLASSES = 10
SHAPE_HELP = "The shape of one sample, e.g. 3,32,32. Default: that of --data, else what the network is usually given."


def layers(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A network: ResNet18, my.py:Model, package.module:Model(width=8), Timm('vit_tiny_patch16_224'), "
            "HuggingFace('folder'). With back='NAME' in it the last layers are the client's, too.",
        ),
    ],
    shape: Annotated[str | None, typer.Option("--input", help=SHAPE_HELP)] = None,
    data: Annotated[str | None, typer.Option(help="Take the shape and the classes from this data set.")] = None,
    data_dir: DataDir = None,
    batch_size: Annotated[int, typer.Option(help="Samples a step, for memory and bytes.")] = 64,
    everything: Annotated[bool, typer.Option("--all", help="Also the layers that blocks are made of.")] = False,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """List where a network can be cut, and what each place costs the client.

    [bold]cutlayer layers my.py:Model --input 3,32,32[/bold]
    The client keeps everything up to and including the layer that is named: the deeper the cut, the more it computes
    (what z tells of the input is for an audit to say). A row has z's shape, the client's parameters and
    multiply-accumulates, and, for a batch, its memory (weights, gradients, activations) and the bytes that a step
    sends and receives without a guard. Where a shortcut or shared weights would have to cross as well there is no
    cut; the row says which. Then:
    [bold]cutlayer train --net "Own('my.py:Model', at='layer1', back='fc')"[/bold]
    """
    prepare(threads or 1, "cpu")
    from ..training.facts.memory import ON_TOP
    from ..training.facts.places import costs

    if batch_size < 1:
        raise ValueError(f"--batch-size is how many samples a step has, at least 1; got {batch_size}")
    net = read_model(model)
    task = _task(net, shape, data, data_dir)
    rows = list(costs(net, task, batch_size, everything))
    if as_json:
        told = {"net": repr(net), "input": list(task.shape), "classes": task.classes or None}
        print(json.dumps({**told, "batch_size": batch_size, "places": rows}))
        return
    for line in table(rows):
        print(line)
    inputs = _times(task.shape) + (f" and {task.classes} classes" if task.classes else "")
    say(f"{net!r}, inputs of {inputs}, batches of {batch_size}; memory without an optimizer's own")
    say(f"memory: {ON_TOP}")


def read_model(text: str) -> "Net":
    """A network by its spec, or a user's model by where it is."""
    from ..core.outside.makers import is_place, maker
    from ..core.spec import spec
    from ..nets import Net, Own

    if is_place(text):
        made: Any = maker(text)
        inner = getattr(made, "func", made)
        if not (isinstance(inner, type) and issubclass(inner, Net)):
            return Own(text)
    net = spec(text, "nets")
    assert isinstance(net, Net)
    return net


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Aligned columns; where there is no cut, the reason."""
    heads = ["layer", "z", "parameters", "MACs", "memory", "up", "down"]
    cells = [heads, *(_cells(row) for row in rows if "z" in row)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(heads))]
    widths[0] = max([widths[0], *(len(row["name"]) for row in rows)])
    lines = {row[0]: _line(row, widths) for row in cells}
    others = {row["name"]: f"{row['name']:{widths[0]}}  no cut: {row['why_not']}" for row in rows if "z" not in row}
    return [_line(heads, widths), *((lines | others)[row["name"]] for row in rows)]


def _cells(row: dict[str, Any]) -> list[str]:
    sizes = [_bytes(row[name]) for name in ("memory", "bytes_up", "bytes_down")]
    return [row["name"], _times(row["z"]), f"{row['parameters']:,}", f"{row['macs']:,}", *sizes]


def _line(cells: list[str], widths: list[int]) -> str:
    first, *others = cells
    return "  ".join(
        [f"{first:{widths[0]}}", *(f"{one:>{width}}" for one, width in zip(others, widths[1:], strict=True))]
    )


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _times(shape: Any) -> str:
    return "x".join(map(str, shape))


def _task(net: "Net", shape: str | None, data: str | None, data_dir: Path | None) -> "Task":
    from ..core.spec import spec
    from ..training.batches import task_of
    from ..training.plan.code import usual_shape

    if data is not None:
        if shape is not None:
            raise ValueError("--input and --data both say what one sample looks like: leave one out")
        loaded = spec(data, "data").load(data_dir)
        return task_of(loaded.train, len(loaded.classes))
    if shape is not None:
        try:
            sides = tuple(int(side) for side in shape.split(","))
        except ValueError:
            sides = ()
        if not sides or min(sides) < 1:
            raise ValueError(f"--input is the shape of one sample, whole numbers with commas: 3,32,32; got {shape!r}")
        return _made_for(net, sides)
    usual = usual_shape(net)
    if usual is None:
        raise ValueError(
            f"what does {net!r} read? Say the shape of one sample, e.g. --input 3,32,32, or --data MNIST"
        )
    return _made_for(net, usual)


def _made_for(net: "Net", shape: tuple[int, ...]) -> "Task":
    """What a network learns where no data say it: models of one's own have their classes, ours are made for some."""
    from ..core.batch import Task
    from ..nets.at_layers import CutAtLayers

    if isinstance(net, CutAtLayers):
        return Task(shape, 0)
    vocabulary = getattr(net, "vocabulary", 0)
    return Task(shape, vocabulary if getattr(net, "causal", False) else USUAL_CLASSES, vocabulary=vocabulary)


def register(app: typer.Typer) -> None:
    app.command()(layers)
