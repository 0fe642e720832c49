"""A run between machines, on disk: one folder at the server, one at each client, each enough to go on after a crash.

server   plan.json, clients.json, snapshots/, history.jsonl, server.safetensors (the body), result.json, audit.jsonl
client   plan.json, private.json (owner only), snapshots/, history.jsonl, client.safetensors, result.json;
         audit.jsonl; halted.json and halted.safetensors where its detectors stopped it
"""

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from ... import __version__
from ...core.batch import Task
from ...core.errors import Interrupted
from ...core.files import tidy
from ...core.message import Watcher
from ...data.base import Parts, Source, parts
from ...data.fingerprint import fingerprint
from ...data.scaling import Scale
from ...data.texts import TextSource
from ...training import checkpoint
from ...training.batches import shares_of, task_of
from ...training.plan.plan import Plan
from ...training.progress import StepEvent
from ..folder import (
    SCALE,
    SECRET,
    keep_meaning,
    keep_own_data,
    keep_scale,
    keep_words,
    known_scale,
    known_secret,
    refuse_other_meaning,
    refuse_other_samples,
)
from ..halt import refuse_halted
from ..local.carrier import part_of
from ..taken import FolderLock, is_nothing, standing
from . import certs
from .admission import Admission, Limits
from .audit_log import AuditLog
from .channel import Address, require_loopback, require_port
from .client import DeployedClient
from .pulse import Pulse
from .server import GrpcServer
from .service import Network
from .versions import own_versions

CLIENTS = "clients.json"

log = logging.getLogger("cutlayer.serve")


