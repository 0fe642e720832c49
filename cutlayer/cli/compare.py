"""`cutlayer compare`: several variants of one plan on one chart."""

import json
from functools import partial
from typing import Annotated, Any

import typer

from ..training.device import prepare
from .options import (
    CELLS,
    AsJson,
    Cluster,
    CpusEach,
    DataDir,
    Device,
    GoOn,
    GpusEach,
    Jobs,
    OneGuard,
    Out,
    Recipe,
    Threads,
    WithAlone,
    plan_options,
)
from .resumable import Asked, for_cells, resumable, tried_again
from .terminal import Bar, CellLines, end_if_failed, say

With = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        help="A variant: one field=value of the plan, or several with ; between. Repeatable; braces stand for one "
        "variant each: 'rule=FedMuon(lr={0.01,0.05,0.2})'. The word plan is the plan as it is.",
    ),
]
Seeds = Annotated[int, typer.Option(help="Train each variant with this many seeds.")]


def register(app: typer.Typer) -> None:
    app.command()(resumable(plan_options(compare)))


def compare(
    changes: dict[str, Any],
    plan: Recipe = None,
    with_: With = None,
    guard: OneGuard = None,
    seeds: Seeds = 1,
    device: Device = "cpu",
    threads: Threads = None,
    data_dir: DataDir = None,
    out: Out = None,
    resume: GoOn = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    cpus_each: CpusEach = None,
    gpus_each: GpusEach = None,
    alone: WithAlone = True,
    as_json: AsJson = False,
    *,
    asked: Asked,
) -> None:
    """Train variants of one plan with the same seeds, and put their convergence on one chart.

    [bold]cutlayer compare --clients 10 --partition 'Dirichlet(alpha=0.1)' --rounds SplitFed --local-steps 5
    --with rule=FedAvg --with 'rule=FedMuon(lr={0.01,0.05,0.2})' --seeds 3[/bold]
    Every variant is built and checked before the first is trained. Writes report.html (one file, opens anywhere),
    compare.json, compare.csv and the charts as PNG: accuracy against epochs and against MiB, what each client holds
    and gets, and accuracy against a number in braces. Ctrl-C keeps what is finished; cutlayer compare --resume
    FOLDER goes on.
    """
    prepare(threads, device if cluster is None else "cpu")
    from ..audit.compare import files as compare_report
    from ..audit.compare.run import CompareWork, check, spread, with_alone
    from ..audit.compare.run import compare as run_compare
    from ..audit.compare.variant_text import variants
    from ..audit.parallel import Where
    from ..audit.store import ResultStore, inputs
    from ..training.plan.plan_text import change, read_plan

    if seeds < 1:
        raise ValueError(f"--seeds is at least 1; got {seeds}")
    where = Where(cluster, jobs, threads, cpus_each, gpus_each)
    base = change(read_plan(plan), changes | ({"guard": guard} if guard is not None else {}))
    chosen = variants(base, with_ or [])
    every = range(base.seed, base.seed + seeds)
    with for_cells(asked, "compare", out, resume) as folder:
        chosen, left_out = with_alone(base, chosen, data_dir) if alone else (chosen, {})
        sets = check(chosen, every, data_dir)
        cells = ResultStore(folder / CELLS, repr(base), partial(asked.keep, folder), inputs(sets))
        with Bar() as bar:
            told = CellLines(bar)
            if where.apart:
                cells.open()
                spread(chosen, every, CompareWork(chosen, data_dir, device), cells, where, told.counted)
            rows = run_compare(
                chosen, seeds=every, data_dir=data_dir, device=device, cells=cells,
                on_event=told,
            )  # fmt: skip
        data = compare_report.as_data(repr(base), rows, asked.typed, left_out)
        compare_report.write(data, chosen, folder)
        others = cells.clear()
    if others:
        say(f"{others} finished runs that are not in this result stay in {folder / CELLS}")
    if as_json:
        print(json.dumps({**data, "out": str(folder)}))
    else:
        compare_report.print_table(rows)
        if data["split_buys"]:
            say(data["split_buys"])
        for name, why in left_out.items():
            say(f"no {name}: {why}")
        for row in rows:
            if row["failed"]:
                say(f"{row['variant']}, seed {row['seed']} was lost: {row['failed']}")
        say(f"open {folder / 'report.html'} or {folder / 'convergence.png'}")
    end_if_failed(cells.lost, "comparison", tried_again("compare", folder))
