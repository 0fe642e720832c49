"""`cutlayer train`: one plan, in this process or on a Ray cluster."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import typer

from ..training.device import prepare
from .options import (
    AsJson,
    ChannelsLast,
    Code,
    Compiled,
    Crews,
    DataDir,
    Device,
    Engine,
    FleetCluster,
    Im2col,
    LinkOption,
    OneGuard,
    Out,
    Precision,
    PrivateSeed,
    Recipe,
    Record,
    Resume,
    Threads,
    Track,
    plan_options,
)
from .resumable import Asked, resumable
from .terminal import Bar, Stop, end_if_not_kept, figures, halt_told, say

# What is wanted back from command.json: the plan itself is in the folder's plan.json, with its secrets.
_ONLY = frozenset({"record", "link", "device", "precision", "channels_last", "im2col", "compile"})


def register(app: typer.Typer) -> None:
    app.command()(resumable(train, only=_ONLY))


@plan_options
def train(
    changes: dict[str, Any],
    plan: Recipe = None,
    guard: OneGuard = None,
    private_seed: PrivateSeed = None,
    device: Device = "cpu",
    precision: Precision = "",
    channels_last: ChannelsLast = False,
    im2col: Im2col = False,
    compile: Compiled = False,
    threads: Threads = None,
    data_dir: DataDir = None,
    out: Out = None,
    resume: Resume = None,
    code: Code = None,
    record: Record = 0,
    link: LinkOption = None,
    engine: Engine = "local",
    cluster: FleetCluster = None,
    crews: Crews = None,
    track: Track = None,
    as_json: AsJson = False,
    *,
    asked: Asked,
) -> None:
    """Train a split model in this process and write history, checkpoints and the result.

    [bold]cutlayer train --guard 'LightSplit(ratio=8)' --epochs 5[/bold]
    Ctrl-C stops after the current step and keeps everything; --resume FOLDER goes on.
    [bold]cutlayer train --engine ray --clients 1000[/bold] has a server and crews of clients on a Ray cluster.
    """
    own = {"guard": guard, "private_seed": private_seed}
    changes |= {name: value for name, value in own.items() if value is not None}
    if record < 0:
        raise ValueError(f"--record is how many MiB to keep, from 0 (nothing) up; got {record}")
    if engine not in ("local", "ray"):
        raise ValueError(f"--engine is local (this process) or ray; got {engine!r}")
    if engine == "local" and (cluster is not None or crews is not None):
        raise ValueError("--cluster and --crews belong to --engine ray")
    prepare(threads, device if engine == "local" else "cpu")
    from ..core.outside import load_named
    from ..engines.folder import scale_in_words
    from ..engines.local import start
    from ..engines.taken import taken
    from ..engines.tracking import refuse_unknown, tracked
    from ..training.facts.link import Link
    from ..training.faster import Faster

    over = Link.parse(link) if link is not None else None
    refuse_unknown(track or [])
    load_named(code or [])
    with taken(out, "train", resume) as folder:
        chosen = _chosen(plan, changes, resume)
        with Bar(estimates=True) as bar, Stop() as stop, halt_told(as_json, folder):

            def started(run: Any) -> None:
                asked.keep(folder)
                for line in [*scale_in_words(run.parts.scale), *run.parts.notes]:
                    say(line)

            elsewhere = None
            if engine == "ray":
                from ..engines.ray.fleet import Fleet
                from ..engines.ray.fleet import train as on_ray

                elsewhere = partial(on_ray, fleet=Fleet(cluster or "local", crews, threads or 1), device=device)
            follow = start.Following(
                record=record << 20,
                link=over,
                on_start=started,
                on_step=lambda p: bar.show(f"epoch {p.epoch + 1} " + figures(p.terms), p.step / max(1, p.steps)),
                on_epoch=bar.note,
                stop=stop,
                elsewhere=elsewhere,
            )
            follow, tracking = tracked(follow, folder, track or [])
            result = start.train_in(
                folder,
                chosen,
                data_dir=data_dir,
                device=device if engine == "local" else "cpu",
                resume=resume is not None,
                follow=follow,
                faster=Faster(precision=precision, channels_last=channels_last, im2col=im2col, compiled=compile),
            )
            tracking.finished(result)
    if as_json:
        print(json.dumps({**result, "out": str(folder)}))
    else:
        _tell(result)
        say(f"results in {folder}")
    end_if_not_kept(result.get("detectors", ()))


def _chosen(plan: str | None, changes: dict[str, Any], resume: Path | None) -> Any:
    """The plan that was typed, or that of the folder to go on in."""
    from ..engines.folder import load_plan
    from ..training.plan.plan_text import change, read_plan

    if resume is None:
        return change(read_plan(plan), changes)
    # Who watches the server is the client's own business: that alone may be another from here on.
    named = "client_detectors"
    others = {named: changes.pop(named)} if plan is None and named in changes else {}
    given = change(read_plan(plan), changes) if plan or changes else None  # code that is named here may be imported
    if plan is None and changes:  # single options: all else is as it was begun
        given = change(load_plan(resume), changes)
    return change(load_plan(resume, given), others)


def _tell(result: dict[str, Any]) -> None:
    """A finished run in sentences."""
    from ..engines.local import start
    from ..training.facts import compression as rates
    from ..training.facts.forecast import in_words
    from ..training.facts.privacy import lines

    what = "test accuracy"
    if "mean_iou" in result:
        what = f"test mIoU {result['mean_iou']:.4f}, pixel accuracy"
    if "perplexity" in result:
        what = f"test perplexity {result['perplexity']:.2f}, next-token accuracy"
    say(f"{what} {result['accuracy']:.4f} after {result['epochs']} epochs ({result['seconds']:.1f} s)")
    if result["epochs"] == 0:
        say("nothing was trained: the weights are those it began with; give --epochs 1 or more to train")
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
    for line in [*lines(result["privacy"]), *start.leaks(result)]:
        say(line)
