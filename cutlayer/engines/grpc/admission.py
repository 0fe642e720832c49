"""Where clients are received: who they are, what they say of their data, and what a server puts up with."""

import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from math import prod
from typing import Any

import torch

from ...core.batch import Task
from ...data.meaning import Meaning
from ...training.plan.plan import Plan
from ...training.plan.shapes import cut_shapes
from .connection import ClientConnection, Wakeup
from .limits import Limits as Limits
from .session import Refused

STRIKES = 3  # refusals in the middle of a conversation, or deadlines without a word, before a client is left out
LOSSES = 10  # restarts of one client between two snapshots before the run goes on without it
ABSENCES = 10  # deadlines for which one client was away before it need not come back
MEANINGS = tuple(one.name for one in fields(Meaning))
_CODE = re.compile("[0-9a-f]{64}")


def banned(client: ClientConnection) -> str:
    """Why a client takes no part any more; empty while it may. With each the others have lost time for it."""
    if client.strikes >= STRIKES:
        return f"{client.name} was refused, said nothing, or kept the others from a snapshot, {client.strikes} times"
    if client.absences >= ABSENCES:
        return f"{client.name} stayed away past the deadline {client.absences} times"
    return ""


class Admission:
    """Before and beside the training: who the clients are, what they say of their data, and where they are now."""

    def __init__(self, plan: Plan, names: Sequence[str], limits: Limits, *, certified: bool = False):
        """`certified`: clients have certificates, and with them the key they seal weights with."""
        if len(names) != plan.clients or len(set(names)) != len(names):
            raise ValueError(f"the plan has {plan.clients} clients, and names are {', '.join(names) or 'missing'}")
        self.plan, self.limits = plan.public(), limits
        self.fingerprint = plan.fingerprint()
        self.connections = [
            ClientConnection(name, number, limits.message, frame=limits.frame) for number, name in enumerate(names)
        ]
        self.wakeup = Wakeup()
        for connection in self.connections:
            connection.wakeup = self.wakeup
        self.known: list[dict[str, Any]] = [{} for _ in names]  # batches, own data: as first told
        self.seals = certified and plan.hands_on and not plan.unequal_ranks
        self.ended: set[str] = set()  # who knows that the run is over, and has its result
        self.task: Task | None = None
        self.predictor: Callable[[ClientConnection], None] | None = None
        self._visitors: list[ClientConnection] = []
        self._struck: Counter[str] = Counter()  # refusals of those that only predict, by name

    def enrol(self, name: str, facts: dict[str, Any]) -> dict[str, Any]:
        """Which client this is, if its plan is ours. Asked before a client reads its data, and told after it if with
        these it cannot take part."""
        self._refuse_other_plan(facts)
        connection = self._connection(name)
        if facts.get("leaves"):
            if "task" in facts and self.task is None:
                self._refuse_unfit(_task(facts))
            raise Refused(
                "data", f"{name} agreed to the plan and cannot take part with its data: its own last line says why"
            )
        return {"number": connection.number, "clients": self.plan.clients}

    def admit(self, name: str, facts: dict[str, Any]) -> ClientConnection:
        """The connection of a client that has come, with what it says of itself checked."""
        self._refuse_other_plan(facts)
        connection = self._connection(name)
        if facts.get("purpose") == "predict":
            return self._visit(connection)
        if name in self.ended:
            raise Refused(
                "over",
                f"the run is over, and {name} has heard so: its result is in the folder it took part with, which "
                "`cutlayer predict` takes; a new run needs a server with another --out",
            )
        if why := banned(connection):
            raise Refused("banned", f"{why}: the run goes on without it")
        task = _task(facts)
        told = {
            "batches": _whole(facts, "batches", self.limits.batches),
            "own_data": bool(facts.get("own_data")),
            "task": task,
        }
        code = _code(facts)
        if self.task is None:
            self._refuse_unfit(task)
        elif task != self.task:
            raise Refused(
                "data",
                f"{name} has data of shape and classes {task}, others have {self.task}: samples have one form at all "
                "sites, and all know the same classes, those too that they have no sample of (an Npz names them in "
                "an array `classes`)",
            )
        meaning = _meaning(facts)
        self._refuse_other_meaning(connection, meaning)
        known = dict(self.known[connection.number])
        code |= {} if code else {key: known[key] for key in ("batches_code",) if key in known}
        if self.seals and not code:  # without all of them no client could tell merged weights from foreign ones
            raise Refused("garbage", "batches_code is missing: each client seals how many batches it has")
        known.pop("batches_code", None)
        known.pop("meaning", None)  # a snapshot may be older than it
        if known not in ({}, told):
            raise Refused("data", f"{name} came with {known} before, now with {told}")
        snapshots = facts.get("snapshots")
        if not isinstance(snapshots, list) or not all(
            isinstance(one, int) and 0 <= one < 1 << 53 for one in snapshots
        ):
            raise Refused("garbage", "snapshots is a list of numbers")
        self.task, self.known[connection.number] = task, told | code | {"meaning": meaning}
        self.wakeup.ring()
        return connection

    def _refuse_other_meaning(self, connection: ClientConnection, meaning: Mapping[str, str]) -> None:
        """Shapes and counts may be equal where columns or classes are others: nothing would be learnt from that."""
        for other, known in zip(self.connections, self.known, strict=True):
            if other is connection or not known:
                continue
            for what, code in meaning.items():
                if known.get("meaning", {}).get(what, code) != code:
                    raise Refused(
                        "data",
                        f"the {what} of {connection.name} are not those of {other.name}: names and values have to be "
                        "the same at all sites, in the same order (which they are is not known here)",
                    )

    def missing(self) -> list[str]:
        """Clients that have never come."""
        return [one.name for one in self.connections if not self.known[one.number]]

    def _refuse_unfit(self, task: Task) -> None:
        """The first client says what the data are like. Nothing is built for what the plan cannot be about."""
        try:
            sent = cut_shapes(self.plan, task).sent
        except (ValueError, RuntimeError, TypeError) as error:
            raise Refused(
                "data", f"the plan does not fit data of {task.shape}, {task.classes} classes: {error}"
            ) from error
        bytes_up = self.plan.batch_size // self.plan.micro_batches * prod(sent) * torch.get_default_dtype().itemsize
        if bytes_up > self.limits.message:
            raise Refused("data", f"{bytes_up} bytes of activations are over the limit of {self.limits.message}")

    def _visit(self, connection: ClientConnection) -> ClientConnection:
        self._visitors = [one for one in self._visitors if one.connected]
        name, most = connection.name, self.limits.visits
        if self._struck[name] >= STRIKES:
            raise Refused("banned", f"{name} was refused {STRIKES} times while it predicted: it may not any more")
        if self.predictor is None:
            raise Refused("busy", "this server does not predict yet: it waits for its clients")
        if len(self._visitors) >= self.limits.visitors:
            raise Refused("busy", f"{self.limits.visitors} connections predict already")
        if sum(one.name == name for one in self._visitors) >= most:
            raise Refused("busy", f"{most} connections of {name} predict already: others need a place, too")
        return ClientConnection(name, connection.number, self.limits.message, visitor=True, frame=self.limits.frame)

    def welcomed(self, connection: ClientConnection) -> None:
        """It is connected. Only now does one that predicts take a place, and a thread to answer it."""
        if connection.visitor:
            assert self.predictor is not None
            self._visitors.append(connection)
            work, named = (self.predictor, connection), f"visitor {connection.name}"
            threading.Thread(target=self._predict, args=work, name=named, daemon=True).start()

    def _predict(self, predictor: Callable[[ClientConnection], None], visitor: ClientConnection) -> None:
        predictor(visitor)
        self._struck[visitor.name] += visitor.strikes

    def refuse_stranger(self, name: str) -> None:
        """Whoever is none of the clients is not even listened to."""
        self._connection(name)

    def _connection(self, name: str) -> ClientConnection:
        for connection in self.connections:
            if connection.name == name:
                return connection
        raise Refused("unknown client", f"{name!r} is none of the clients of this run")

    def _refuse_other_plan(self, facts: Mapping[str, Any]) -> None:
        if facts.get("plan") == self.fingerprint:
            return
        theirs = facts.get("fields")
        theirs = theirs if isinstance(theirs, dict) else {}
        ours = self.plan.agreed()
        differ = [
            f"{name} is {ours[name]} at the server, {theirs.get(name)} at the client"
            for name in ours
            if ours[name] != theirs.get(name)
        ]
        found = "; ".join(differ) or "by no name that can be told"
        raise Refused("plan", f"the plans differ: {found}. Type the same plan for serve and join")