class Service:
    """A server that runs, from its port to its folder."""

    def __init__(
        self,
        plan: Plan,
        names: Sequence[str],
        folder: Path,
        *,
        listen: str,
        identity: Path | None,
        limits: Limits | None = None,
        at_server: Sequence[Watcher] = (),
        pulse: Pulse | None = None,
    ):
        _refuse_alone(plan)
        require_port(listen)
        if identity is None:
            require_loopback(listen)
        self.folder, self.at_server, self.pulse = folder, at_server, pulse or Pulse()
        self._names = list(names)
        self._lock = _begin(folder, plan.public())
        self._audit = AuditLog(folder, log.name)
        self.admission = Admission(plan, names, limits or Limits(), certified=identity is not None)
        self.host: GrpcServer | None = None
        self.stopping = threading.Event()
        self._callbacks: dict[str, Any] = {}
        self.network = Network(
            listen,
            self.admission,
            self.status,
            identity=certs.read_identity(identity, "server") if identity else None,
            revoked=certs.Revoked(identity / certs.REVOKED) if identity else None,
        )
        try:
            self._remember()
            self.network.start()
        except BaseException:
            self._audit.close()
            self._lock.release()
            raise
        log.info("started", extra={"facts": {"plan": self.admission.fingerprint, **own_versions()}})

    def run(
        self,
        *,
        on_wait: Callable[[list[str]], None] = lambda names: None,
        on_step: Callable[[StepEvent], None] = lambda event: None,
        on_epoch: Callable[[dict[str, Any]], None] = lambda row: None,
        stay: bool = False,
        device: str = "cpu",
    ) -> dict[str, Any]:
        """Train to the end and return the result. With `stay`, then answer predictions until stopped."""
        try:
            host = self._open(on_wait, device)
            done = self.folder / "result.json"
            if done.exists():
                host.use_kept()
                result: dict[str, Any] = json.loads(done.read_text())
            else:
                if not host.run(lambda event: self._step(event, on_step), lambda: self._epoch(host, on_epoch)):
                    log.info("stopped", extra={"facts": {"step": host.progress.step}})
                    raise Interrupted(f"stopped after step {host.progress.step}; the same command goes on")
                result = self._result(host)
                ended = {"step": host.progress.step, "exact": result["exact"]}
                log.info("finished", extra={"facts": ended})
            self.admission.ended.update(result["ended"])
            host.part(lambda name: self._told(result, name))
            if stay:
                host.stay(lambda name: self._told(result, name))
            return result
        finally:
            for connection in self.admission.connections:
                connection.goodbye()
            time.sleep(0.1)
            self.network.stop()
            self._audit.close()
            self._lock.release()

    def stop(self) -> None:
        """End after the current turn."""
        self.stopping.set()
        self.admission.wakeup.ring()
        if self.host is not None:
            self.host.stop()

    def close(self) -> None:
        """Of a service that was never run: leave port and folder to another."""
        self.network.stop(grace=0.0)
        self._audit.close()
        self._lock.release()

    def status(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "version": __version__,
            "plan": self.admission.fingerprint,
            "state": "waiting" if self.host is None else "finished" if self._finished() else "training",
            "missing": self.admission.missing(),
            "refused": dict(self.network.refused),
            "certificates": self.network.expiry.facts(),
        }
        if self.host is None:
            return facts
        sign = max(one.moved_at for one in self.admission.connections)
        told = self.host.status()
        return facts | told | {
            "away": [one["name"] for one in told["clients"] if not (one["connected"] or one["skipped"])],
            "step_seconds": self.pulse.usual,
            "since_step": round(self.pulse.since(sign), 3),
            "stalled": self.pulse.stalled(sign),
        }  # fmt: skip

    def _finished(self) -> bool:
        return (self.folder / "result.json").exists()

    def _open(self, on_wait: Callable[[list[str]], None], device: str) -> GrpcServer:
        while missing := self.admission.missing():
            on_wait(missing)
            self.admission.wakeup.wait_for(lambda: self.stopping.is_set() or self.admission.missing() != missing)
            if self.stopping.is_set():
                raise Interrupted("stopped before all clients had come; the same command goes on")
        self.host = GrpcServer(
            self.admission, self.folder, device=device, at_server=self.at_server, stop=self.stopping
        )
        return self.host

    def _remember(self) -> None:
        """What clients said of their data before a restart: the run need not wait for all of them to say it again."""
        snapshots = checkpoint.Snapshots(self.folder / "snapshots")
        snapshots.set_aside_damaged()
        if numbers := snapshots.numbers():
            self._refuse_other_clients()
            for client, known in enumerate(snapshots.load(numbers[-1])[1]["known"]):
                if known:
                    shape, *rest = known["task"]
                    self.admission.task = Task(tuple(shape), *rest)
                    self.admission.known[client] = {**known, "task": self.admission.task}
        else:
            checkpoint.write_text(self.folder / CLIENTS, json.dumps(self._names))

    def _refuse_other_clients(self) -> None:
        """A client is known by its number, here and in its own folder, and has that by its place among the names."""
        path = self.folder / CLIENTS
        begun = json.loads(path.read_text()) if path.exists() else self._names
        if begun != self._names:
            raise ValueError(
                f"{self.folder} was begun with the clients {', '.join(begun)}, in this order: name them so, or begin "
                "anew with another --out"
            )

    def _step(self, event: StepEvent, on_step: Callable[[StepEvent], None]) -> None:
        self.pulse.step()
        on_step(event)

    def _epoch(self, host: GrpcServer, on_epoch: Callable[[dict[str, Any]], None]) -> None:
        lines = "".join(json.dumps(row) + "\n" for row in host.progress.history)
        checkpoint.write_text(self.folder / "history.jsonl", lines)
        on_epoch(host.progress.history[-1])

    def _result(self, host: GrpcServer) -> dict[str, Any]:
        checkpoint.save(self.folder / "server.safetensors", host.server.body.state_dict(), {})
        watches = host.coordinator.watches
        result = {
            "plan": repr(host.plan),
            "accuracy": mean(host.used) if host.used else None,
            "accuracy_last": mean(host.last) if host.last else None,
            "accuracy_spread": max(host.used) - min(host.used) if host.used else None,
            "best_epoch": host.progress.best.epoch,
            "epochs": host.progress.epoch,
            "steps": host.progress.step,
            "seconds": round(host.progress.seconds, 3),
            "exact": host.attendance.exact,
            "skipped": host.attendance.skipped,
            "left_out": host.attendance.left_out,
            "rewinds": host.recovery.rewinds,
            "refused": dict(self.network.refused),
            "ledger": host.ledger.as_dict(),
            **({"server_detectors": [watch.report() for watch in watches]} if watches else {}),
            "ended": [],  # clients that know it
        }
        checkpoint.write_text(self.folder / "result.json", json.dumps(result, indent=1))
        return result

    def _told(self, result: dict[str, Any], name: str) -> None:
        result["ended"].append(name)
        checkpoint.write_text(self.folder / "result.json", json.dumps(result, indent=1))


