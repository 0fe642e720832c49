"""The command `cutlayer`. Heavy imports happen inside commands: `--help` loads no torch."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import cli_compare
from .cli_deploy import register
from .cli_options import (
    AsJson,
    Attacks,
    AuxData,
    AuxWithout,
    Budget,
    DataDir,
    Device,
    GoOn,
    Guards,
    Jobs,
    LinkOption,
    OneGuard,
    Out,
    PrivateSeed,
    Recipe,
    Record,
    Resume,
    Threads,
    plan_options,
)
from .terminal import Bar, Stop, figures, halt_told, prepare, say

if TYPE_CHECKING:
    from .plan import Plan

CELLS = "cells"  # where an audit keeps what is finished while it runs

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Split learning that trains, guards, attacks and audits the cut.\n\n"
    "A network is cut: clients keep the first layers (head) and, in the U shape, the last (tail) with the labels; a "
    "server runs the body. Start with [bold]cutlayer demo[/bold].",
)


@app.command()
def demo(out: Out = None, as_json: AsJson = False, threads: Threads = None) -> None:
    """Train a small split model with and without guards, attack each, and write a report. About two minutes.

    Needs no data and no network: it uses 5,000 MNIST digits that come inside an installed package.
    """
    from .demo import demo_attacks, demo_guards, demo_plan

    _audit(
        demo_plan(), demo_guards(), demo_attacks(), out=out, as_json=as_json, threads=threads, command="cutlayer demo"
    )


@app.command()
@plan_options
def train(
    changes: dict[str, Any],
    plan: Recipe = None,
    guard: OneGuard = None,
    private_seed: PrivateSeed = None,
    device: Device = "cpu",
    threads: Threads = None,
    data_dir: DataDir = None,
    out: Out = None,
    resume: Resume = None,
    record: Record = 0,
    link: LinkOption = None,
    as_json: AsJson = False,
) -> None:
    """Train a split model in this process and write history, checkpoints and the result.

    [bold]cutlayer train --guard 'LightSplit(ratio=8)' --epochs 5[/bold]
    Ctrl-C stops after the current step and keeps everything; --resume FOLDER goes on.
    """
    own = {"guard": guard, "private_seed": private_seed}
    changes |= {name: value for name, value in own.items() if value is not None}
    prepare(threads, device)
    from . import rates, runs
    from .forecast import in_words
    from .link import Link
    from .privacy import lines
    from .typed import change, read_plan

    over = Link.parse(link) if link is not None else None
    if resume is not None:
        chosen = runs.load_plan(resume, change(read_plan(plan), changes) if plan or changes else None)
    else:
        chosen = change(read_plan(plan), changes)
    folder = resume or runs.new_folder(out, "train")
    with Bar() as bar, Stop() as stop, halt_told(as_json, folder):
        result = runs.train(
            chosen,
            folder,
            data_dir=data_dir,
            device=device,
            resume=resume is not None,
            record=record << 20,
            link=over,
            on_step=lambda p: bar.show(f"epoch {p.epoch + 1} " + figures(p.terms), p.step / max(1, p.steps)),
            on_epoch=bar.note,
            stop=stop,
        )
    if as_json:
        print(json.dumps({**result, "out": str(folder)}))
        return
    what = "test accuracy"
    if "mean_iou" in result:
        what = f"test mIoU {result['mean_iou']:.4f}, pixel accuracy"
    say(f"{what} {result['accuracy']:.4f} after {result['epochs']} epochs ({result['seconds']:.1f} s)")
    say(f"bytes a sample: {result['bytes_up']:.0f} up, {result['bytes_down']:.0f} down (all messages of a step)")
    if result["bytes_weights"]:
        say(f"weights that travel: {result['bytes_weights']:,.0f} bytes a sample")
    if fair := len(result.get("clients", ())) > 1 and result["fairness"]:
        best, worst = (f"{fair[name]:.3f} (client {fair[name + '_client']})" for name in ("best", "worst"))
        say(f"clients on data like their own: best {best}, worst {worst}, worst tenth {fair['worst_tenth']:.3f}")
    for line in rates.lines(result["rates"]):
        say(line)
    for line in in_words(result["link"]) if result.get("link") else ():
        say(line)
    for side in ("client", "server"):
        own = result["sides"][side]
        say(f"{side}: {own['parameters']:,} parameters, {own['macs']:,} multiply-accumulates a sample")
    for line in [*lines(result["privacy"]), *runs.leaks(result)]:
        say(line)
    say(f"results in {folder}")


@app.command()
@plan_options
def audit(
    changes: dict[str, Any],
    plan: Recipe = None,
    guard: Guards = None,
    attack: Attacks = None,
    budget: Budget = None,
    seeds: Annotated[int | None, typer.Option(help="Repeat everything with this many seeds. Default: 1.")] = None,
    images: Annotated[int, typer.Option(help="Private images to reconstruct and score.")] = 256,
    aux_data: AuxData = None,
    aux_without: AuxWithout = None,
    device: Device = "cpu",
    threads: Threads = None,
    data_dir: DataDir = None,
    out: Out = None,
    resume: GoOn = None,
    jobs: Jobs = 1,
    link: LinkOption = None,
    as_json: AsJson = False,
) -> None:
    """Train with each guard, attack what the server saw, and put accuracy, leakage, bytes and cost side by side.

    [bold]cutlayer audit --guard 'LightSplit(ratio=8)' --guard 'Chain(LightSplit(ratio=8), WCC(weight=0.01))'[/bold]
    [bold]cutlayer audit --guard all[/bold] takes every guard there is, in its usual setting.
    Writes audit.json, report.html (one file, opens anywhere) and the plots as PNG. Ctrl-C keeps finished cells;
    the same command with --resume FOLDER goes on.
    """
    _typed_audit(
        changes, plan, guard, attack=attack, budget=budget, seeds=seeds, images=images, aux_data=aux_data,
        aux_without=aux_without, device=device, threads=threads, data_dir=data_dir, out=out, resume=resume, jobs=jobs,
        link=link, as_json=as_json,
    )  # fmt: skip


@app.command()
@plan_options
def sweep(
    changes: dict[str, Any],
    plan: Recipe = None,
    guard: Guards = None,
    attack: Attacks = None,
    budget: Budget = None,
    seeds: Annotated[int | None, typer.Option(help="Repeat everything with this many seeds. Default: 1.")] = None,
    images: Annotated[int, typer.Option(help="Private images to reconstruct and score.")] = 256,
    aux_data: AuxData = None,
    aux_without: AuxWithout = None,
    device: Device = "cpu",
    threads: Threads = None,
    data_dir: DataDir = None,
    out: Out = None,
    resume: GoOn = None,
    jobs: Jobs = 1,
    as_json: AsJson = False,
) -> None:
    """Accuracy against bytes, coloured by leakage, over the settings of some guards: an audit with one more figure.

    [bold]cutlayer sweep --guard 'Quantize(bits={1,2,4,8})' --guard 'LightSplit(ratio={2,8,32})'[/bold]
    Braces stand for one guard each, several braces for all combinations, also inside a Chain. A family (the same
    guard with other numbers) is a line in the figure. Without --guard: bits, projections, top-k, and bits behind a
    projection, thirteen guards in all.
    Writes sweep.png, sweep.svg and sweep.csv beside the files of an audit; report.html has the figure on top.
    Ctrl-C keeps finished cells; the same command with --resume FOLDER goes on. --jobs 2 uses two processes.
    """
    _typed_audit(
        changes, plan, guard, attack=attack, budget=budget, seeds=seeds, images=images, aux_data=aux_data,
        aux_without=aux_without, device=device, threads=threads, data_dir=data_dir, out=out, resume=resume, jobs=jobs,
        as_json=as_json, is_sweep=True,
    )  # fmt: skip


@app.command()
def attack(
    run: Annotated[Path, typer.Argument(help="A folder of `cutlayer train --record`.")],
    attack: Attacks = None,
    images: Annotated[int, typer.Option(help="Newest recorded samples to attack and score.")] = 256,
    device: Device = "cpu",
    threads: Threads = None,
    data_dir: DataDir = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Attack what a training run recorded: the same bytes for every attack, judged against the truth.

    [bold]cutlayer train --record 64 --aux 1000 --out runs/a[/bold], then [bold]cutlayer attack runs/a[/bold]
    Each attack runs in every form of knowledge about the guard. There is no unguarded control here: an audit has one.
    """
    prepare(threads, device)
    from . import report, runs
    from .attacks import Decoder
    from .lpips import find_weights, load_lpips
    from .offline import attack_recording
    from .spec import spec
    from .verdict import blind_guess

    chosen = [spec(text, "attacks") for text in attack or []] or [Decoder()]
    folder = runs.new_folder(out, "attack")
    weights = find_weights(data_dir)
    found, victim, pictures = attack_recording(
        run, chosen, images=images, data_dir=data_dir, device=device,
        lpips=load_lpips(weights).to(device) if weights else None,
    )  # fmt: skip
    report.write_attack(found, victim.truth.cpu(), victim.y.cpu(), pictures, folder)
    if as_json:
        print(json.dumps({**found, "out": str(folder)}))
        return
    for row in found["rows"]:
        reached = f"SSIM {row['ssim']:.3f}, NCC {row['ncc']:.3f}" if row["metric"] == "ssim" else (
            f"{row['metric']} {row['value']:.3f} (chance {row['chance']:.3f})"
        )  # fmt: skip
        say(f"{row['attack']}: {reached}" + (f"; {row['why_invalid']}" if row["why_invalid"] else ""))
    say(f"a blind guess: SSIM {blind_guess(found['floors']):.3f}")
    say(f"results in {folder}")


