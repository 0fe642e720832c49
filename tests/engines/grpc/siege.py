"""A siege: damaged frames straight into the checks, and over sockets against a server in a process of its own."""

import multiprocessing
import queue
import random
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from mutations import damaged, greeting
from peers import Peer, data, hello
from rehearsal import NAMES, open_site, refuse_other_tensors, undisturbed
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.core.message import Kind, Message
from cutlayer.core.seeds import generator
from cutlayer.engines.grpc import admission as admission
from cutlayer.engines.grpc import service as network
from cutlayer.engines.grpc.admission import Admission, Limits
from cutlayer.engines.grpc.channel import Address, GaveUp, status
from cutlayer.engines.grpc.session import HEADER, Refused, Session, Type, note, read_note
from cutlayer.engines.grpc.validation import MessageValidator
from cutlayer.training import checkpoint
from cutlayer.training.plan.plan import Plan
from cutlayer.training.step import export
from cutlayer.wire import frames as wire

MIB = 1 << 20
LIMITS = Limits(every=2, deadline=900.0, greeting=2.0, frame=2.0, review=0.5, message=4 * MIB, visitors=4)
SIEGE = tiny_plan(epochs=2, batch_size=8, clients=3)
ROOM = 200.0  # MiB the server may grow by, whatever is sent; a message has 4 MiB at most


@dataclass(frozen=True)
class Counts:
    """Damaged pieces of each kind."""

    frames: int  # into decode, and what passes into the validator
    packets: int  # into a session
    greetings: int  # into admission
    in_turn: int  # over sockets, of a client in its turn
    visitor: int  # over sockets, of one that predicts
    outsider: int  # over sockets, of nobody
    raw: int  # bytes that are no gRPC

    @property
    def total(self) -> int:
        return sum(vars(self).values())


# --------------------------------------------------------------------------- without sockets
def conversation(plan: Plan) -> list[Message]:
    """One message of each kind that a client may send, with values that codecs like and such that they do not."""
    draw = generator(1)
    z, sparse = torch.randn(8, 4, 5, 5, generator=draw), torch.randn(8, 4, 5, 5, generator=draw).relu()
    prefix = torch.randn(8, 4, 5, 5, generator=draw)
    prefix[..., 2:] = 0
    y = torch.arange(8) % 3
    return [
        Message(Kind.FORWARD, 1, 0, {"z": z}),
        Message(Kind.FORWARD, 1, 0, {"z": sparse}),
        Message(Kind.FORWARD, 1, 0, {"z": prefix}),
        Message(Kind.FORWARD, 1, 0, {"z": z.to(memory_format=torch.channels_last)}),
        Message(Kind.LOSS, 1, 0, {"z": z, "y": y}),
        Message(Kind.LOSS, 1, 0, {"z": sparse, "y": y, "rows": torch.arange(8)}),
        Message(Kind.BACKWARD, 1, 0, {"du": torch.randn(8, 7, generator=draw)}),
        Message(Kind.PREDICT, 1, 0, {"z": sparse}),
        Message(Kind.WEIGHTS, 1, 1, {"samples": torch.tensor([8]), "net.a": z, "optimizer.0.b": y}),
        Message(Kind.KEEP, 1, 0, {"steps": torch.tensor([1])}),
    ]


def into_decode_and_door(plan: Plan, count: int, seed: int) -> Counter[str]:
    """Each damaged frame is refused by name, or is a message the validator can judge. Nothing else may happen."""
    dice, found = random.Random(seed), Counter[str]()
    frames = [bytes(wire.encode(message)) for message in conversation(plan)]
    validator, visitor = MessageValidator(plan, TASK), MessageValidator(plan, TASK)
    visitor.open(None)
    for _ in range(count):
        chosen = dice.choice(frames)
        frame = bytes(wire.encode(changed(dice, wire.decode(chosen)))) if dice.random() < 0.3 else None
        frame = damaged(dice, chosen, frames) if frame is None else frame
        try:
            message = wire.decode(frame, LIMITS.message)
        except wire.WireError:
            found["garbage"] += 1
            continue
        for one, name in ((validator, "turn"), (visitor, "visit")):
            if one is validator:
                validator.open(Message(Kind.TURN, 1, 0, {"turn": torch.tensor([0, 0, 1, 0])}))
            try:
                one.check(message, 1)
                found[f"{name}: let in"] += 1
            except Refused as error:
                found[f"{name}: {error.name}"] += 1
    return found


