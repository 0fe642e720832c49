"""A client of a deployment: it connects, follows orders on its own data, and survives whatever happens on the way."""

import json
import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ...core.batch import Task
from ...core.errors import DiskFull, Halt, Interrupted, NonFinite, ProtocolError
from ...core.message import Kind, Message
from ...data.base import Parts
from ...data.meaning import Meaning
from ...training import checkpoint
from ...training.client import Client
from ...training.enough import refuse_few_samples
from ...training.evaluation import figures
from ...training.facts.privacy import priced, privacy
from ...training.fused_wave import FUSED
from ...training.orders import PURPOSES, numbers, weights_in
from ...training.own_data import OwnData, Uplink
from ...training.plan.plan import MOST_MICRO_BATCHES, Plan
from ...training.step import export
from ...wire import frames
from ...wire.ledger import DOWN, UP
from ..books import JOURNAL, Books
from ..halt import lay_down
from .audit_log import AuditLog
from .channel import LINGER, Address, Ending, NewSession, ServerChannel
from .credentials import Expiry
from .distrust import answered_shape, decoded, refuse_wrong_answer, refuse_wrong_order, suspicion_of
from .enrolment import Enrolment, in_greeting
from .home import Home, OnStep
from .service import LOOK, SAID
from .session import Frame, Refused

log = logging.getLogger("cutlayer.join")


class DeployedClient(Home):
    """One client's part in a run elsewhere."""

    def __init__(self, plan: Plan, name: str, address: Address, folder: Path, device: str = "cpu"):
        super().__init__(plan, folder, device)
        self.name, self.address = name, address
        self.enrolment = Enrolment(plan, name, address)
        self.channel = ServerChannel(address, self._greeting)
        self.scores: dict[str, float] = {}
        self._crossed: dict[int, tuple[int, ...]] = {}  # shapes of what was sent lately, by step
        self._about: dict[str, Any] = {}
        self.audit: AuditLog | None = None
        self.expiry = Expiry(log)
        self._looked = -LOOK  # when its certificate was last looked at
        self._exact = True  # whether the server calls the run what an undisturbed one would have been
        self._turn: tuple[int, int, int] | None = None  # the one that is followed: its epoch, first batch and step
        self._evaluation: tuple[str, int] = "", 0
        self._told = deque[tuple[str, int]](maxlen=2)  # releases that were said in the log
        self._predicted = 0  # messages of the evaluation that is being followed

    def enrol(self) -> int:
        """Which client this is."""
        return self.enrolment.enrol(self.channel)

    def prepare(self, number: int, task: Task, parts: Parts, own_data: bool) -> None:
        """Build this client's side on its own samples, and go to the newest snapshot there is."""
        counts = {f"client {number}": len(parts.private), "its validation data": len(parts.val)}
        counts["its test data"] = len(parts.test)
        refuse_few_samples(self.plan, task, counts)
        held_out = {"validate": parts.val, "test": parts.test}
        own, uplink = OwnData(parts.private, held_out), Uplink(self._ask, self.ledger, self._post)
        self.party = Client(self.plan, task, number, own, uplink, self.device, self._learnt)
        self._u = answered_shape(self.plan, task)
        self.books = Books(self.folder, self.plan.epochs, self.party.batches)
        self.suspicion = suspicion_of(self.plan, self.address.identity, number, self.party.batches)
        self._about = {
            "batches": self.party.batches,
            "own_data": own_data,
            "task": in_greeting(task),
            "meaning": self._codes(parts.meaning),
            **({"batches_code": self.suspicion.batches_code.hex()} if self.suspicion is not None else {}),
        }
        self.snapshots.set_aside_damaged()
        if not self.snapshots.numbers():
            self._write(0)

    def _codes(self, meaning: Meaning) -> dict[str, str]:
        """What its numbers stand for is told in codes that only clients can read: the server sees who differs.

        On loopback without certificates nobody has a key, and nothing is kept from the server."""
        identity = self.address.identity
        key = b"" if identity is None else identity.weights
        return {} if key is None else meaning.codes(key)

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

    def _greeting(self) -> dict[str, Any]:
        return {**self.enrolment.who(), **self._about, "purpose": "train", "snapshots": self.snapshots.numbers()}

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
        refuse_wrong_order(order, self.plan, client)
        if self.suspicion is not None:
            last = self._lacks_best and order.kind in (Kind.EVALUATE, Kind.END)
            self.suspicion.refuse_foreign(order, any_round=last)
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

    def _halted(self, halt: Halt) -> Halt:
        """A detector has stopped this client: it sends nothing more, and is gone as if its machine were."""
        self.channel.close()
        if self.rows:
            self.rows[-1]["halted"] = str(halt)
        self._write_history()
        log.error("halted", extra={"facts": {"why": str(halt)}})
        return lay_down(self.folder, halt, self._party.own_state(), self._facts(), self._party.detection.report())

    # ----------------------------------------------------------------------- snapshots

    def _result(self) -> dict[str, Any]:
        client = self._party
        facts = {"number": client.number, "task": self._about["task"]}
        checkpoint.save(self.folder / "client.safetensors", export(client.network), facts)
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