@app.command()
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
    changes |= {"guard": guard} if guard is not None else {}
    prepare(1, "cpu")
    from . import memory as room
    from . import runs
    from .engines.local import task_of
    from .typed import change, read_plan

    chosen = change(read_plan(plan), changes)
    folder = runs.new_folder(out, "memory")
    loaded = chosen.data.load(data_dir)
    found = room.breakdown(chosen, task_of(loaded.train, len(loaded.classes)))
    result = {"plan": repr(chosen), "client_memory": found}
    drawn = room.picture(found)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.json").write_text(json.dumps(result, indent=1))
    (folder / "memory.png").write_bytes(drawn)
    if as_json:
        print(json.dumps({**result, "out": str(folder)}))
        return
    for line in room.table(found):
        say(line)
    say("working: what the largest layer reads and writes; of it and the activations only the larger is in the total")
    say(f"open {folder / 'memory.png'}")


@app.command()
def bench(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which entries; default: all. A prefix is enough: inproc")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where bench.json goes. Default: a new folder under runs/.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few repetitions: a look, not a measurement.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure speed as ratios: what we do against the plain way, interleaved in one run, on this machine."""
    prepare(1, "cpu")
    from . import bench as room
    from . import runs

    folder = runs.new_folder(out, "bench")
    with Bar() as bar:
        rows = room.run(names or [], quick=quick, on_entry=lambda name, done: bar.show(name, done))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(rows, indent=1))
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        say(
            f"{row['name']:18} {row['ratio']:6.2f} x {row['baseline']}   "
            f"({row['value']:.4g} {row['unit']}; goal {row['goal']})"
        )
    say(f"written to {folder / 'bench.json'}")


