"""A run on disk: plan, secrets, history, checkpoints and result, each file whole or not there.

plan.json            what was asked for, and the fingerprint of the public part
private.json         the clients' private seed (readable by its owner alone)
words.txt            of texts: what the token ids stand for, where the words were those of the training texts
input_scale.json     how inputs far from 0 to 1 were standardised (the same)
meaning.json         what features and classes stand for, where they have names (the same)
history.jsonl        one line an epoch
last.safetensors     where the run stands; older-last.safetensors: the epoch before, as long as it runs
best.safetensors     its best epoch by validation accuracy
halted.*             where a detector stopped it, and why: see `halt`
result.json          accuracy, bytes, time, once it is finished
transcript.bin       what the server received, where it was recorded: `cutlayer attack` reads it
model.safetensors    the whole network at the end, where there is one for all clients: `--start` starts from it
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ...core.errors import Halt, Interrupted
from ...core.message import Watcher
from ...data.base import Loaded, parts
from ...data.fingerprint import fingerprint
from ...data.scaling import Scale
from ...training import checkpoint, loop
from ...training.evaluation import figures
from ...training.facts.compression import rates
from ...training.facts.forecast import Stopwatch, forecast
from ...training.facts.link import Link
from ...training.facts.memory import by_role
from ...training.facts.privacy import privacy
from ...training.facts.sides import sides
from ...training.faster import AS_ALWAYS, Faster
from ...training.plan.plan import Plan
from ...training.progress import StepEvent
from ...wire.ledger import DOWN, UP
from ...wire.transcript import Recorder
from ..client_report import by_client
from ..folder import (
    RESULT,
    TRANSCRIPT,
    keep_meaning,
    keep_scale,
    keep_words,
    known_scale,
    refuse_finished,
    refuse_other_data,
    scale_in_words,
    typable,
    write_plan,
)
from ..halt import lay_down, refuse_halted
from ..poison_report import watched
from ..result import Result
from ..taken import LOCK, taken
from .room import sentence
from .run import LocalRun

LAST = "last.safetensors"
Carried = Callable[..., bool]  # as `LocalRun.train`, with the run in front


@dataclass(frozen=True)
class Following:
    """How a run is followed: what is recorded and foretold of it, who hears of it, who may stop it, and who makes its
    steps where that is not this process."""

    record: int = 0  # bytes of what the server receives to keep, the newest; 0: none
    link: Link | None = None  # also say how long it would take over that
    on_start: Callable[[LocalRun], None] = lambda run: None
    on_step: Callable[[StepEvent], None] = lambda event: None
    on_epoch: Callable[[dict[str, Any]], None] = lambda row: None
    stop: Callable[[], bool] = lambda: False
    elsewhere: Carried | None = None  # `engines/ray`; the folder is the same


def train(
    plan: Plan,
    out: Path | str | None = None,
    *,
    data_dir: Path | None = None,
    device: str = "cpu",
    resume: bool = False,
    follow: Following | None = None,
    faster: Faster = AS_ALWAYS,
) -> dict[str, Any]:
    """Run `plan` in the folder `out` (None: a new one under runs/), or `resume` what was left there; the result."""
    if resume and out is None:
        raise ValueError("resume=True goes on in a folder: name it as out")
    own = Path(out) if out is not None else None
    with taken(None if resume else own, "train", own if resume else None) as folder:
        return train_in(
            folder, plan, data_dir=data_dir, device=device, resume=resume, follow=follow or Following(), faster=faster
        )


def train_in(
    folder: Path, plan: Plan, *, data_dir: Path | None, device: str, resume: bool, follow: Following, faster: Faster
) -> dict[str, Any]:
    """As `train`, in a folder that is this process's already."""
    if follow.elsewhere is not None and (follow.record or follow.link is not None):
        raise ValueError(
            "--record and --link listen to a server in this process: leave out either them or --engine ray"
        )
    if follow.elsewhere is not None and str(faster):
        raise ValueError(f"{faster}: faster ways are those of one process: leave out either them or --engine ray")
    if (link := follow.link) is not None:
        refuse_side_by_side(plan)
    if resume:
        refuse_halted(folder)
        refuse_finished(folder)
    recorder, watch = Recorder(follow.record) if follow.record else None, Stopwatch()
    watchers: list[Watcher] = [*([recorder] if recorder is not None else []), *([watch] if link is not None else [])]
    run = ready(plan, data_dir, device, watchers, known_scale(folder) if resume else None, faster=faster)
    if resume:
        refuse_other_data(folder, run.plan, data := _data_of(run))
        run.restore(*checkpoint.load_or_older(folder / LAST))
        write_plan(run.plan, folder, data)
        if recorder is not None and (folder / TRANSCRIPT).exists():
            recorder.load(folder / TRANSCRIPT)
    else:
        _begin(run, folder)
    follow.on_start(run)
    before = run.progress.seconds

    def keep() -> None:
        if run.progress.best.epoch == run.progress.epoch:
            checkpoint.save(folder / "best.safetensors", *run.snapshot())
        _save(run, folder)
        if recorder is not None:
            recorder.save(folder / TRANSCRIPT)
        follow.on_epoch(run.progress.history[-1])

    lacked_memory, finished = False, False
    try:
        finished = (follow.elsewhere or _here)(run, on_step=follow.on_step, on_epoch=keep, stop=follow.stop)
    except torch.OutOfMemoryError:
        lacked_memory = True  # whoever failed still holds on to memory here, and lets go of it below
    except Halt as halt:
        if recorder is not None:
            recorder.save(folder / TRANSCRIPT)
        run.progress.history.append({**run.progress.row(), "epoch": run.progress.epoch + 1, "halted": str(halt)})
        _write_history(run, folder)
        raise lay_down(folder, halt, *run.snapshot(), scores_over_time(run)) from halt
    if lacked_memory:
        plan, task, where = run.plan, run.task, run.device
        del run
        raise MemoryError(sentence(plan, task, where))
    if not finished:
        _save(run, folder)
        if recorder is not None:
            recorder.save(folder / TRANSCRIPT)
        again = "" if typable(run.plan) else "with the same recipe and options, and "
        raise Interrupted(
            f"stopped after step {run.progress.step}; go on {again}with: cutlayer train --resume {folder}"
        )
    told = None
    if link is not None:  # before the test set is predicted
        spent = run.progress.seconds - before
        told = forecast(
            link,
            run.ledger,
            watch,
            seconds=spent,
            steps=run.progress.step,
            per_epoch=run.timetable.steps // max(1, run.plan.epochs),  # none: nothing was trained
            ahead=run.timetable.ahead,
        )
    more = ({} if link is None else {"link": told}) | ({"faster": str(faster)} if str(faster) else {})
    return Result(_finish(run, folder, more))


