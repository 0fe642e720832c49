"""A client of a deployment: it connects, follows orders on its own data, and survives whatever happens on the way."""

import json
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ...core.batch import Task
from ...core.errors import DiskFull, Halt, Interrupted, NonFinite, ProtocolError
from ...core.message import Kind, Message
from ...core.state import State
from ...data.base import Parts
from ...nets.base import scores_shape
from ...rules.base import OPTIMIZER
from ...training import checkpoint
from ...training.batches import refuse_small_batches, refuse_too_few
from ...training.checkpoint import Snapshots
from ...training.client import Client
from ...training.evaluation import figures
from ...training.facts.privacy import priced, privacy
from ...training.fused_wave import FUSED
from ...training.growing_text import GROWS
from ...training.loop import BEST
from ...training.orders import PURPOSES, numbers, weights_in
from ...training.own_data import OwnData, Uplink
from ...training.plan.plan import MOST_MICRO_BATCHES, Plan
from ...training.plan.shapes import cut_shapes
from ...training.step import export
from ...training.suspicion import COUNTS, Suspicion, without_last
from ...wire import frames
from ...wire.ledger import DOWN, UP, Ledger
from ..books import JOURNAL, Books
from ..folder import FolderLock
from ..halt import lay_down
from . import certs
from .audit_log import AuditLog
from .channel import LINGER, PERSISTENT, Address, Ending, GaveUp, NewSession, ServerChannel, call, told
from .credentials import Expiry
from .pulse import Pulse
from .service import ENROLL, LOOK, SAID
from .session import VERSION, Frame, Refused, Type, note, read_note
from .validation import finite
from .versions import own_versions

log = logging.getLogger("cutlayer.join")


OnStep = Callable[[int, int, Mapping[str, float]], None]  # epoch, steps so far, the loss term by term