def _whole(facts: Mapping[str, Any], name: str, most: int) -> int:
    value = facts.get(name)
    if not isinstance(value, int) or not 0 <= value <= most:
        raise Refused("garbage", f"{name} is a whole number up to {most}")
    return value


def _code(facts: Mapping[str, Any]) -> dict[str, str]:
    """Its seal on the number of its batches, which only other clients can read."""
    code = facts.get("batches_code", "")
    if not isinstance(code, str) or not (code == "" or _CODE.fullmatch(code)):
        raise Refused("garbage", "batches_code is 64 hexadecimal digits")
    return {"batches_code": code} if code else {}


def _meaning(facts: Mapping[str, Any]) -> dict[str, str]:
    """What its classes, columns and words stand for, each as a code that only other clients can read."""
    codes = facts.get("meaning", {})
    if not isinstance(codes, dict) or not all(
        what in MEANINGS and isinstance(code, str) and _CODE.fullmatch(code) for what, code in codes.items()
    ):
        raise Refused("garbage", f"meaning is 64 hexadecimal digits for each of {', '.join(MEANINGS)}")
    return codes


def _task(facts: Mapping[str, Any]) -> Task:
    try:
        shape, classes, attributes, words = facts["task"]
        named = {str(name): int(values) for name, values in attributes.items()}
        task = Task(tuple(int(side) for side in shape), int(classes), named, int(words))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Refused("garbage", "task is [shape, classes, attributes, vocabulary]") from error
    if not (
        1 <= len(task.shape) <= 4
        and all(0 < side <= 1 << 16 for side in task.shape)
        and 1 < task.classes <= 1 << 16
        and 0 <= task.vocabulary <= 1 << 24
    ):
        raise Refused("data", f"no network is built for {task}")
    return task
