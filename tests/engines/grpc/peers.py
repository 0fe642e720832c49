"""Peers that do not keep to the protocol: bytes into a stream, and whatever comes back."""

import queue
import threading
from dataclasses import dataclass

import grpc
import torch
from toys import TASK

from cutlayer.data.partitions import IID
from cutlayer.engines.grpc.channel import Address
from cutlayer.engines.grpc.service import CONVERSE
from cutlayer.engines.grpc.session import HEADER, VERSION, Refused, Type, head, note, read_note
from cutlayer.engines.grpc.versions import own_versions
from cutlayer.training.plan.plan import Plan


class Peer:
    """One conversation, packet by packet. A deaf one does not read until it is told to listen."""

    def __init__(self, address: Address, deaf: bool = False):
        self._out: queue.SimpleQueue = queue.SimpleQueue()
        self._in: queue.SimpleQueue = queue.SimpleQueue()
        self._channel = address.channel()
        self._stream = self._channel.stream_stream(CONVERSE)(iter(self._out.get, None))
        if not deaf:
            self.listen()

    def listen(self) -> None:
        threading.Thread(target=self._pump, daemon=True).start()

    def _pump(self) -> None:
        try:
            for packet in self._stream:
                self._in.put(packet)
            self._in.put(None)
        except grpc.RpcError as error:
            self._in.put(error)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *error: object) -> None:
        self._out.put(None)
        self._channel.close()

    def send(self, *packets: bytes) -> "Peer":
        for packet in packets:
            self._out.put(packet)
        return self

    def packet(self, patience: float = 60.0) -> bytes:
        """The next packet, and an error if there is none."""
        found = self.read(patience)
        if isinstance(found, bytes):
            return found
        raise found or EOFError("the stream has ended")

    def read(self, patience: float = 60.0) -> bytes | grpc.RpcError | None:
        """The next packet; None: the stream has ended."""
        return self._in.get(timeout=patience)

    def greet(self, facts: dict) -> dict:
        return read_note(self.send(note(Type.HELLO, facts)).packet(), Type.WELCOME)

    def refusal(self, patience: float = 60.0) -> str:
        """The name of the refusal that ends this conversation."""
        while True:
            packet = self.read(patience)
            if packet is None or isinstance(packet, grpc.RpcError):
                return f"ended: {packet}"
            try:
                if head(packet)[0] is Type.REFUSED:
                    read_note(packet)
            except Refused as error:
                assert self.read(patience) is None  # nothing comes after a refusal
                return error.name


def hello(plan: Plan, name: str, /, **changes: object) -> dict:
    """What an honest client says of itself; a change to None leaves a fact out."""
    facts = {
        "protocol": VERSION,
        "versions": own_versions(),
        "name": name,
        "plan": plan.fingerprint(),
        "fields": plan.agreed(),
        "process": "1",
        "batches": 2,
        "batches_code": "0" * 64,  # nobody here can say whether it is good
        "own_data": False,
        "task": [list(TASK.shape), TASK.classes, dict(TASK.attributes), 0],
        "purpose": "train",
        "snapshots": [0],
        "session": "",
        "heard": 0,
    } | changes
    return {key: value for key, value in facts.items() if value is not None}


def data(
    piece: bytes = b"", *, last: bool = True, number: int = 1, heard: int = 0, total: int | None = None
) -> bytes:
    """A packet of a frame."""
    return HEADER.pack(b"CP", Type.DATA, int(last), number, heard, len(piece) if total is None else total) + piece


@dataclass(frozen=True, repr=False)
class Without(IID):
    """The usual shares, but some clients have nothing: what a run is like that goes on without them."""

    leaves_out = True
    gone: tuple[int, ...] = ()

    def assign(self, samples, clients, seed):
        shares = super().assign(samples, clients, seed)
        none = torch.empty(0, dtype=torch.int64)
        return [none if number in self.gone else share for number, share in enumerate(shares)]


def memory() -> float:
    """MiB this process has in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20
