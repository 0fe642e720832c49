"""Several variants of one plan, trained with the same seeds: how each converges, at what cost, and for whom."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ...core.batch import Task
from ...core.errors import NonFinite
from ...core.message import Kind
from ...core.seeds import derive
from ...data.base import Loaded, parts
from ...engines.client_report import by_client
from ...engines.local.run import LocalRun
from ...training import checkpoint
from ...training.batches import shares_of, task_of
from ...training.enough import refuse_too_few
from ...training.evaluation import figures
from ...training.facts.sides import sides
from ...training.plan.plan import Plan
from ...training.protocols import Alone
from ...wire.ledger import DOWN, UP, Ledger
from ..alone import ALONE, alone_plan, baselines
from ..facts import commonest
from ..jobs import Failed, Job, Shown, made_or_failed
from ..jobs import run as run_jobs
from ..parallel import Where, workers
from ..progress import Cells
from ..rows import Event
from ..store import ResultStore
from .variant_text import Variant

SCHEMA = 1
_LEARNING = {kind.name for kind in Kind} - {Kind.PREDICT.name, Kind.EVALUATE.name}


# ------------------------------------------------------------------------------ before anything is trained
def with_alone(plan: Plan, chosen: Sequence[Variant], data_dir: Path | None) -> tuple[list[Variant], dict[str, str]]:
    """The variants and what a client could do alone with the settings of each; by name, why one cannot be."""
    shelf, alike = Shelf(data_dir), dict[str, list[Variant]]()
    for one in chosen:
        if not isinstance(one.plan.protocol, Alone):
            alike.setdefault(_alone(one.plan) or "", []).append(one)
    names = {repr(one.plan): one.name for one in chosen}  # of those that are there, whoever asked for them
    found, more, left_out = list(chosen), list[Variant](), dict[str, str]()
    for those in alike.values():
        first = those[0].plan
        task, other = _task(shelf(first)), _other_settings(plan, those[0])
        crossing = [one for one in those if one.plan.protocol.crosses]
        costs = {one.name: sides(one.plan, task)["client"]["macs"] for one in crossing}
        for baseline in baselines(first, costs or {"no variant with a cut": 0}, task):
            if baseline.plan is None:
                left_out[baseline.name + other] = baseline.why_none or ""
                continue
            if (key := repr(baseline.plan)) not in names:
                names[key] = baseline.name + other
                more.append(Variant(names[key], baseline.plan))
            if baseline.name == ALONE:
                found = [replace(one, alone=names[key]) if one in those else one for one in found]
    return [*found, *more], left_out


def _alone(plan: Plan) -> str | None:
    """What a client alone of this plan trains with; None: there can be none."""
    try:
        return repr(alone_plan(plan))
    except ValueError:
        return None


def _other_settings(plan: Plan, variant: Variant) -> str:
    """What a client alone of a variant has otherwise than the plan's, behind its name; empty: nothing."""
    both = _alone(plan), _alone(variant.plan)
    if None in both:
        return "" if both == (None, None) else f" ({variant.name})"
    own, others = alone_plan(plan), alone_plan(variant.plan)
    names = [one.name for one in fields(Plan) if one.compare]
    changed = [f"{name}={getattr(others, name)!r}" for name in names if getattr(others, name) != getattr(own, name)]
    return f" ({'; '.join(changed)})" if changed else ""


def _task(loaded: Loaded) -> Task:
    return task_of(loaded.train, len(loaded.classes))


def check(chosen: Sequence[Variant], seeds: Sequence[int], data_dir: Path | None) -> dict[str, Loaded]:
    """Build every variant and share out its data with every seed: what cannot work says so now. The data, by name."""
    shelf = Shelf(data_dir)
    for one in chosen:
        try:
            loaded = shelf(one.plan)
            _ready(one.plan, loaded, seeds[0], "cpu")
            for seed in seeds[1:]:
                _share_out(replace(one.plan, seed=seed), loaded)
        except ValueError as error:
            raise ValueError(f"{one.name}: {error}") from error
    return shelf.loaded


def _share_out(plan: Plan, loaded: Loaded) -> None:
    private = parts(loaded, aux=plan.aux_samples, val=plan.val_share, seed=plan.seed).private
    shares = shares_of(plan, private)
    refuse_too_few(plan, {f"client {number}": len(share) for number, share in enumerate(shares)})


class Shelf:
    """Data sets that were read once."""

    def __init__(self, data_dir: Path | None):
        self._folder = data_dir
        self.loaded: dict[str, Loaded] = {}

    def __call__(self, plan: Plan) -> Loaded:
        key = repr(plan.data)
        if key not in self.loaded:
            self.loaded[key] = plan.data.load(self._folder)
        return self.loaded[key]


