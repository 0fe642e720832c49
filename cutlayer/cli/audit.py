"""Commands that judge a cut: demo, audit, sweep, attack. Heavy imports happen inside."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..training.device import prepare
from .options import (
    CELLS,
    AsJson,
    Attacks,
    AuxData,
    AuxWithout,
    Budget,
    Cluster,
    Code,
    CpusEach,
    DataDir,
    Device,
    GoOn,
    GpusEach,
    Guards,
    Jobs,
    LinkOption,
    Out,
    Recipe,
    Secrets,
    Threads,
    Track,
    Tries,
    WithAlone,
    options_of,
    plan_options,
)
from .resumable import Asked, for_cells, resumable, tried_again
from .terminal import Bar, CellLines, end_if_failed, end_if_not_kept, figures, say

if TYPE_CHECKING:
    from ..audit.parallel import Where
    from ..audit.result import Audit
    from ..audit.spec import AuditSpec


@resumable
def demo(
    out: Out = None,
    resume: GoOn = None,
    as_json: AsJson = False,
    threads: Threads = None,
    *,
    asked: Asked,
) -> None:
    """Train a small split model with and without guards, attack each, and write a report. About two minutes.

    Needs no data and no network: it uses 5,000 pictures of clothes that come with the package. Ctrl-C keeps
    finished cells, and --resume FOLDER goes on.
    """
    from ..audit.spec import AuditSpec
    from .demo import demo_attacks, demo_guards, demo_plan

    wanted = AuditSpec(demo_plan(), demo_guards(), demo_attacks())
    _audit(wanted, asked, out=out, resume=resume, as_json=as_json, threads=threads)


def _typed_audit(
    changes: dict[str, Any],
    plan: Recipe = None,
    guard: Guards = None,
    attack: Attacks = None,
    budget: Budget = None,
    secrets: Secrets = None,
    seeds: Annotated[int | None, typer.Option(help="Repeat everything with this many seeds. Default: 1.")] = None,
    images: Annotated[int, typer.Option(help="Private images to reconstruct and score.")] = 256,
    tries: Tries = None,
    aux_data: AuxData = None,
    aux_without: AuxWithout = None,
    device: Device = "cpu",
    threads: Threads = None,
    data_dir: DataDir = None,
    out: Out = None,
    resume: GoOn = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    cpus_each: CpusEach = None,
    gpus_each: GpusEach = None,
    link: LinkOption = None,
    alone: WithAlone = True,
    track: Track = None,
    as_json: AsJson = False,
    *,
    asked: Asked,
) -> None:
    """From what was typed for an audit or a sweep to the audit."""
    prepare(threads, device if cluster is None else "cpu")
    from ..attacks import suite
    from ..audit.parallel import Where
    from ..audit.report.sweep import USUAL
    from ..audit.spec import AuditSpec
    from ..audit.verdicts import read_secrets
    from ..core.spec import spec
    from ..data.auxiliary import Auxiliary
    from ..guards import every
    from ..training.facts.link import Link
    from ..training.plan.plan_text import change, read_guards, read_plan

    if (seeds is not None and seeds < 1) or images < 2:
        raise ValueError("--seeds is at least 1 and --images at least 2")
    chosen = change(read_plan(plan), changes)
    guards = [chosen.guard, *read_guards(text for text in guard or [] if text != "all")]
    attacks = [spec(text, "attacks") for text in attack or []]
    usual = read_guards(USUAL) if asked.command == "sweep" and not guard else []
    other = spec(aux_data, "data").load(data_dir) if aux_data else None
    count = seeds or (3 if budget == "standard" else 1)
    wanted = AuditSpec(
        chosen, guards, attacks, usual + (every() if "all" in (guard or []) else []),
        seeds=range(chosen.seed, chosen.seed + count), images=images,
        auxiliary=Auxiliary(other, tuple(aux_without or ()), aux_data or ""),
        link=Link.parse(link) if link is not None else None, alone=alone, tries=tries,
    )  # fmt: skip
    _audit(
        wanted, asked, more=(lambda task: suite(budget, task, chosen.protocol.labels_stay_home)) if budget else None,
        device=device, threads=threads, data_dir=data_dir, out=out, resume=resume, as_json=as_json,
        where=Where(cluster, jobs, threads, cpus_each, gpus_each), secrets=read_secrets(secrets), track=track or [],
    )  # fmt: skip


@resumable
@plan_options
@options_of(_typed_audit)
def audit(**typed: Any) -> None:
    """Train with each guard, attack what the server saw, and put accuracy, leakage, bytes and cost side by side.

    [bold]cutlayer audit --guard 'LightSplit(ratio=8)' --guard 'Chain(LightSplit(ratio=8), WCC(weight=0.01))'[/bold]
    [bold]cutlayer audit --guard all[/bold] takes every guard there is, in its usual setting.
    Writes audit.json, report.html (one file, opens anywhere) and the plots as PNG. Ctrl-C keeps finished cells;
    [bold]cutlayer audit --resume FOLDER[/bold] goes on, with the options that the folder was begun with.
    """
    _typed_audit(**typed)


@resumable
@plan_options
@options_of(_typed_audit)
def sweep(**typed: Any) -> None:
    """Accuracy against bytes, coloured by leakage, over the settings of some guards: an audit with one more figure.

    [bold]cutlayer sweep --guard 'Quantize(bits={1,2,4,8})' --guard 'LightSplit(ratio={2,8,32})'[/bold]
    Braces stand for one guard each, several braces for all combinations, also inside a Chain. A family (the same
    guard with other numbers) is a line in the figure. Without --guard: bits, projections, top-k, and bits behind a
    projection, thirteen guards in all.
    Writes sweep.png, sweep.svg and sweep.csv beside the files of an audit; report.html has the figure on top.
    Ctrl-C keeps finished cells; cutlayer sweep --resume FOLDER goes on. --jobs 2 makes two cells at once.
    """
    _typed_audit(**typed)


def attack(
    run: Annotated[Path, typer.Argument(help="A folder of `cutlayer train --record`.")],
    attack: Attacks = None,
    code: Code = None,
    images: Annotated[int, typer.Option(help="Newest recorded samples to attack and score.")] = 256,
    device: Device = "cpu",
    threads: Threads = None,
    data_dir: DataDir = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Attack what a training run recorded: the same bytes for every attack, judged against the truth.

    [bold]cutlayer train --record 64 --aux-samples 1000 --out runs/a[/bold], then [bold]cutlayer attack runs/a[/bold]
    Each attack runs in every form of knowledge about the guard. There is no unguarded control here: an audit has one.
    """
    prepare(threads, device)
    from ..attacks import Decoder
    from ..audit.floors import blind_guess
    from ..audit.kinds import of_floors
    from ..audit.recording import attack_recording
    from ..audit.report import files as report
    from ..core.outside import load_named
    from ..core.spec import spec
    from ..engines.taken import taken
    from ..metrics.lpips import find_weights, load_lpips

    load_named(code or [])
    chosen = [spec(text, "attacks") for text in attack or []] or [Decoder()]
    weights = find_weights(data_dir)
    with taken(out, "attack") as folder:
        found, victim, pictures = attack_recording(
            run, chosen, images=images, data_dir=data_dir, device=device,
            lpips=load_lpips(weights).to(device) if weights else None,
        )  # fmt: skip
        report.write_attack(found, victim.truth.cpu(), victim.y.cpu(), pictures, folder)
    if as_json:
        print(json.dumps({**found, "out": str(folder)}))
        return
    for row in found["rows"]:
        reached = f"{row['metric'].replace('_', ' ')} {row['value']:.3f}"
        if row["metric"] == "ssim":
            reached = f"SSIM {row['value']:.3f}, NCC {row['ncc']:.3f}"
        elif row["chance"] is not None:
            reached += f" (chance {row['chance']:.3f})"
        say(f"{row['attack']}: {reached}" + (f"; {row['why_invalid']}" if row["why_invalid"] else ""))
    kind = of_floors(found["floors"])
    say(f"a blind guess: {kind.said} {blind_guess(found['floors'], kind.statistics['value']):.3f}")
    say(f"results in {folder}")


