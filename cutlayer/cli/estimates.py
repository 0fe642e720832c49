"""The commands `memory`, `edge` and `costs`: figures of a plan that is not trained, and the model behind each."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.files import write_together
from ..training.device import prepare
from .options import AsJson, DataDir, OneGuard, Out, Recipe, plan_options
from .terminal import say


@plan_options
def memory(
    changes: dict[str, Any],
    plan: Recipe = None,
    guard: OneGuard = None,
    data_dir: DataDir = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """What a client of a plan needs in memory: parameters, gradients, optimizer state and activations, counted.

    [bold]cutlayer memory --net 'ResNet18(depth=4)' --data CIFAR10[/bold]
    One row for a client that learns, one for the same with activation checkpointing (the head runs again for its
    backward pass), one for a frozen client (forward only). Nothing is trained. Writes memory.json and memory.png.
    """
    from ..engines.taken import taken
    from ..training.facts.memory import ON_TOP, breakdown
    from .memory import picture, table

    with taken(out, "memory") as folder:
        chosen, task = _chosen(plan, changes, guard, data_dir)
        found = breakdown(chosen, task)
        result = {"plan": repr(chosen), "client_memory": found}
        write_together(folder, {"memory.json": _json(result), "memory.png": picture(found)})
    if as_json:
        print(json.dumps({**result, "out": str(folder)}))
        return
    for line in table(found):
        say(line)
    say("working: what the largest layer reads and writes; of it and the activations only the larger is in the total")
    say(ON_TOP)
    say(f"open {folder / 'memory.png'}")


@plan_options
def edge(
    changes: dict[str, Any],
    plan: Recipe = None,
    guard: OneGuard = None,
    data_dir: DataDir = None,
    gflops: Annotated[float, typer.Option(help="Operations a nanosecond of the device's core, float32.")] = 12.0,
    watts: Annotated[float, typer.Option(help="What the device takes while it works.")] = 5.0,
    nanojoules: Annotated[float, typer.Option(help="What a byte costs its radio.")] = 100.0,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """What a client of a plan would cost a small device: time, memory, bytes and energy, by a model that is stated.

    [bold]cutlayer edge --net 'ResNet18(depth=1)' --data CIFAR10 --guard 'SEAL(energy=0.7)'[/bold]
    Head and guard run on one thread here; time is scaled by the core's speed. Whether the head can leave as a program
    (torch.export) is tried. Nothing is trained, and nothing was measured on a device. Writes edge.json.
    """
    from ..bench.edge import Core, lines
    from ..bench.edge import edge as measured
    from ..engines.taken import taken

    with taken(out, "edge") as folder:
        chosen, task = _chosen(plan, changes, guard, data_dir)
        found = measured(chosen, task, Core(gflops, watts, nanojoules))
        write_together(folder, {"edge.json": _json({"plan": repr(chosen), **found})})
    if as_json:
        print(json.dumps({**found, "out": str(folder)}))
        return
    for line in lines(found):
        say(line)
    say(f"written to {folder / 'edge.json'}")


@plan_options
def costs(
    changes: dict[str, Any],
    plan: Recipe = None,
    guard: OneGuard = None,
    data_dir: DataDir = None,
    steps: Annotated[
        list[int] | None, typer.Option(help="Mini-batches between two merges. Repeatable; default: 1 to 100.")
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """What federated, split and mixed schemes cost a client of a plan, on paper: bytes and work a mini-batch.

    [bold]cutlayer costs --net 'ResNet18(depth=4)' --data CIFAR10 --guard 'LFQ(groups=1, bits=13)'[/bold]
    The model is Table 2.1 of Madill's thesis (2025). Nothing is trained. Writes costs.json and costs.png.
    """
    if any(k < 1 for k in steps or ()):
        raise ValueError(f"--steps is a whole number from 1 up, or several; got {', '.join(map(str, steps or ()))}")
    from ..engines.taken import taken
    from ..training.facts.schemes import table

    with taken(out, "costs") as folder:
        chosen, task = _chosen(plan, changes, guard, data_dir)
        found = table(chosen, task, list(dict.fromkeys(steps or [1, 2, 5, 10, 25, 50, 100])))
        write_together(folder, {"costs.json": _json({"plan": repr(chosen), **found}), "costs.png": chart(found)})
    if as_json:
        print(json.dumps({**found, "out": str(folder)}))
        return
    for line in cost_lines(found):
        say(line)
    say(f"open {folder / 'costs.png'}")


def cost_lines(found: dict[str, Any]) -> list[str]:
    """A row a scheme: MB a mini-batch at each number of steps, and who computes how much of one."""
    rows = found["schemes"]
    many = [row["steps"] for row in next(iter(rows.values()))]
    head = f"{'MB a batch':18}" + "".join(f"{f'k = {k}':>11}" for k in many) + f"{'client':>10}{'server':>10}"
    out = [head]
    for name, each in rows.items():
        sizes = "".join(f"{row['bytes'] / 1e6:11.3f}" for row in each)
        out.append(f"{name:18}{sizes}{each[0]['client']:10.1%}{each[0]['server']:10.1%}")
    letters = found["letters"]
    out += [
        f"q = {letters['cut'] / 1e3:.1f} kB, |W| = {letters['weights'] / 1e6:.1f} MB, rho = {letters['rho']:.3f}; "
        f"the client has {letters['share']:.1%} of the weights and {letters['work']:.1%} of the work (at k = 1)"
    ]
    return out


def chart(found: dict[str, Any]) -> bytes:
    """Bytes a mini-batch against steps between merges, a line a scheme."""
    from ..audit.report.plots import png, pyplot

    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6.8, 4.4))
    for number, (name, rows) in enumerate(found["schemes"].items()):
        look = {"color": plt.cm.tab10(number % 10), "ls": ("-", "--")[number % 2], "lw": 1.8}
        axes.plot(
            [row["steps"] for row in rows], [row["bytes"] / 1e6 for row in rows], label=name, marker="o", **look
        )
    axes.set(xscale="log", yscale="log", xlabel="mini-batches between merges", ylabel="MB a mini-batch, one client")
    axes.grid(color="#eef2f6")
    axes.legend(frameon=False)
    return png(figure, plt)


def _chosen(plan: str | None, changes: dict[str, Any], guard: str | None, data_dir: Path | None) -> tuple[Any, Any]:
    """The plan as typed, and what its data look like."""
    changes |= {"guard": guard} if guard is not None else {}
    prepare(1, "cpu")
    from ..training.batches import task_of
    from ..training.plan.plan_text import change, read_plan

    chosen = change(read_plan(plan), changes)
    loaded = chosen.data.load(data_dir)
    return chosen, task_of(loaded.train, len(loaded.classes))


def _json(data: dict[str, Any]) -> bytes:
    return json.dumps(data, indent=1).encode()


def register(app: typer.Typer) -> None:
    app.command()(memory)
    app.command()(edge)
    app.command()(costs)