class DeployedClient:
    """One client's part in a run elsewhere."""

    def __init__(self, plan: Plan, name: str, address: Address, folder: Path, device: str = "cpu"):
        self.plan, self.name, self.address, self.folder, self.device = plan, name, address, folder, device
        self.ledger = Ledger()
        self.snapshots = Snapshots(folder / "snapshots")
        self.channel = ServerChannel(address, self._greeting)
        self.party: Client | None = None
        self._on_step: OnStep = lambda *told: None
        self.rows: list[dict[str, Any]] = []  # the history of this client: its loss, term by term
        self.sums: dict[str, tuple[float, int]] = {}
        self.scores: dict[str, float] = {}
        self._crossed: dict[int, tuple[int, ...]] = {}  # shapes of what was sent lately, by step
        self._about: dict[str, Any] = {}
        self._process = secrets.token_hex(8)
        self.lock: FolderLock | None = None
        self.audit: AuditLog | None = None
        self.expiry, self.pulse = Expiry(log), Pulse()
        self._looked = -LOOK  # when its certificate was last looked at
        self._exact = True  # whether the server calls the run what an undisturbed one would have been
        self._turn: tuple[int, int, int] | None = (
            None  # epoch, first batch and step of the turn that is being followed
        )
        self._evaluation: tuple[str, int] = "", 0
        self._told = deque[tuple[str, int]](maxlen=2)  # releases that were said in the log
        self._predicted = 0  # messages of the evaluation that is being followed
        self._lacks_best = False  # it stands at a best epoch that it was not there for

    def enrol(self) -> int:
        """Which client this is. The server says it once; another number later would repeat another's randomness."""
        began = time.monotonic()
        while True:
            try:
                patience = min(10.0, self.channel.give_up)
                facts = read_note(call(self.address, ENROLL, note(Type.HELLO, self._who()), patience), Type.WELCOME)
                number = told(facts, "number", int)
                if not 0 <= number < self.plan.clients:
                    raise ProtocolError(f"the server calls this client number {number} of {self.plan.clients}")
                said = {"server": self.address.target, "plan": self.plan.fingerprint(), "number": number}
                log.info("plan agreed", extra={"facts": said})
                return number
            except (GaveUp, Refused) as error:
                passing = isinstance(error, GaveUp) or error.name in PERSISTENT
                if not passing or time.monotonic() - began > self.channel.give_up:
                    name = error.name if isinstance(error, Refused) else "away"
                    log.error("refused", extra={"facts": {"error": name, "text": str(error)[:SAID]}})
                    raise
                log.info("waiting", extra={"facts": {"for": self.address.target, "why": str(error)}})
                time.sleep(0.5)

    def prepare(self, number: int, task: Task, parts: Parts, own_data: bool) -> None:
        """Build this client's side on its own samples, and go to the newest snapshot there is."""
        counts = {f"client {number}": len(parts.private), "its validation data": len(parts.val)}
        counts["its test data"] = len(parts.test)
        refuse_too_few(self.plan, counts)
        refuse_small_batches(self.plan, task, counts)
        held_out = {"validate": parts.val, "test": parts.test}
        own, uplink = OwnData(parts.private, held_out), Uplink(self._ask, self.ledger, self._post)
        self.party = Client(self.plan, task, number, own, uplink, self.device, self._learnt)
        self._u = answered_shape(self.plan, task)
        self.books = Books(self.folder, self.plan.epochs, self.party.batches)
        self.suspicion = self._suspicion(number, self.party.batches)
        self._about = {
            "batches": self.party.batches,
            "own_data": own_data,
            "task": [*task[:2], dict(task.attributes), task.vocabulary],
            **({"batches_code": self.suspicion.batches_code.hex()} if self.suspicion is not None else {}),
        }
        self.snapshots.set_aside_damaged()
        if not self.snapshots.numbers():
            self._write(0)

    def run(self, on_step: OnStep = lambda *told: None) -> dict[str, Any]:
        """Follow orders until the run is over; returns what this client says of it."""
        self._on_step = on_step
        try:
            return self._run()
        except Ending:
            steps = self._party.network.steps
            log.info("stopped", extra={"facts": {"step": steps}})
            self.channel.close()
            self._write_history()
            self._put_down()
            raise Interrupted(f"stopped after {steps} steps of this client; the same command goes on") from None
        except Refused as error:
            log.error("refused", extra={"facts": {"error": error.name, "text": str(error)[:SAID]}})
            raise
        finally:
            if self.audit is not None:
                self.audit.close()

    def stop(self) -> None:
        """End between two messages: what was sent is in the books, and the last snapshots are whole."""
        self.channel.stop()

    def _run(self) -> dict[str, Any]:
        while True:
            self._look_at_certificates()
            try:
                order = self._decode(self.channel.receive())
                frame = self._answer(order)
                result = self._result() if order.kind is Kind.END else {}  # before the server may forget us
                self.channel.send(frame)
                if order.kind is Kind.END:
                    log.info("finished", extra={"facts": {"step": result["steps"], "exact": result["exact"]}})
                    self.channel.leave(LINGER)
                    self._put_down()
                    return result
            except NewSession:
                log.info("new session", extra={"facts": {"step": self._party.network.steps}})
            except Halt as halt:
                raise self._halted(halt) from halt
            except DiskFull:  # as if its machine were off, until there is room
                self.channel.close()
                self._put_down()
                raise

    def status(self) -> dict[str, Any]:
        """How it is, for whoever asks on this client's own machine."""
        facts: dict[str, Any] = {
            "version": __version__,
            "plan": self.plan.fingerprint(),
            "state": "joining",
            "missing": [],
            "away": [] if self.channel.connected else [f"the server at {self.address.target}"],
            "refused": {},
            "certificates": self.expiry.facts(),
        }
        if self.party is None:
            return facts
        return facts | {
            "state": "training",
            "epoch": max(0, self.rows[-1]["epoch"] - 1) if self.rows else 0,
            "step": self.party.network.steps,
            "steps": self.plan.epochs * self.party.batches,
            "accuracy": self.scores.get("validation"),
            "ledger": self.ledger.as_dict(),
            "step_seconds": self.pulse.usual,
            "since_step": round(self.pulse.since(), 3),
        }

    def _look_at_certificates(self) -> None:
        own, now = self.address.own, time.monotonic()
        if own is not None and now - self._looked >= LOOK:
            self._looked = now
            self.expiry.own(own.current(), self.name)

    # -------------------------------------------------------------------- conversation
    @property
    def batches(self) -> int:
        """Of this client in an epoch."""
        return self._party.batches

    @property
    def _party(self) -> Client:
        assert self.party is not None, "prepare() comes first"
        return self.party

    def _suspicion(self, number: int, batches: int) -> Suspicion | None:
        """Without certificates, on one machine, there is no key that the server does not have."""
        if self.address.identity is None or not self.plan.hands_on or self.plan.unequal_ranks:
            return None  # what has several ranks the server cuts to size for each: no seal survives that
        if self.address.identity.weights is None:
            raise ValueError(
                f"there is no {certs.WEIGHTS_KEY} in this client's folder of certificates, by which clients know "
                "each other's weights: `cutlayer certs` with the same names adds it; copy the folder again"
            )
        return Suspicion(self.plan, number, batches, self.address.identity.weights)

    def _answer(self, order: Message) -> bytes | bytearray:
        """What goes back. Weights that were sent before go again as they went: the next client starts from them."""
        answer = self._follow(order)
        if not weights_in(answer):
            return frames.encode(answer)
        if self.suspicion is not None:
            answer = self.suspicion.sealed(order, answer)
        fresh = frames.encode(answer)
        frame = self.books.release(("weights", *(self._turn or ()), answer.step), fresh)
        if self.suspicion is not None:
            self.suspicion.adopt(answer if frame is fresh else self._decode(memoryview(frame)))
        return frame

    def _who(self) -> dict[str, Any]:
        return {
            "protocol": VERSION,
            "versions": own_versions(),
            "name": self.name,
            "plan": self.plan.fingerprint(),
            "fields": self.plan.agreed(),
            "process": self._process,
        }

    def _greeting(self) -> dict[str, Any]:
        return {**self._who(), **self._about, "purpose": "train", "snapshots": self.snapshots.numbers()}

    def _ask(self, message: Message) -> Message:
        """The server, as this client's network sees it."""
        return self._post(message)()

    def _post(self, message: Message) -> Callable[[], Message]:
        """Send now, wait later; answers come in the order of the questions."""
        frame = self.books.release(self._key(message), frames.pieces(message))
        self.ledger.note(message, UP, len(frame))
        self.channel.send(frame)
        if "z" in message.tensors:
            recent = {
                step: shape for step, shape in self._crossed.items() if step > message.step - MOST_MICRO_BATCHES
            }
            self._crossed = recent | {message.step: tuple(message["z"].shape)}
        return lambda: self._answer_to(message)

    def _key(self, message: Message) -> tuple[Any, ...]:
        """Under which a message is in the books: of which samples it is, not at which step they are asked for."""
        if self._turn is not None:
            return (message.kind.name, *self._turn, message.step)
        self._predicted += 1
        return (*self._evaluation, self._predicted)

    def _open(self, order: Message) -> None:
        """Into the books, before anything of it leaves."""
        if order.kind is Kind.EVALUATE:
            purpose, epoch = numbers(order, "what", 2)
            if not 0 <= purpose < len(PURPOSES):
                raise ProtocolError(f"{order} asks for an evaluation this client does not know")
            evaluated = self._party.evaluated_as(PURPOSES[purpose])
            self._turn, self._evaluation, self._predicted = None, (evaluated, epoch), 0
            self.books.evaluation(evaluated, epoch)
            self._released(evaluated, epoch)
        elif order.kind in (Kind.TURN, Kind.WEIGHTS):
            epoch, first, last, _ = numbers(order, "turn", 4)
            if order.step != self._party.steps:
                raise ProtocolError(f"{order}: this client stands at step {self._party.steps}")
            self._turn = epoch, first, order.step
            self._party.detour = (epoch, first) if self.books.turn(order.step, epoch, first, last) else ()
            if last > first and (not self._told or self._told[-1] != ("train", epoch)):
                self._released("train", epoch)

    def _released(self, what: str, epoch: int) -> None:
        """For the audit log, once an epoch; every turn of it is in the books."""
        self._told.append((what, epoch))
        log.info("released", extra={"facts": {"what": what, "epoch": epoch, "details": JOURNAL}})

    def _answer_to(self, message: Message) -> Message:
        answer = self.channel.receive()
        reply = self._decode(answer)
        self.ledger.note(reply, DOWN, len(answer))
        frozen = self._party.network.remote.forward_only
        empty = not reply.tensors and message.kind in FUSED and not (frozen and message.kind is Kind.BACKWARD)
        if self.plan.rounds.merges and empty:
            raise NonFinite("the server could not compute this without NaN or infinity: the turn is given up")
        fan_out = self.plan.guard.fan_out
        refuse_wrong_answer(message, reply, self._u, self._crossed.get(message.step, ()), frozen, fan_out)
        return reply.to(self.device)

    def _decode(self, frame: Frame) -> Message:
        return decoded(frame, self.channel.limit)

    def _follow(self, order: Message) -> Message:
        client = self._party
        if order.client != client.number:
            raise ProtocolError(f"{order} came to client {client.number}")
        self._refuse_wrong_order(order)
        if order.kind in (Kind.KEEP, Kind.REWIND, Kind.END):
            (number,) = numbers(order, "number", 1)
            if order.kind is Kind.KEEP:
                self._write(number)
            elif order.kind is Kind.REWIND:
                self._go_to(number)
            else:
                client.take_over(order)
                self._exact = not number
            return order.reply(steps=torch.tensor([client.network.steps]))
        self._open(order)
        answer = client.handle(order.to(self.device))
        if order.kind is Kind.EVALUATE:
            right, count = answer["score"].tolist()
            self.scores[("validation", "test")[int(order["what"][0])]] = right / max(1, count)
        return answer

    def _refuse_wrong_order(self, order: Message) -> None:
        """A server may order what the plan says and no more: own heads stay at home, and no others are put in."""
        weights = weights_in(order)
        what = {Kind.TURN: "turn", Kind.WEIGHTS: "turn", Kind.EVALUATE: "what"}.get(order.kind, "number")
        known = {COUNTS} if self.plan.rounds.merges and order.kind is Kind.WEIGHTS else set()
        if set(order.tensors) - known != {what, *weights}:
            raise ProtocolError(f"{order} carries {sorted(order.tensors)[:4]}; {what!r} was expected")
        if not self.plan.hands_on and (weights or order.kind is Kind.WEIGHTS):
            raise ProtocolError(f"{order} is about weights, and in this plan every client keeps its own")
        if weights and order.kind not in (Kind.WEIGHTS, Kind.EVALUATE, Kind.END):
            raise ProtocolError(f"{order} brings weights that were not asked for")
        own = export(self._party.network) if weights else {}
        net = _form(weights, "net.", "stat.")
        if net != _form(own, "net.", "stat."):
            raise ProtocolError(f"{order} brings weights of another network")
        try:
            self.plan.rule.refuse_unfit_state(weights)
        except ValueError as error:
            raise ProtocolError(f"{order} brings {error}") from error
        optimizer = self._party.network.optimizer
        kept = [p for group in optimizer.param_groups for p in group["params"]] if optimizer is not None else []
        for name in (name for name in weights if name.startswith(OPTIMIZER)):
            _, place, _ = (*name.split(".", 2), "", "")[:3]
            of = kept[int(place)] if place.isdecimal() and int(place) < len(kept) else None
            if of is None or weights[name].shape not in (of.shape, ()):
                raise ProtocolError(f"{order} brings {name!r}, which is nothing of this optimizer's")
        if any(t.is_floating_point() and not finite(t) for t in order.tensors.values()):
            raise ProtocolError(f"{order} brings weights that hold NaN or infinity")
        if what == "turn":
            epoch, first, end, frozen = numbers(order, what, 4)
            if not 0 <= epoch < self.plan.epochs:
                raise ProtocolError(f"{order} is of an epoch the plan does not have")
            if frozen not in (0, 1) or (frozen and first < end and not self.plan.roles.freezes):
                raise ProtocolError(f"{order} freezes a client of a plan in which all are active")
        if order.kind is Kind.KEEP and numbers(order, what, 1)[0] < BEST:
            raise ProtocolError(f"{order}: snapshots are numbered from 0")
        if self.suspicion is not None:
            last = self._lacks_best and order.kind in (Kind.EVALUATE, Kind.END)
            self.suspicion.refuse_foreign(order, any_round=last)

    def _learnt(self, epoch: int, terms: Mapping[str, float]) -> None:
        if not self.rows or self.rows[-1]["epoch"] != epoch + 1:
            self.rows.append({"epoch": epoch + 1})
            self.sums = {}
        for name, value in terms.items():
            total, count = self.sums.get(name, (0.0, 0))
            self.sums[name] = (total + value, count + 1)
            self.rows[-1][name] = (total + value) / (count + 1)
        self.pulse.step()
        self._on_step(epoch, self._party.network.steps, terms)

    def _halted(self, halt: Halt) -> Halt:
        """A detector has stopped this client: it sends nothing more, and is gone as if its machine were."""
        self.channel.close()
        if self.rows:
            self.rows[-1]["halted"] = str(halt)
        self._write_history()
        log.error("halted", extra={"facts": {"why": str(halt)}})
        return lay_down(self.folder, halt, self._party.own_state(), self._facts(), self._party.detection.report())

    def _put_down(self) -> None:
        """Nothing more is written to its folder."""
        self.books.close()
        if self.lock is not None:
            self.lock.release()

    # ----------------------------------------------------------------------- snapshots
    def _facts(self) -> dict[str, Any]:
        return {
            "steps": self._party.network.steps,
            "rows": self.rows,
            "sums": self.sums,
            "ledger": self.ledger.as_dict(),
            "client": self._party.number,
            **({"weights": self.suspicion.seen()} if self.suspicion is not None else {}),
        }

    def _write(self, number: int) -> None:
        facts = self._facts()
        if number == BEST:
            checkpoint.save(self.folder / "best.safetensors", self._state(), facts)
            return
        self.snapshots.save(number, self._state(), facts)
        self.books.snapshots(self.snapshots.numbers())
        self._write_history()

    def _state(self) -> State:
        return self._party.own_state() | (self.suspicion.tensors() if self.suspicion is not None else {})

    def _write_history(self) -> None:
        lines = "".join(json.dumps(row) + "\n" for row in self.rows)
        checkpoint.write_text(self.folder / "history.jsonl", lines)

    def _go_to(self, number: int) -> None:
        if number == BEST:
            if not (self.folder / "best.safetensors").exists():
                log.warning("no best epoch", extra={"facts": {}})  # this client was away when it was kept
                self._lacks_best = True
                return
            state, facts = checkpoint.load(self.folder / "best.safetensors")
            self._party.load_state(without_last(state))
            self._recall(facts, state)
            self._party.at_best = True
            return
        if number not in self.snapshots.numbers():
            raise ProtocolError(f"the server asks for snapshot {number}; there are {self.snapshots.numbers()}")
        state, facts = self.snapshots.load(number)
        if facts["client"] != self._party.number:
            raise ValueError(f"{self.folder} was client {facts['client']}, the server says {self._party.number}")
        self._party.load_state(without_last(state))
        self._party.at_best = self._lacks_best = False
        self._recall(facts, state)
        self._party.continue_at(facts["steps"])
        self.rows, self.sums = list(facts["rows"]), {n: (t, c) for n, (t, c) in facts["sums"].items()}
        self.ledger.take(Ledger.from_dict(facts["ledger"]))

    def _recall(self, facts: Mapping[str, Any], state: Mapping[str, torch.Tensor]) -> None:
        if self.suspicion is not None and "weights" in facts:
            self.suspicion.go_to(facts["weights"], state)

    def _result(self) -> dict[str, Any]:
        client = self._party
        checkpoint.save(self.folder / "client.safetensors", export(client.network), {"number": client.number})
        client.detection.finish()
        result = {
            "name": self.name,
            "number": client.number,
            "steps": client.network.steps,
            "exact": self._exact,
            "accuracy": self.scores.get("test"),
            **figures([client.scored]),
            "connections": self.channel.connections,
            "bytes_up": self.ledger.per_sample(UP),
            "bytes_down": self.ledger.per_sample(DOWN),
            "ledger": self.ledger.as_dict(),
            "released": self.books.spent(),
            **self._price(),
            **({"detectors": client.detection.report()} if self.plan.client_detectors else {}),
        }
        checkpoint.write_text(self.folder / "result.json", json.dumps(result, indent=1))
        return result

    def _price(self) -> dict[str, Any]:
        """The privacy ledger of what was released, where that has a price."""
        if not priced(self.plan):
            return {}
        return {"privacy": privacy(self.plan, self._party.task, epochs=self.books.epochs)}