def into_a_session(count: int, seed: int) -> Counter[str]:
    dice, found = random.Random(seed), Counter[str]()
    mine = Session(LIMITS.message)
    for _ in range(count):
        piece, last = dice.randbytes(dice.choice([0, 1, 40, 400])), dice.random() < 0.7
        total = (mine.partial or 0) + len(piece) + (0 if last else 100)
        packet = data(piece, last=last, number=mine.heard + 1, total=len(mine._piece) if mine.partial else total)
        packet = damaged(dice, packet, [packet]) if dice.random() < 0.9 else packet
        try:
            frame = mine.take(packet)
            found["a piece" if frame is None else "a frame"] += 1
        except Refused as error:
            found[error.name] += 1
        assert (mine.partial or 0) <= LIMITS.message
        if dice.random() < 0.2:
            mine = Session(LIMITS.message)
    return found


def into_the_lobby(plan: Plan, count: int, seed: int) -> Counter[str]:
    dice, found = random.Random(seed), Counter[str]()
    facts = hello(plan, "ward-b")
    for _ in range(count):
        admission = Admission(plan, NAMES, LIMITS)
        text = greeting(dice, facts)
        try:
            told = read_note(HEADER.pack(b"CP", Type.HELLO, 1, 0, 0, len(text)) + text, Type.HELLO)
            admission.enrol(str(told.get("name", "")), told)
            admission.admit(str(told.get("name", "")), told).connect(told, lambda packets: None, lambda error: None)
            found["let in"] += 1
        except Refused as error:
            found[error.name] += 1
    return found


# ------------------------------------------------------------------------------ over sockets
def _serve(plan: Plan, folder: Path, say) -> None:
    """A server on its own. Clients may be wrong as often as they like, or the siege would soon be over."""
    from cutlayer.engines.grpc.deploy import Service

    torch.set_num_threads(1)
    admission.STRIKES = admission.LOSSES = admission.ABSENCES = 10**9
    network.CONNECTIONS = (10**9, 10.0)
    service = Service(plan, NAMES, folder, listen="127.0.0.1:0", identity=None, limits=LIMITS)
    say.send(service.network.port)
    result = service.run()
    assert service.host is not None
    checkpoint.save(folder / "end.safetensors", service.host.coordinator.tensors(), result)