def _audit(
    wanted: "AuditSpec",
    asked: Asked,
    *,
    out: Path | None,
    as_json: bool,
    more: "Callable[[Any], list[Any]] | None" = None,
    device: str = "cpu",
    threads: int | None = None,
    data_dir: Path | None = None,
    resume: Path | None = None,
    where: "Where | None" = None,
    secrets: tuple[str, ...] = (),
    track: Sequence[str] = (),
) -> None:
    """`more`: attacks of a suite for the task, beside those that were asked for by name."""
    away = where is not None and where.cluster is not None
    prepare(threads, "cpu" if away else device)
    from ..audit.matrix import audit as run_audit
    from ..audit.parallel import spread
    from ..audit.report import files as report
    from ..audit.spec import Resources
    from ..audit.store import ResultStore, inputs
    from ..audit.verdicts import refuse_secrets
    from ..engines.local import start
    from ..engines.tracking import refuse_unknown
    from ..metrics.lpips import find_weights, load_lpips, why_no_lpips
    from ..training.batches import task_of

    refuse_unknown(track)
    if wanted.link is not None:
        start.refuse_side_by_side(wanted.plan)
    is_sweep = asked.command == "sweep"
    with for_cells(asked, "sweep" if is_sweep else "audit", out, resume) as folder:
        loaded = wanted.plan.data.load(data_dir)
        task = task_of(loaded.train, len(loaded.classes))
        wanted = _with_attacks(wanted, more(task) if more else [], task)
        refuse_secrets(secrets, task, [*wanted.attacks, *wanted.optional_attacks])
        _say_still(loaded)
        weights, keep = find_weights(data_dir), partial(asked.keep, folder)
        sets = {str(wanted.plan.data): loaded, wanted.auxiliary.name: wanted.auxiliary.other}
        with Bar() as bar:
            resources = Resources(
                device,
                lpips=load_lpips(weights).to("cpu" if away else device) if weights else None,
                lpips_missing=None if weights else why_no_lpips(),
                store=(store := ResultStore(folder / CELLS, wanted.identity, keep, inputs(sets, weights))),
                on_event=(shown := CellLines(bar)),
            )
            if where is not None and where.apart:
                spread(wanted, loaded, resources, where, shown.counted)
            result = replace(run_audit(wanted, loaded, resources), secrets=secrets)
        report.write(result, folder, asked.typed, sweep=is_sweep)
        report.track(result, folder, track)
        others = store.clear()
    if others:
        say(f"{others} finished cells that are not in this result stay in {folder / CELLS}")
    if as_json:
        print(json.dumps({**report.as_data(result, asked.typed), "out": str(folder)}))
    else:
        _tell(result, wanted, loaded)
        say(f"open {folder / 'report.html'}" + (f" or {folder / 'sweep.png'}" if is_sweep else ""))
    end_if_not_kept(_metered(result.rows))
    end_if_failed(result.failed, asked.command, tried_again(asked.command, folder))