@app.command("list")
def list_things(
    kind: Annotated[
        str,
        typer.Argument(
            help="guards, attacks, nets, data, partitions, optimizers, protocols, rounds, rules, roles, codecs, "
            "projections or bench"
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """What can be typed where a spec is asked for, with one line about each."""
    from .spec import HOMES, names, summary

    if kind == "bench":
        from .bench import ENTRIES

        things: dict[str, Any] = dict(ENTRIES)
    elif kind in HOMES:
        things = names(kind)
    else:
        raise ValueError(f"there is no list of {kind!r}; there is {', '.join([*HOMES, 'bench'])}")
    rows = [{"name": name, "summary": summary(thing)} for name, thing in things.items()]
    if as_json:
        print(json.dumps(rows))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        print(f"{row['name']:{width}}  {row['summary']}")
        about = getattr(things[row["name"]], "about", None)
        for line in about.lines() if about is not None else ():
            print(f"{'':{width}}    {line}")


cli_compare.register(app)
register(app)

data_app = typer.Typer(no_args_is_help=True, help="Look after data sets.")
app.add_typer(data_app, name="data")


@data_app.callback()
def _data() -> None:
    """Look after data sets on disk."""


@data_app.command("check")
def data_check(
    folder: Annotated[Path, typer.Argument(help="A folder with data sets, as --data-dir takes it.")],
    as_json: AsJson = False,
) -> None:
    """Verify a data folder: which sets are there, counts, shapes, and checksums where they are known.

    Exits with 1 if a set that is there is not what it should be.
    """
    from .data.check import check

    rows = check(folder)
    if as_json:
        print(json.dumps(rows))
    else:
        for row in rows:
            mark = "ok     " if row["ok"] else "DAMAGED" if row["found"] else "absent "
            print(f"{mark}  {row['name']:16} {row['detail']}")
    if any(row["found"] and not row["ok"] for row in rows):
        raise SystemExit(1)


# ------------------------------------------------------------------ what the commands share
def _typed_audit(
    changes: dict[str, Any],
    plan: str | None,
    guard: list[str] | None,
    *,
    attack: list[str] | None,
    budget: str | None,
    seeds: int | None,
    images: int,
    aux_data: str | None,
    aux_without: list[int] | None,
    device: str,
    threads: int | None,
    data_dir: Path | None,
    is_sweep: bool = False,
    **rest: Any,
) -> None:
    """From what was typed for an audit or a sweep to the audit."""
    prepare(threads, device)
    from .attacks import suite
    from .auxiliary import Auxiliary
    from .guards import every
    from .spec import spec
    from .sweep import USUAL
    from .typed import change, read_guards, read_plan

    if (seeds is not None and seeds < 1) or images < 2:
        raise ValueError("--seeds is at least 1 and --images at least 2")
    chosen = change(read_plan(plan), changes)
    guards = [chosen.guard, *read_guards(text for text in guard or [] if text != "all")]
    attacks = [spec(text, "attacks") for text in attack or []]
    usual = read_guards(USUAL) if is_sweep and not guard else []
    other = spec(aux_data, "data").load(data_dir) if aux_data else None
    _audit(
        chosen, guards, attacks, if_they_fit=usual + (every() if "all" in (guard or []) else []),
        more=(lambda task: suite(budget, task, chosen.protocol.labels_stay_home)) if budget else None,
        seeds=seeds or (3 if budget == "standard" else 1), images=images, device=device, threads=threads,
        data_dir=data_dir, auxiliary=Auxiliary(other, tuple(aux_without or ())),
        command="cutlayer " + _quoted(sys.argv[1:]), is_sweep=is_sweep, **rest,
    )  # fmt: skip


def _audit(
    plan: "Plan",
    guards: list[Any],
    attacks: list[Any],
    *,
    command: str,
    out: Path | None,
    as_json: bool,
    if_they_fit: list[Any] | None = None,
    more: "Callable[[Any], list[Any]] | None" = None,
    seeds: int = 1,
    images: int = 256,
    device: str = "cpu",
    threads: int | None = None,
    data_dir: Path | None = None,
    resume: Path | None = None,
    jobs: int = 1,
    auxiliary: Any = None,
    is_sweep: bool = False,
    link: str | None = None,
) -> None:
    prepare(threads, device)
    from . import report, runs
    from .attacks import Decoder
    from .audit import audit as run_audit
    from .cells import Cells
    from .engines.local import task_of
    from .forecast import in_words
    from .link import Link
    from .lpips import find_weights, load_lpips, why_no_lpips

    over = Link.parse(link) if link is not None else None
    if over is not None:
        runs.refuse_side_by_side(plan)
    folder = resume or runs.new_folder(out, "sweep" if is_sweep else "audit")
    loaded = plan.data.load(data_dir)
    maps = loaded.train.y.dim() > 1
    weights = find_weights(data_dir)
    found = more(task_of(loaded.train, len(loaded.classes))) if more else []
    # Of a suite, what has nothing to find in labels of pixels is left out; what was asked for by name is refused.
    attacks = attacks + [one for one in found if not (maps and one.reads_classes)]
    if jobs < 1:
        raise ValueError(f"--jobs is at least 1; got {jobs}")
    options: dict[str, Any] = {
        "plan": plan,
        "loaded": loaded,
        "guards": guards,
        "if_they_fit": if_they_fit or [],
        "attacks": attacks or [Decoder()],
        "seeds": range(plan.seed, plan.seed + seeds),
        "images": images,
        "device": device,
        "auxiliary": auxiliary,
        "lpips": load_lpips(weights).to(device) if weights else None,
        "lpips_missing": None if weights else why_no_lpips(),
        "link": over,
    }
    identity = f"{plan} {images} {auxiliary and auxiliary.without}" + (f" {over}" if over else "")
    try:
        with Bar() as bar:
            if jobs > 1:
                from .jobs import spread

                each = max(1, (threads or os.cpu_count() or 1) // jobs)
                spread(jobs, each, folder / CELLS, identity, lambda n: bar.show(f"{n} cells", 0.0), **options)
            result = run_audit(
                **options,
                cells=Cells(folder / CELLS, identity),
                on_event=lambda event: bar.show(event.what, event.done),
            )
    except KeyboardInterrupt:
        say(f"interrupted; finished cells are kept: the same command with --resume {folder} goes on")
        sys.exit(130)
    report.write(result, folder, command, sweep=is_sweep)
    shutil.rmtree(folder / CELLS)
    if as_json:
        print(json.dumps({**report.as_data(result, command), "out": str(folder)}))
        return
    report.print_table(result)
    if maps:
        say("accuracy is the share of right pixels; audit.json also has mean_iou")
    for told in {row["guard"]: row for row in result.rows if row.get("link")}.values():
        say(f"{told['guard']} {in_words(told['link'])[0]}")
    for left_out, why in result.left_out.items():
        say(f"left out {left_out}: {why}")
    say(f"open {folder / 'report.html'}" + (f" or {folder / 'sweep.png'}" if is_sweep else ""))


def _quoted(arguments: list[str]) -> str:
    import shlex

    return shlex.join(arguments)


def main() -> None:
    """Every error a user can mend is one sentence on standard error; anything else is a bug and shows its trace."""
    from .errors import USER_ERRORS

    try:
        app()
    except KeyboardInterrupt:
        say("interrupted; nothing was left half-written")
        sys.exit(130)
    except USER_ERRORS as error:
        say(f"error: {error}")
        sys.exit(getattr(error, "exit_code", 1))


if __name__ == "__main__":
    main()