class PredictOnlyClient:
    """A client that only predicts: nothing is learnt, so a lost question is simply asked again."""

    def __init__(self, plan: Plan, task: Task, name: str, address: Address, ledger: Ledger):
        self._site = DeployedClient(plan, name, address, Path())
        self._u, self._ledger = answered_shape(plan, task), ledger
        self._channel = ServerChannel(address, lambda: {**self._site._who(), "purpose": "predict"})

    def __enter__(self) -> "PredictOnlyClient":
        self.number = self._site.enrol()
        self._channel.open()
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.close()

    def ask(self, message: Message) -> Message:
        frame = frames.pieces(message)
        self._ledger.note(message, UP, len(frame))
        while True:
            try:
                self._channel.send(frame)
                answer = self._channel.receive()
                break
            except NewSession:
                continue
        reply = decoded(answer, self._channel.limit)
        self._ledger.note(reply, DOWN, len(answer))
        refuse_wrong_answer(message, reply, self._u, fan_out=self._site.plan.guard.fan_out)
        return reply


def answered_shape(plan: Plan, task: Task) -> tuple[int, ...]:
    """The shape of one row that the server sends back: features, or logits where it has the classifier."""
    return (
        cut_shapes(plan, task).u
        if plan.protocol.labels_stay_home
        else scores_shape(plan.net, task.shape, task.classes)
    )