def _with_attacks(wanted: "AuditSpec", found: list[Any], task: Any) -> "AuditSpec":
    """Of a suite, what has nothing to find here is left out and named; what was asked for by name is refused."""
    from ..attacks import usual

    if not wanted.attacks and not found:
        found = usual([*wanted.guards, *wanted.optional_guards], task)
    return replace(wanted, optional_attacks=found)


def _say_still(loaded: Any) -> None:
    from ..audit.tables import still

    names = [repr(name) for name in still(loaded)]
    if len(names) == 1:
        say(f"the column {names[0]} never changes: there is nothing to read in it, and it is left out")
    elif names:
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        say(f"columns that never change hold nothing to read, and are left out: {', '.join(names[:5])}{more}")


def _tell(result: "Audit", wanted: "AuditSpec", loaded: Any) -> None:
    """A finished audit as a table and in sentences."""
    from ..audit.report import files as report
    from ..audit.report.terminal import print_table
    from ..training.facts.forecast import in_words

    print_table(result)
    if texts := {row["guard"]: row["perplexity"] for row in result.rows if "perplexity" in row}:
        say("accuracy is the share of right next tokens; perplexity " + figures(texts))
    elif loaded.train.y.dim() > 1:
        say("accuracy is the share of right pixels; audit.json also has mean_iou")
    for guard, told in {row["guard"]: told for row in result.rows if (told := row.get("link"))}.items():
        say(f"{guard} {in_words(told)[0]}")
    for sentence in report.noticed(result):
        say(sentence)
    if not wanted.plan.aux_samples:
        own, given = result.plan.aux_samples, len(loaded.train)
        say(f"{own} of {given} training samples were the attacker's own, the others trained (--aux-samples)")
    for left_out, why in result.left_out.items():
        say(f"left out {left_out}: {why}")
    for one in result.not_tried:
        say(f"not tried: {one['attack']} against {one['guard']}: {one['why']}")


def _metered(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What clients' meters said of the guards; of the open cut where nothing else was asked for."""
    guarded = [row for row in rows if row["guard"] != "none"] or rows
    return [
        {**told, "detector": f"{told['detector']} with {row['guard']}"}
        for row in guarded
        for told in (*row.get("detectors_honest", ()), *row.get("detectors_attacked", ()))
    ]


def register(app: typer.Typer) -> None:
    for command in (demo, audit, sweep, attack):
        app.command()(command)