def _here(run: LocalRun, **heard: Any) -> bool:
    return loop.train(run.coordinator, run.carrier, **heard)


def refuse_side_by_side(plan: Plan) -> None:
    """What is foretold of a link is that of a cut, and of clients that learn one after the other."""
    if plan.rounds.merges or not plan.protocol.crosses:
        raise ValueError(
            f"--link foretells clients that take turns; {plan.rounds} and {plan.protocol} have other "
            "schedules: leave it out, or take rounds=Relay()"
        )


def ready(
    plan: Plan,
    data_dir: Path | None,
    device: str,
    at_server: Sequence[Watcher] = (),
    scale: Scale | None = None,
    prepared: Callable[[Loaded], Loaded] = lambda loaded: loaded,
    faster: Faster = AS_ALWAYS,
) -> LocalRun:
    """A plan with its data, about to begin; or to go on, with the `scale` that it was begun with. `prepared` may say
    more of the same samples, e.g. which are secrets."""
    loaded = prepared(plan.data.load(data_dir, scale))
    return LocalRun(
        plan,
        parts(loaded, aux=plan.aux_samples, val=plan.val_share, seed=plan.seed),
        classes=len(loaded.classes),
        device=device,
        at_server=at_server,
        faster=faster,
    )


def _begin(run: LocalRun, folder: Path) -> None:
    """Its first checkpoint is the last of what a run needs to go on: where that is not there, nothing was begun."""
    try:
        _write_first(run, folder)
    except BaseException:
        for path in folder.iterdir():  # it was new or empty, and would be neither for the next command
            if path.name != LOCK:
                path.unlink()
        raise