def join(
    plan: Plan,
    name: str,
    folder: Path,
    *,
    address: Address,
    data: Source | None = None,
    data_dir: Path | None = None,
    device: str = "cpu",
    on_open: Callable[[DeployedClient], None] = lambda site: None,
) -> DeployedClient:
    """Become `name` in a run, on this client's own `data` or on its share of the plan's: ready to `run()`."""
    _refuse_alone(plan)
    _refuse_own_words(plan, data)
    if (folder / "result.json").exists():
        raise ValueError(f"{folder} holds a finished run: choose another --out to take part anew")
    refuse_halted(folder)
    plan, lock = _with_secret(plan, folder)  # behind everything that can be wrong with the command: makes the folder
    plan = plan if data is None else replace(plan, data=data)  # which says how its images are varied
    site = DeployedClient(plan, name, address, folder, device)
    site.lock, site.audit = lock, AuditLog(folder, "cutlayer.join")
    number = task = None
    try:
        on_open(site)
        number = site.enrol()
        task, own = own_parts(
            plan, number, data, data_dir, known_scale(folder) if (folder / SCALE).exists() else None
        )
        refuse_other_meaning(folder, own.meaning, repr(plan.data), ", or begin anew with another --out")
        refuse_other_samples(folder, samples := fingerprint(own.private, own.test), repr(plan.data))
        keep_scale(folder, own.scale)
        keep_meaning(folder, own.meaning)
        keep_words(folder, own.private.tokenizer)
        keep_own_data(folder, data, samples)
        site.prepare(number, task, own, own_data=data is not None)
    except BaseException as error:
        if number is not None and isinstance(error, Exception):
            site.enrolment.leave(task)
        site.audit.close()
        lock.release()
        raise
    return site


def own_parts(
    plan: Plan, number: int, data: Source | None, data_dir: Path | None, scale: Scale | None = None
) -> tuple[Task, Parts]:
    """A client's own data, or, in a rehearsal, its share of the plan's; on the `scale` of a run that goes on."""
    loaded = (data or plan.data).load(data_dir, scale)
    split = parts(loaded, aux=0 if data else plan.aux_samples, val=plan.val_share, seed=plan.seed)
    task = task_of(split.private, len(loaded.classes))
    if data is None:
        own = split.private[shares_of(plan, split.private)[number]]
        val, test = (part_of(samples, number, plan, plan.alike) for samples in (split.val, split.test))
        split = replace(split, private=own, val=val, test=test)
    return task, split


def _refuse_alone(plan: Plan) -> None:
    if not plan.protocol.learns_together:
        raise ValueError(
            f"nothing is learnt together with {plan.protocol}, so there is nothing to serve or to join: each client "
            "trains by itself, with `cutlayer train`"
        )


def _refuse_own_words(plan: Plan, data: Source | None) -> None:
    """Ids are places in a list of words, and lists made of different texts differ."""
    if isinstance(data, TextSource) and not data.words and plan.clients > 1:
        raise ValueError(
            f"{data} would number the words of this client's own texts, and each client's differ: give all of them "
            "the same list, words='words.txt' (every run has one in its folder), or the same tokenizer.json"
        )


def _begin(folder: Path, plan: Plan) -> FolderLock:
    """A new folder, or one that was left by the same plan; it is this process's now."""
    plan.refuse_nameless()
    standing(folder)
    path = folder / "plan.json"
    if not path.exists() and folder.exists() and any(not is_nothing(one) for one in folder.iterdir()):
        raise FileExistsError(f"{folder} exists and is not empty: choose another --out")
    if path.exists():
        before = _begun(path)
        checkpoint.refuse_other_version(before["version"], folder)
        if before["fingerprint"] != plan.fingerprint():
            raise ValueError(f"{folder} belongs to another plan: {before['plan']}. Choose another --out")
        return _locked(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lock = _locked(folder)
    facts = {"version": __version__, "plan": repr(plan), "fingerprint": plan.fingerprint(), "code": plan.code()}
    checkpoint.write_text(path, json.dumps(facts, indent=1))
    return lock


def _locked(folder: Path) -> FolderLock:
    """It is this process's, and so is what others left there half written."""
    lock = FolderLock(folder)
    for place in (folder, folder / "snapshots"):
        tidy(place)
    return lock


def _begun(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_text())
        return {"version": told.get("version"), "fingerprint": told["fingerprint"], "plan": told["plan"]}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is empty or damaged: put back a copy of it, or begin anew with another --out"
        ) from error


def _with_secret(plan: Plan, folder: Path) -> tuple[Plan, FolderLock]:
    """The plan with this client's own private seed, drawn once and kept: a replayed step must be the same step."""
    lock = _begin(folder, plan)
    path = folder / SECRET
    if path.exists():
        kept = known_secret(folder)
        if plan.private_seed not in (None, kept):
            raise ValueError(f"{folder} was started with another private seed")
        return replace(plan, private_seed=kept), lock
    drawn = secrets.randbits(63) if plan.private_seed is None else plan.private_seed
    checkpoint.write_text(path, json.dumps({"private_seed": drawn}), mode=0o600)
    return replace(plan, private_seed=drawn), lock


def summary(result: dict[str, Any]) -> str:
    """One line for a person."""
    measured = "" if result["accuracy"] is None else f", test accuracy {result['accuracy']:.4f}"
    apart = f" (mean over clients, spread {spread:.4f})" if (spread := result.get("accuracy_spread")) else ""
    return f"finished after {result['steps']} steps{measured}{apart}"