def _ready(plan: Plan, loaded: Loaded, seed: int, device: str) -> LocalRun:
    own = replace(plan, seed=seed, private_seed=derive(seed, "compare"))
    data = parts(loaded, aux=own.aux_samples, val=own.val_share, seed=seed)
    return LocalRun(own, data, classes=len(loaded.classes), device=device)


# ------------------------------------------------------------------------------ training
def compare(
    chosen: Sequence[Variant],
    *,
    seeds: Sequence[int],
    data_dir: Path | None = None,
    device: str = "cpu",
    cells: ResultStore | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> list[dict[str, Any]]:
    """A row for every variant and seed. What is in `cells` already is not trained again, and a run that was
    interrupted goes on after its last whole epoch."""
    shelf, cells = Shelf(data_dir), cells or ResultStore()
    rows, progress = [], Cells(on_event, {"training": len(chosen) * len(seeds)})
    for seed in seeds:
        for one in chosen:
            name = _name(seed, one)
            what = f"{one.name}, seed {seed}"
            cell = cells.get(name)
            if cell is not None:
                progress.there("training")
            else:
                half = _half(cells, name)
                cells.open()
                run = _ready(one.plan, shelf(one.plan), seed, device)
                with progress.making("training", what):
                    made = made_or_failed(partial(_train, run, half, partial(progress, what)))
                if isinstance(made, Failed):
                    cells.remember(name, _lost(one.plan, shelf(one.plan), seed, made))
                else:
                    cells.put(name, made)
                    if half is not None:
                        half.unlink(missing_ok=True)
                cell = cells.get(name)
            assert cell is not None
            # With the names of now: a folder may be resumed with variants typed in another way.
            rows.append({"variant": one.name, "seed": seed, "alone": one.alone or None, **cell[0]})
    return sorted(rows, key=lambda row: [one.name for one in chosen].index(row["variant"]))


def _name(seed: int, one: Variant) -> str:
    return f"{seed} | {one.plan!r}"


def _half(cells: ResultStore, name: str) -> Path | None:
    """Where a run lies that has come as far as some epoch."""
    return cells.folder / f"{derive(0, name):016x}.half" if cells.folder is not None else None


class CompareWork:
    """What all trainings of a comparison share: data sets, each read once."""

    def __init__(self, chosen: Sequence[Variant], data_dir: Path | None, device: str):
        shelf = Shelf(data_dir)
        self.loaded = {repr(one.plan.data): shelf(one.plan) for one in chosen}
        self.device = device


def train_variant(work: CompareWork, plan: Plan, seed: int) -> dict[str, Any]:
    """A job of another process."""
    return _train(_ready(plan, work.loaded[repr(plan.data)], seed, work.device), None, lambda share: None)


def spread(
    chosen: Sequence[Variant], seeds: Sequence[int], work: CompareWork, cells: ResultStore, where: Where,
    show: Callable[[Shown], None],
) -> None:  # fmt: skip
    """Fill the cells of a comparison elsewhere."""
    jobs = {
        name: Job(f"{one.name}, seed {seed}", train_variant, (one.plan, seed))
        for seed in seeds
        for one in chosen
        if cells.get(name := _name(seed, one)) is None
    }
    names = {job.name: name for name, job in jobs.items()}
    if not jobs:
        return
    with workers(where, work, "comparison", work.device) as there:
        for job, made in run_jobs(list(jobs.values()), there, show):
            plan, seed = job.given
            if isinstance(made, Failed):
                cells.remember(names[job.name], _lost(plan, work.loaded[repr(plan.data)], seed, made))
                continue
            cells.put(names[job.name], made)
            if (half := _half(cells, names[job.name])) is not None:
                half.unlink(missing_ok=True)


def _lost(plan: Plan, loaded: Loaded, seed: int, why: Failed) -> dict[str, Any]:
    """The row of a run that an error has ended."""
    bare = _ready(plan, loaded, seed, "cpu")
    return {**run_facts(bare), "accuracy": None, "accuracy_last": None, "failed": str(why)}


def _train(run: LocalRun, half: Path | None, show: Callable[[float], None]) -> dict[str, Any]:
    if half is not None and half.exists():
        with contextlib.suppress(checkpoint.CorruptCheckpoint):  # then from the beginning
            run.restore(*checkpoint.load(half))

    def keep() -> None:
        row = run.progress.history[-1]
        row["bytes"] = crossed(run.ledger)
        if "val" not in row:  # nothing was held out to choose by, so nothing is chosen by this either
            row["test"] = mean(run.carrier.evaluate("test"))
        if half is not None:
            checkpoint.save(half, *run.snapshot())

    try:
        run.train(on_step=lambda p: show(p.step / max(1, p.steps)), on_epoch=keep)
        last = run.evaluate(run.parts.test)
        run.use_best()
        used = run.evaluate(run.parts.test)
    except NonFinite as error:  # a rate that is too high is a result, and the others go on
        return {**run_facts(run), "accuracy": None, "accuracy_last": None, "failed": str(error)}
    beside = figures(client.scored for client in run.clients)
    told = {"accuracy": mean(used), "accuracy_last": mean(last), "failed": None, **beside}
    return {**run_facts(run), **told, **by_client(run)}


def run_facts(run: LocalRun) -> dict[str, Any]:
    return {
        "plan": repr(run.plan),
        "val": validated(run),
        "best_epoch": run.progress.best.epoch,
        "epochs": run.progress.epoch,
        "steps": run.progress.step,
        "client_steps": max(run.progress.taken),
        "seconds": round(run.progress.seconds, 3),
        "bytes": crossed(run.ledger),
        "bytes_up": run.ledger.per_sample(UP),
        "bytes_down": run.ledger.per_sample(DOWN),
        "bytes_weights": run.ledger.weights_per_sample(),
        "rejected": len(run.coordinator.rejected),
        "why_rejected": run.coordinator.rejected[:20],
        "rule_memory": run.plan.rule.memory({**run.coordinator.shared, **run.coordinator.memory}),
        "history": run.progress.history,
        "accuracy_chance": commonest(run.parts.test.y),
        **{f"client_{name}": count for name, count in sides(run.plan, run.task)["client"].items()},
    }


def validated(run: LocalRun) -> float | None:
    """The validation accuracy of the network that is tested: what settings may be chosen by."""
    if run.progress.best.tensors:
        return run.progress.best.accuracy
    return run.progress.history[-1].get("val") if run.progress.history else None


def crossed(ledger: Ledger) -> int:
    """Bytes that training took so far, both ways, weights included; predictions are not training."""
    return sum(count for (kind, _), count in ledger.bytes.items() if kind in _LEARNING)


# ------------------------------------------------------------------------------ over the seeds
def summaries(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a variant: mean and standard deviation over its seeds. Runs that were lost count as lost."""
    found = [_summary([row for row in rows if row["variant"] == name]) for name in _names(rows)]
    reached = {line["variant"]: line["accuracy"] for line in found}
    for line in found:
        alone = reached.get(line["alone"])
        known = alone is not None and line["accuracy"] is not None
        line["over_alone"] = 100 * (line["accuracy"] - alone) if known else None
    return found


def _names(rows: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["variant"] for row in rows))


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    whole = [row for row in rows if row["failed"] is None]
    fair = [row["fairness"] for row in whole if row.get("fairness")]
    accuracies = [row["accuracy"] for row in whole]

    def over(name: str) -> float | None:
        return mean(one[name] for one in fair) if fair else None

    return {
        "variant": rows[0]["variant"],
        "alone": rows[0].get("alone"),
        "seeds": len(rows),
        "lost": len(rows) - len(whole),
        "accuracy": mean(accuracies) if accuracies else None,
        "val": mean(chosen) if (chosen := [row["val"] for row in whole if row["val"] is not None]) else None,
        **({"perplexity": mean(row["perplexity"] for row in whole)} if whole and "perplexity" in whole[0] else {}),
        "deviation": (stdev(accuracies) if len(accuracies) > 1 else 0.0) if accuracies else None,
        "best_client": over("best"),
        "worst_client": over("worst"),
        "worst_tenth": over("worst_tenth"),
        "spread_of_clients": over("spread"),
        "deviation_of_clients": over("deviation"),
        "bytes": mean(row["bytes"] for row in rows),
        "seconds": mean(row["seconds"] for row in rows),
        "rule_memory": max(row["rule_memory"] for row in rows),
        "rejected": sum(row["rejected"] for row in rows),
        "accuracy_chance": mean(row["accuracy_chance"] for row in rows),
        "steps": round(mean(row["steps"] for row in rows)),  # of the server; clients differ in size from seed to seed
        "client_steps": rows[0]["client_steps"],
        "client_macs": rows[0]["client_macs"],
        "client_parameters": rows[0]["client_parameters"],
    }