def resident(pid: int, what: str = "VmRSS") -> float:
    """MiB of a process, now or (VmHWM) at its highest."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) / 1024
    return 0.0


class Siege:
    """A server in a process of its own, two honest clients, and one in whose place all the harm is done."""

    def __init__(self, plan: Plan, folder: Path, counts: Counts, seed: int):
        self.plan, self.folder, self.counts, self.seed = plan, folder, counts, seed
        self.parts, self.found, self.errors = tiny_parts(), {}, []
        self.sites: dict = {}
        self.others = threading.Event()
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        self.server = spawn.Process(target=_serve, args=(plan, folder / "server", theirs), daemon=True)
        self.server.start()
        assert ours.poll(600), "the server does not start"
        self.address = Address(f"127.0.0.1:{ours.recv()}")
        self.frames = [bytes(wire.encode(message)) for message in conversation(plan)]

    def run(self, patience: float) -> dict:
        """Everything at once; the server's facts at the end."""
        began = time.monotonic()
        honest = [self._thread(lambda name=name: self._honest(name)) for name in NAMES[:2]]
        wait_for(lambda: self._told().get("missing") == [NAMES[2]], 600)
        before = resident(self.server.pid)
        turn = self._thread(self._in_turn)
        harm = [self._thread(one) for one in (self._visitor, self._outsider, self._raw)]
        for thread in (*harm, turn, *honest):
            if thread is turn:
                self.others.set()
            thread.join(max(1.0, patience - (time.monotonic() - began)))
            assert not self.errors, self.errors
            assert not thread.is_alive(), (self.found, status(self.address))
        most = resident(self.server.pid, "VmHWM")
        self.server.join(300)
        assert self.server.exitcode == 0
        tensors, result = checkpoint.load(self.folder / "server" / "end.safetensors")
        return {
            "tensors": tensors, "result": result, "seconds": time.monotonic() - began,
            "memory_before": before, "memory_most": most,
        }  # fmt: skip

    def _told(self) -> dict:
        """What the server says of itself, or nothing where the machine is too busy for an answer."""
        with suppress(GaveUp):
            return status(self.address)
        return {}

    def stop(self) -> None:
        if self.server.is_alive():
            self.server.kill()
            self.server.join(10)

    def _thread(self, work) -> threading.Thread:
        def watched() -> None:
            try:
                work()
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=watched, daemon=True)
        thread.start()
        return thread

    def _honest(self, name: str) -> None:
        site = open_site(self.plan, name, self.address, self.folder / name, self.parts, give_up=600.0)
        self.sites[name] = site
        site.run()

    def _in_turn(self) -> None:
        """A client that says something else than it should, each time it should say something."""
        dice, found, left = random.Random(self.seed), Counter[str](), [self.counts.in_turn]
        self.found["in_turn"] = found
        while True:
            site = open_site(self.plan, NAMES[2], self.address, self.folder / NAMES[2], self.parts, give_up=600.0)
            self.sites[NAMES[2]] = site
            plain = site.channel.send

            def send(frame, site=site, plain=plain):
                if not left[0]:
                    self.others.wait()  # the run must not end before they have
                kind = bytes(frame)[3]
                asks, gradient = kind in (Kind.FORWARD, Kind.LOSS), kind == Kind.BACKWARD
                # No turn comes to its end, or the run would before the siege has.
                if not left[0] or not (gradient or (asks and dice.random() < 0.5)):
                    plain(frame)
                    return
                left[0] -= 1
                if dice.random() < 0.5:
                    plain(unlike(dice, bytes(frame), self.frames))
                    return
                for packet in site.channel._session.send(frame):
                    site.channel._outgoing.put(lying(dice, packet))
                    site.channel._outgoing.put(packet)

            site.channel.send = send
            try:
                site.run()
                return
            except Refused as error:
                found[error.name] += 1
            finally:
                site.channel.close()

    def _visitor(self) -> None:
        dice, found = random.Random(self.seed + 1), Counter[str]()
        self.found["visitor"] = found
        wait_for(lambda: "epoch" in self._told(), 600)
        right = bytes(wire.encode(Message(Kind.PREDICT, 0, 0, {"z": torch.ones(8, 4, 5, 5)})))
        left = self.counts.visitor
        while left:
            with Peer(self.address) as peer:
                try:
                    peer.greet(hello(self.plan, NAMES[0], purpose="predict"))
                    session = Session()
                    while left:
                        left -= 1
                        peer.send(*session.send(damaged(dice, right, self.frames)))
                        packet = peer.packet(300.0)
                        session.take(packet) if packet[2] == Type.DATA else read_note(packet)
                        found["answered"] += 1
                except Refused as error:
                    left += error.name == "busy"  # the last one is still leaving
                    found[error.name] += 1

    def _outsider(self) -> None:
        dice, found = random.Random(self.seed + 2), Counter[str]()
        self.found["outsider"] = found
        whole = note(Type.HELLO, hello(self.plan, "ward-z"))

        def drawn() -> bytes:
            text = greeting(dice, hello(self.plan, "ward-z", purpose=dice.choice(["train", "predict"])))
            packet = HEADER.pack(b"CP", Type.HELLO, 1, 0, 0, len(text)) + text
            return damaged(dice, whole, self.frames) if dice.random() < 0.5 else packet

        for _ in range(self.counts.outsider):
            packet = drawn()
            while takes_a_place(packet):
                packet = drawn()
            with Peer(self.address) as peer:
                answer = peer.send(packet).packet(300.0)
                try:
                    read_note(answer, Type.WELCOME)
                    found["let in"] += 1
                except Refused as error:
                    found[error.name] += 1

    def _raw(self) -> None:
        """Bytes that are no gRPC: the transport ends them, and nobody here hears of it."""
        dice, found = random.Random(self.seed + 3), Counter[str]()
        self.found["raw"] = found
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
        kept: queue.SimpleQueue = queue.SimpleQueue()
        for _ in range(self.counts.raw):
            line = socket.create_connection(("127.0.0.1", int(self.address.target.split(":")[1])), timeout=10)
            try:
                line.sendall(damaged(dice, preface + dice.randbytes(60), [preface, b"GET / HTTP/1.1\r\n\r\n" * 3]))
            except OSError:
                found["closed at once"] += 1
            else:
                found["sent"] += 1
            kept.put(line)  # left open for a while: places that are taken up by nobody
            if kept.qsize() > 20:
                kept.get().close()
        while not kept.empty():
            kept.get().close()