def decoded(frame: Frame, limit: int) -> Message:
    """A message of the server."""
    try:
        return frames.decode(frame, limit, in_place=True)
    except frames.WireError as error:
        raise ProtocolError(f"the server sent what cannot be read: {error}") from error


def refuse_wrong_answer(
    asked: Message,
    reply: Message,
    row: tuple[int, ...],
    crossed: tuple[int, ...] = (),
    forward_only: bool = False,
    fan_out: int = 1,
) -> None:
    """A server is not believed either: another step, another shape, or numbers that are none.

    Its half of the guard makes `fan_out` rows of each that left.
    """
    if (reply.kind, reply.client, reply.step) != (asked.kind, asked.client, asked.step):
        raise ProtocolError(f"the server answered {asked} with {reply}")
    if asked.kind is Kind.LIFT:
        _refuse_wrong_lift(asked, reply)
        return
    if asked.kind is Kind.BACKWARD:
        if forward_only:
            if reply.tensors:
                raise ProtocolError(f"the server answered {asked} with {sorted(reply.tensors)[:4]}; frozen: nothing")
            return
        name, shape = "dz", crossed
    elif asked.kind is Kind.LOSS:
        name, shape = "loss", ()
    else:
        # To a reference the rows come back that were referred to: the labels they are compared with have as many.
        rows = fan_out * len(asked["z"]) if "z" in asked.tensors else len(reply.tensors.get("u", ()))
        name, shape = "u", (rows, *row)
        if GROWS in asked.tensors:
            if not reply.tensors:  # the server has this text no longer
                return
            shape = (rows, asked["z"].shape[1], *row[1:])
    if set(reply.tensors) != {name}:
        raise ProtocolError(f"the server answered {asked} with {sorted(reply.tensors)[:4]}; {name} was expected")
    tensor = reply[name]
    if tuple(tensor.shape) != shape or tensor.dtype != torch.get_default_dtype():
        raise ProtocolError(f"the server answered {asked} with {name} of {tensor.dtype}, {tuple(tensor.shape)}")
    if not finite(tensor):
        raise ProtocolError(f"the server answered {asked} with {name} that holds NaN or infinity")


def _refuse_wrong_lift(asked: Message, reply: Message) -> None:
    """A copy of the server's half of a guard, or nothing where it was replaced. Its shapes the guard compares."""
    if bool(reply.tensors) == bool(asked.tensors) or not all(name.startswith("lift.") for name in reply.tensors):
        raise ProtocolError(f"the server answered {asked} with {sorted(reply.tensors)[:4]}")
    if any(t.is_floating_point() and not finite(t) for t in reply.tensors.values()):
        raise ProtocolError(f"the server answered {asked} with weights that hold NaN or infinity")


def _form(state: Mapping[str, torch.Tensor], *kinds: str) -> dict[str, Any]:
    return {name: (t.shape, t.dtype) for name, t in state.items() if name.startswith(kinds)}