def _write_first(run: LocalRun, folder: Path) -> None:
    write_plan(run.plan, folder, _data_of(run))
    keep_scale(folder, run.parts.scale)
    keep_meaning(folder, run.parts.meaning)
    keep_words(folder, run.parts.private.tokenizer)
    secret = json.dumps({"private_seed": run.plan.private_seed})
    checkpoint.write_text(folder / "private.json", secret, mode=0o600)
    _save(run, folder)


def _data_of(run: LocalRun) -> str:
    return fingerprint(run.parts.private, run.parts.test)


def _save(run: LocalRun, folder: Path) -> None:
    checkpoint.save_keeping_older(folder / LAST, *run.snapshot())
    _write_history(run, folder)


def _write_history(run: LocalRun, folder: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in run.progress.history)
    checkpoint.write_text(folder / "history.jsonl", lines)


def scores_over_time(run: LocalRun) -> list[dict[str, Any]]:
    """What each client's detectors had to say."""
    return [{"client": client.number, **one} for client in run.clients for one in client.detection.report()]


def leaks(result: dict[str, Any]) -> list[str]:
    """What each client's leak meter saw, in words."""
    lines = []
    for one in result.get("detectors", ()):
        if so_far := one.get("leak_so_far"):
            seen = ", ".join(f"{name} {value:.3f}" for name, value in so_far.items())
            floor, spread = one["leak"][-1]["floor"], one["leak"][-1]["plus_minus"]
            blind = "commonest words" if "token_accuracy" in so_far else "class-mean image"
            lines.append(
                f"client {one['client']}: a reader of its own messages saw {seen} (± {spread:.3f}; the {blind} alone "
                f"{floor:.3f})"
            )
    return lines


def _finish(run: LocalRun, folder: Path, more: dict[str, Any]) -> dict[str, Any]:
    last = run.evaluate(run.parts.test)
    for client in run.clients:
        client.detection.finish()
    over_time = scores_over_time(run)  # before it goes back to its best epoch
    run.use_best()
    used = run.evaluate(run.parts.test)
    if (whole := run.network()) is not None:
        checkpoint.save(folder / "model.safetensors", whole, {})
    result = {
        "plan": repr(run.plan),
        **({"inputs": scale_in_words(run.parts.scale)} if scale_in_words(run.parts.scale) else {}),
        "accuracy": sum(used) / len(used),
        **figures(client.scored for client in run.clients),
        "accuracy_spread": max(used) - min(used),
        "accuracy_last": sum(last) / len(last),
        "best_epoch": run.progress.best.epoch,
        "epochs": run.progress.epoch,
        "steps": run.progress.step,
        "seconds": round(run.progress.seconds, 3),
        "bytes_up": run.ledger.per_sample(UP),
        "bytes_down": run.ledger.per_sample(DOWN),
        "bytes_weights": run.ledger.weights_per_sample(),
        "rates": rates(run.plan, run.task, run.ledger),
        "ledger": run.ledger.as_dict(),
        "sides": sides(run.plan, run.task),
        "client_memory": by_role(_of_its_data(run), run.task),
        "privacy": privacy(run.plan, run.task, epochs=run.progress.epoch),
        **({"updates_held": run.coordinator.updates_held} if run.plan.rounds.merges else {}),
        **by_client(run),
        **({"why_eager": run.why_eager} if run.device.type == "cuda" else {}),
        **({"detectors": over_time} if run.plan.client_detectors else {}),
        **watched(run),
        **more,
    }
    checkpoint.write_text(folder / RESULT, json.dumps(result, indent=1))
    checkpoint.drop_older(folder / LAST)
    return result


def _of_its_data(run: LocalRun) -> Plan:
    """The plan with a batch that a client can fill: a larger one is never in its memory."""
    plan, most = run.plan, max(len(client.samples) for client in run.clients)
    size = max(plan.least_batch, min(plan.batch_size, most))
    pieces = max(1, min(plan.micro_batches, size // max(2, plan.guard.least_batch)))  # as a small batch has them
    return replace(plan, batch_size=size, micro_batches=pieces)