def takes_a_place(packet: bytes) -> bool:
    """A greeting in an honest client's name is no damage: without certificates whoever says a name has it."""
    try:
        return read_note(packet, Type.HELLO).get("name") in NAMES
    except Refused:
        return False


def lying(dice: random.Random, packet: bytes) -> bytes:
    """The packet under a header that nobody may take: one of an old frame, or that confirms less, is simply old."""
    right = HEADER.unpack_from(packet)
    while True:
        top = damaged(dice, packet[: HEADER.size], [packet[: HEADER.size]])[: HEADER.size]
        made = top + packet[HEADER.size :]
        if len(made) < HEADER.size:
            return made
        magic, kind, flags, number, heard, total = HEADER.unpack_from(made)
        if (magic, kind) != right[:2] or flags > 1 or number > right[3] or heard > right[4]:
            return made
        if number == right[3] and (flags != right[2] or total != right[5] or len(made) != len(packet)):
            return made


def unlike(dice: random.Random, frame: bytes, corpus: list[bytes]) -> bytes:
    """A frame that does not pass for the one it was: other numbers in the same form are no damage anyone sees."""
    while True:
        changes = dice.random() < 0.5
        made = bytes(wire.encode(changed(dice, wire.decode(frame)))) if changes else damaged(dice, frame, corpus)
        try:
            message = wire.decode(made)
        except wire.WireError:
            return made
        if form(message) != form(wire.decode(frame)):
            return made


def changed(dice: random.Random, message: Message) -> Message:
    """A whole frame that says something else: another kind, step, name, dtype, shape or number."""
    tensors = dict(message.tensors)
    name = dice.choice(list(tensors))
    t = tensors[name]
    match dice.randrange(9):
        case 0:
            return replace(message, kind=dice.choice(list(Kind)))
        case 1:
            return replace(message, step=dice.choice([message.step + 1, 7, 2**63, 2**64 - 1]))
        case 2:
            return replace(message, client=dice.choice([0, 1, 2, 3, 2**32 - 1]))
        case 3:
            tensors[name] = t.to(dice.choice([torch.float64, torch.float16, torch.int64, torch.bool, torch.uint8]))
        case 4:
            tensors[name] = t[dice.choice([slice(0, 0), slice(1), slice(0, -1)])] if t.dim() else t.reshape(1, 1)
        case 5:
            tensors[name] = dice.choice([t.flatten(), t[None], t.repeat(3, *[1] * (t.dim() - 1)) if t.dim() else t])
        case 6:
            del tensors[name]
        case 7:
            tensors[dice.choice(["x", "y", "rows", "du", "z", "", "net." + "a" * 200, "\u2603"])] = t.clone()
        case _:
            spoilt = t.clone().reshape(-1)
            spoilt[:1] = dice.choice([float("nan"), float("inf"), -1e38]) if t.is_floating_point() else -1
            tensors[name] = spoilt.reshape(t.shape)
    return replace(message, tensors=tensors)


def form(message: Message) -> tuple:
    """All that the validator looks at; numbers that are none belong to it. A batch may be smaller than it could."""
    tensors = tuple(
        (name, rows_apart(t), t.dtype, bool(torch.isfinite(t).all()), t.tolist() if name in ("y", "rows") else 0)
        for name, t in message.tensors.items()
    )
    return message.kind, message.client, message.step, tensors


def rows_apart(t: torch.Tensor) -> tuple[int, ...]:
    return (-1, *t.shape[1:]) if t.dim() and 0 < len(t) <= SIEGE.batch_size else tuple(t.shape)


def wait_for(until, patience: float) -> None:
    began = time.monotonic()
    while not until():
        assert time.monotonic() - began < patience
        time.sleep(0.05)


def besieged(siege: Siege, patience: float) -> dict:
    """The siege ends, everybody is where they would have been without it, and the server has stayed small."""
    try:
        end = siege.run(patience)
    finally:
        siege.stop()
    local = undisturbed(siege.plan)
    refuse_other_tensors(local.tensors(), end["tensors"])
    for site in siege.sites.values():
        assert site.party is not None
        refuse_other_tensors(local.coordinator.shared, export(site.party.network))
    assert end["result"]["exact"] and not end["result"]["skipped"]
    assert end["memory_most"] - end["memory_before"] < ROOM
    refused = siege.found["in_turn"]
    assert sum(refused.values()) == siege.counts.in_turn, refused  # every one of them was refused
    return end
