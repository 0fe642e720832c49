"""`cutlayer tune`: the guard and its settings for a budget."""

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..training.device import prepare
from .options import (
    CELLS,
    AsJson,
    Attacks,
    Cluster,
    CpusEach,
    DataDir,
    Device,
    GoOn,
    GpusEach,
    Jobs,
    Out,
    Recipe,
    Threads,
    plan_options,
)
from .resumable import Asked, for_cells, resumable, tried_again
from .terminal import MOST_SHOWN, Bar, CellLines, end_if_failed, say

if TYPE_CHECKING:
    from ..audit.jobs import Shown

_BUDGET = "The budget"
Leak = Annotated[
    float | None,
    typer.Option(help="Share of what the unguarded cut gives away that may be left.", rich_help_panel=_BUDGET),
]
Loss = Annotated[
    float | None, typer.Option(help="Points of accuracy below the unguarded cut.", rich_help_panel=_BUDGET)
]
Bytes = Annotated[
    float | None,
    typer.Option(
        "--bytes",
        help="Bytes of a sample's guarded activations on their way up. (Answers and gradients follow from the "
        "network and --compression.)",
        rich_help_panel=_BUDGET,
    ),
]
ClientMacs = Annotated[
    int | None,
    typer.Option(help="Multiply-accumulates of a client for one sample, guard included.", rich_help_panel=_BUDGET),
]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        help="What is searched: a bare name over the settings its class names (LightSplit, my.py:SignBit), one with "
        "settings as it is typed. Repeatable. Default: every guard."
    ),
]


def register(app: typer.Typer) -> None:
    app.command()(resumable(plan_options(tune)))


def tune(
    changes: dict[str, Any],
    plan: Recipe = None,
    leak: Leak = None,
    loss: Loss = None,
    bytes_: Bytes = None,
    client_macs: ClientMacs = None,
    guard: Kinds = None,
    chains: Annotated[bool, typer.Option("--chains/--no-chains", help="Also try two guards in a chain.")] = True,
    trials: Annotated[int, typer.Option(help="Guards that are trained.")] = 60,
    attack: Attacks = None,
    budget: Annotated[str, typer.Option(help="The attacks of the last word: quick, standard or paper.")] = "standard",
    check_seeds: Annotated[int, typer.Option(help="Seeds of the last word; none of them was searched with.")] = 2,
    images: Annotated[int, typer.Option(help="Private images to reconstruct and score.")] = 128,
    device: Device = "cpu",
    threads: Threads = None,
    data_dir: DataDir = None,
    out: Out = None,
    resume: GoOn = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    cpus_each: CpusEach = None,
    gpus_each: GpusEach = None,
    as_json: AsJson = False,
    *,
    asked: Asked,
) -> None:
    """Find the guard and its settings for a budget of leak, accuracy, bytes and client compute.

    [bold]cutlayer tune --leak 0.2 --loss 2 --bytes 200[/bold]
    Each guard is ruled out as cheaply as it can be: by its cost before training, by its accuracy, by a linear reader,
    and last by a full decoder. What is chosen is audited with every attack of --budget under seeds that were not
    searched with. Writes tune.csv, tune.png with the Pareto front, tune.json and plan.py, which any command takes;
    where nothing keeps to the budgets it says which one binds. Ctrl-C or a kill keeps what was tried: --resume FOLDER
    goes on.
    """
    prepare(threads, device if cluster is None else "cpu")
    from ..attacks import Decoder, suite
    from ..audit.parallel import Where
    from ..audit.report import files as report
    from ..audit.spec import AuditSpec, Resources
    from ..audit.store import ResultStore, inputs
    from ..audit.tune import files
    from ..audit.tune.budget import Budget, refuse_impossible
    from ..audit.tune.run import OTHER_SEEDS, Check, at_work, last_word, search
    from ..audit.tune.space import kinds
    from ..audit.tune.study import Study
    from ..audit.tune.trial import TuneWork, readings
    from ..core.spec import spec
    from ..metrics.lpips import find_weights, load_lpips
    from ..training.batches import task_of
    from ..training.plan.plan_text import change, read_plan

    limits = Budget(leak, loss, bytes_, client_macs)
    if trials < 1 or check_seeds < 1:
        raise ValueError("--trials and --check-seeds are at least 1")
    where = Where(cluster, jobs, threads, cpus_each, gpus_each)
    chosen = change(read_plan(plan), changes)
    study = Study(kinds(guard or []), chains, limits, chosen.seed)
    loaded = chosen.data.load(data_dir)
    task = task_of(loaded.train, len(loaded.classes))
    refuse_impossible(limits, chosen, task)
    strongest = suite(budget, task, chosen.protocol.labels_stay_home)
    attacks = [spec(text, "attacks") for text in attack or []] or [Decoder.sized("quick")]
    wanted = AuditSpec(chosen, (), readings(attacks), seeds=(chosen.seed,), images=images, alone=False)
    seeds = tuple(range(chosen.seed + 1, chosen.seed + 1 + check_seeds))
    weights = find_weights(data_dir)
    lpips = load_lpips(weights) if weights else None
    identity = f"tune {limits} {[one.name for one in study.kinds]} {chains} {wanted.identity} {attacks}"
    with for_cells(asked, "tune", out, resume) as folder:
        store = ResultStore(
            folder / CELLS, identity, partial(asked.keep, folder), inputs({str(chosen.data): loaded}, weights)
        )
        with Bar() as bar:
            told = CellLines(bar)
            work = TuneWork(wanted, loaded, limits, device, None)
            with at_work(work, where) as there:
                found = search(work, study, store, there, trials, partial(_moved, bar), bar.line)
            resources = Resources(device, lpips, store=store, on_event=told)
            check = Check(strongest, seeds, images=images)
            checks = last_word(chosen, loaded, limits, found.tried, check, resources, where, told.counted, bar.line)
        drawn = {"search": chosen.seed, "again": [chosen.seed + one for one in OTHER_SEEDS], "check": list(seeds)}
        data = files.as_data(chosen, limits, found, [one for one, _ in checks], drawn, asked.typed)
        pick = None if data["chosen"] is None else spec(data["chosen"], "guards", imports=False)
        files.write(data, chosen, pick, found, limits, folder)
        if checks:
            report.write(checks[-1][1], folder / "check", asked.typed)
        store.clear()
    if as_json:
        print(json.dumps({**data, "out": str(folder)}))
    else:
        for line in files.summary(data, found, limits):
            say(line)
        say(f"the front: {folder / 'tune.png'}; what was tried: {folder / 'tune.csv'}")
        if pick is not None:
            say(f"next: cutlayer train {folder / files.PLAN}:plan")
    failed = [*data["failed"], *store.lost]
    end_if_failed(failed, "tune", tried_again("tune", folder) if store.lost else "what else was found is whole")


def _moved(bar: Bar, told: "Shown") -> None:
    """What is made now; what was found of it gets a line of its own."""
    running = "".join(f"; {one}" for one in told.running[:MOST_SHOWN])
    bar.show(f"{told.finished} of {told.of}{running}", told.finished / told.of)
