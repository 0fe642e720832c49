"""The server's side of a round: what each client starts from, and what becomes of what they bring."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.errors import NonFinite
from ..core.message import Kind, Message
from ..core.seeds import derive
from ..core.server import Server
from ..core.state import State, changing, load_changing, load_optimizer, named, optimizer_state
from ..detectors import ServerContext, ServerWatch
from ..rules import Rule, Update, sound
from ..rules.base import CONTROL, MEMORY, NET, SEAL, STAT
from ..wire.ledger import DOWN, UP, Ledger
from .bodies import Kept, RoundBodies
from .merge import Gathering, held_at_once
from .orders import weights_in
from .plan.code import embeddings
from .plan.plan import Plan
from .plan.roles import Role
from .plan.schedule import Turn
from .progress import Progress
from .send_once import KeptRows
from .suspicion import COUNTS
from .timetable import Timetable
from .unequal_ranks import narrowed, started, widened


class Coordinator:
    """Shared weights, the rule's memory and who was left out. `loop.train` walks it through a plan."""

    def __init__(self, plan: Plan, server: Server, batches: Sequence[int], ledger: Ledger | None = None):
        """`batches`: how many each client has in an epoch."""
        self.plan, self.server, self.ledger = plan, server, ledger or Ledger()
        self.rule = plan.rule.fitted(lambda: embeddings(plan.net, plan.protocol.crosses))
        self.timetable, self.progress = Timetable(plan, batches), Progress(plan.clients)
        self.shared: State = {}  # what was last brought back or merged; empty while heads are the clients' own
        self.nothing_shared = False  # whether somebody has said that no weight of a client's trains
        self.counts: Tensor | None = None  # of batches, as clients have sealed them: for each other's eyes
        self.memory: State = {}  # what the rule remembers; no client sees it
        self.rejected: list[dict[str, Any]] = []  # updates that were not merged, and why
        self.lock = threading.RLock()  # an engine may answer several clients at a time
        self.counting = threading.Lock()  # ledger and steps: who only counts does not wait for a body that computes
        self.watches = self._start_detectors()
        self._came: list[int] = []  # clients whose turn of this round counts
        self._last: tuple[Turn, Message] | None = None  # in a relay: what is handed on
        self._heads, self._bodies = _nothing_gathered(self.rule)
        self._before: dict[int, Kept] = {}  # the body before a client's turn, where that could spoil it
        assert isinstance(server.bodies, RoundBodies)
        self.bodies = server.bodies
        self.kept = next((one for one in server.watchers if isinstance(one, KeptRows)), None)

    def _start_detectors(self) -> list[ServerWatch]:
        """The server's own detectors; an engine lets messages pass through them."""
        plan = self.plan
        context = ServerContext(
            plan.clients,
            plan.clients_per_round or plan.clients,
            plan.epochs,
            self.timetable.passes,
            plan.protocol.labels_stay_home,
            derive(plan.seed, "watch"),
        )
        return [one.start(context) for one in plan.server_detectors]

    # ------------------------------------------------------------------ what clients have
    @property
    def relays(self) -> bool:
        """Whether one head and tail are handed on from client to client, by way of the server."""
        return self.plan.hands_on

    @property
    def lacks_weights(self) -> bool:
        """Whether clients are to start alike, and nobody has said yet from what."""
        return self.relays and self.plan.rounds.merges and not self.shared and not self.nothing_shared

    @property
    def alike(self) -> bool:
        """Whether all clients have one and the same network, so that one of them can speak for all."""
        return self.plan.alike

    @property
    def keeps_networks(self) -> bool:
        """Whether a client's network is now more than the shared weights, which come with its next order."""
        roles = self.plan.roles
        # Clients that all are frozen are not given the shared weights again.
        return not self.shared or roles.keeps_heads or roles.phase(self.progress.epoch).frozen

    @property
    def updates_held(self) -> int:
        """How many clients' updates lie in memory at the same time, at most: robust rules need a round's."""
        turns = max((len(one) for one in self.timetable.rounds(self.progress.epoch)), default=0)
        return held_at_once(self.rule, turns)

    def heads_of_their_own(self) -> frozenset[int]:
        """Clients that hold on to another head than the shared one."""
        plan = self.plan
        if not plan.shared_client_network or not plan.roles.keeps_heads:
            return frozenset()
        parts = plan.roles.at(0, plan.clients, plan.seed)
        return frozenset(client for client, role in enumerate(parts) if role is Role.FROZEN)

    def shown(self, client: int) -> State:
        """The shared weights, for a client that does not learn from them now."""
        known = {name: t for name, t in self.shared.items() if not name.startswith(CONTROL)}
        return narrowed(self.plan, client, known)

    # --------------------------------------------------------------------------- one round
    def start_from(self, brought: Message) -> None:
        """All clients start from what this one brought."""
        update = Update(weights_in(brought), 1)
        if why := sound({}, [update])[1]:
            raise NonFinite(f"client {brought.client} cannot give the others their first weights: {why[0]}")
        first = {name: t for name, t in update.state.items() if name.startswith((NET, STAT, SEAL))}
        self.shared = started(self.plan, first)
        self.nothing_shared = not any(name.startswith((NET, STAT)) for name in self.shared)

    def open_round(self, turns: Sequence[Turn]) -> None:
        self.server.open_round({turn.client for turn in turns if turn.frozen})
        self.bodies.open_round()
        self._before.clear()
        self._came, self._last = [], None
        if self.plan.rounds.merges:
            body = _body(named(self.server.body)) if self.bodies.copies else {}
            # Without the seal: no client made what they will be.
            heads = {name: t for name, t in self.shared.items() if not name.startswith(SEAL)}
            self._heads = Gathering(self.rule, heads, self.memory, len(turns))
            self._bodies = Gathering(self.rule, body, self.memory, len(turns))
        if self.kept is not None:
            self.kept.epoch = self.progress.epoch

    def order(self, turn: Turn) -> Message:
        """What a client is told to do, and the weights it starts from."""
        order = self._order(turn)
        with self.counting:
            self._count(order, DOWN)
        with self.lock:
            if self.plan.rounds.merges and (before := self.bodies.before_turn()) is not None:
                self._before[turn.client] = before
        return order

    def _count(self, message: Message, direction: str) -> None:
        """Where clients learn by themselves nobody gives them orders, but for whoever imitates them all."""
        if self.plan.protocol.learns_together:
            self.ledger.note(message, direction)

    def _order(self, turn: Turn) -> Message:
        what = torch.tensor([self.progress.epoch, turn.first, turn.last, int(turn.frozen)])
        taken = self.progress.taken[turn.client]
        if not self.relays or (turn.frozen and not (turn.inherits and self.shared)):
            return Message(Kind.TURN, turn.client, taken, {"turn": what})
        kinds = (NET, STAT) if turn.frozen else self.plan.rule.travels
        start = {name: tensor for name, tensor in self.shared.items() if name.startswith((*kinds, SEAL))}
        start = narrowed(self.plan, turn.client, start)
        if self.counts is not None and self.plan.rounds.merges and not taken:
            start[COUNTS] = self.counts
        return Message(Kind.WEIGHTS, turn.client, taken, {"turn": what, **start})

    def received(self, turn: Turn, done: Message) -> Message | None:
        """A client's answer to its order. Where several share a round, one whose numbers are gone is left out."""
        with self.counting:
            self._count(done, UP)
            self.progress.taken[turn.client] += turn.last - turn.first
        with self.lock:
            before, lost = self._before.pop(turn.client, None), ""
            if before is not None:
                lost = self.bodies.lost_numbers()
            if self.plan.rounds.merges and turn.first < turn.last and not int(done["samples"]):
                lost = "its numbers were gone (NaN or infinity) before its turn was over"
            if not lost:
                return done
            if before is not None:
                self.bodies.go_back(before)
            self.reject(turn.client, lost)
            return None

    def accept(self, turn: Turn, done: Message) -> None:
        """In the order of the turns: what a client brought is looked at, and counts or is left out."""
        with self.lock:
            if self.plan.rounds.merges and (why := self._take_in(turn, done)):
                self.reject(turn.client, why)
                return
        self._came.append(turn.client)
        self._last = (turn, done) if not self.plan.rounds.merges else None

    def _take_in(self, turn: Turn, done: Message) -> str:
        """One client's part in the merge: its head, and its body where it has one. Why it is left out, else empty."""
        samples = int(done["samples"])
        head = None
        if self.relays and not turn.frozen:
            brought = widened(self.plan, turn.client, weights_in(done), self.shared)
            head = Update(brought, self.plan.rounds.weight(samples))
        if head is not None and (why := sound(self.shared, [head])[1]):
            return why[0]
        body = Update(_body(self.bodies.collect(turn.client)), samples) if self.bodies.copies else None
        if body is not None and (why := sound(self._bodies.current, [body])[1]):
            return why[0]
        self.bodies.commit(turn.client)
        for gathering, update in ((self._heads, head), (self._bodies, body)):
            if update is not None:
                gathering.add(turn.client, update)
        return ""

    def reject(self, client: int, why: str) -> None:
        """An update is left out of its round, which goes on."""
        self.server.forget(client)
        self._note_rejected(client, why)

    def _note_rejected(self, client: int | None, why: str) -> None:
        epoch, number = self.progress.epoch + 1, self.progress.round
        self.rejected.append({"client": client, "epoch": epoch, "round": number, "why": why})

    def rejected_in(self, epoch: int) -> list[dict[str, Any]]:
        """Updates that were left out of this epoch, counted from 1."""
        return [one for one in self.rejected if one["epoch"] == epoch]

    def close_round(self) -> None:
        """From what counts of a round follow the weights the next one starts from."""
        with self.lock:  # somebody may be predicting
            self.bodies.close_round()
            if self.plan.rounds.merges:
                self._merge()
            elif self.relays and self._last is not None and not self._last[0].frozen:
                done = self._last[1]
                self.shared = self.plan.rule(self.shared, [Update(weights_in(done), int(done["samples"]))])
        self._last = None
        for watch in self.watches:
            watch.turned(self._came)

    # ----------------------------------------------------------------------------- merging
    def _merge(self) -> None:
        """One state of what the clients of a round brought: their heads, and their bodies where each has its own."""
        heads, bodies = self._heads, self._bodies
        if heads.kept and heads.kept.keys() == bodies.kept.keys():
            merged = self._merged(heads.beside(bodies))
        else:  # each a mean; or a frozen client's body has learnt, and its head has nothing to say
            merged = self._merged(heads) | self._merged(bodies)
        if bodies.count:
            self.bodies.take_over({_unbody(name): t for name, t in merged.items() if _unbody(name)})
        if heads.count:
            self.shared = dict(sorted((name, t) for name, t in merged.items() if not _unbody(name)))
        self._heads, self._bodies = _nothing_gathered(self.rule)

    def _merged(self, updates: Gathering) -> State:
        """By the rule, whose memory stays here."""
        rule = self.rule
        if not updates.current:  # nothing there trains
            return {}
        if 0 < updates.count < rule.least:  # a median of one is that one
            why = f"{updates.count} update(s) in this round, and {rule!r} needs {rule.least}: none is merged"
            self._note_rejected(None, why)
        if updates.count < rule.least:
            return updates.current
        merged = updates.merged(self.plan.clients)
        self.memory |= {name: t for name, t in merged.items() if name.startswith(MEMORY)}
        return {name: t for name, t in merged.items() if name.startswith((NET, STAT, CONTROL))}

    # ------------------------------------------------------------------------- carry it on
    def tensors(self) -> State:
        """Everything of the server's that the next turn depends on."""
        # Copies: what is kept of the best epoch lies beside it in one file, which holds no tensor twice.
        return {name: t.clone() for name, t in self.own_tensors()}

    def own_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The same one by one, as they are: to be looked at before the next step."""
        yield from ((f"server/net.{name}", t) for name, t in changing(self.server.body).items())
        yield from ((f"server/{name}", t) for name, t in optimizer_state(self.server.optimizer).items())
        yield from ((f"memory/{name}", t) for name, t in self.memory.items())
        for client, state in self.bodies.kept().items():
            yield from ((f"copies/{client}.{name}", t) for name, t in state.items())
        if self.kept is not None:
            yield from ((f"kept/{name}", t) for name, t in self.kept.tensors().items())
        yield from ((f"shared/{name}", t) for name, t in self.shared.items())

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go back to what `tensors` once was; what is not the server's is left to others."""
        device = next((p.device for p in self.server.body.parameters()), torch.device("cpu"))
        own: dict[str, State] = {"server": {}, "shared": {}, "memory": {}, "copies": {}, "kept": {}}
        for key, tensor in tensors.items():
            party, name = key.split("/", 1)
            if party in own:
                own[party][name] = tensor.to(device)
        net = {k.removeprefix("net."): t for k, t in own["server"].items() if k.startswith("net.")}
        load_changing(self.server.body, net)
        self.server.body.zero_grad()
        load_optimizer(self.server.optimizer, own["server"])
        self.shared, self.memory = own["shared"], own["memory"]
        kept: dict[int, State] = {}
        for key, tensor in own["copies"].items():
            client, name = key.split(".", 1)
            kept.setdefault(int(client), {})[name] = tensor
        self.bodies.restore(kept)
        if self.kept is not None:
            self.kept.restore(own["kept"])

    @property
    def has_best(self) -> bool:
        """Whether there is a best epoch to go back to. Of a server that learns nothing it holds no tensor."""
        return bool(self.plan.patience and self.progress.best.epoch)

    def snapshot(self, clients: State) -> tuple[State, dict[str, Any]]:
        """(tensors, plain facts): all that the next step depends on, and what the report will say.

        `clients`: what an engine keeps for the clients.
        """
        best = {f"best/{name}": tensor for name, tensor in self.progress.best.tensors.items()}
        tensors = self.tensors() | clients | best
        facts = self.progress.facts() | {"ledger": self.ledger.as_dict(), "rejected": list(self.rejected)}
        facts |= {"nothing_shared": True} if self.nothing_shared else {}
        for place, watch in enumerate(self.watches):
            seen, said = watch.snapshot()
            tensors |= {f"watch/{place}.{name}": tensor for name, tensor in seen.items()}
            facts.setdefault("watches", []).append(said)
        return tensors, facts

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go back to a snapshot, with all that is the server's."""
        self.load({name: tensor for name, tensor in tensors.items() if not name.startswith(("best/", "watch/"))})
        told = facts.get("watches", [])
        if len(told) != len(self.watches):
            raise ValueError(
                f"the snapshot is of {len(told)} server detectors and the plan has {len(self.watches)}: go on with "
                "the plan it was begun with"
            )
        for place, (watch, said) in enumerate(zip(self.watches, told, strict=True)):
            watch.restore(_under(f"watch/{place}.", tensors), said)
        self.progress.restore(facts, _under("best/", tensors))
        self.rejected = list(facts.get("rejected", []))
        self.nothing_shared = bool(facts.get("nothing_shared"))
        self.ledger.take(Ledger.from_dict(facts["ledger"]))


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> State:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _nothing_gathered(rule: Rule) -> tuple[Gathering, Gathering]:
    """Of heads and bodies, between two rounds: nothing of a round is held on to."""
    return Gathering(rule, {}, {}), Gathering(rule, {}, {})


# Bodies are merged beside heads, under names no client has.
_BODY = "server/"


def _body(state: State) -> State:
    return {f"{kind}.{_BODY}{name}": t for (kind, name), t in ((key.split(".", 1), t) for key, t in state.items())}


def _unbody(name: str) -> str:
    """The name of a body's tensor in its own state; empty for what is not a body's."""
    kind, _, rest = name.partition(".")
    return f"{kind}.{rest.removeprefix(_BODY)}" if rest.startswith(_BODY) and kind in ("net", "stat") else ""
