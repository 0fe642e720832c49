"""A text that grows token by token: places that are new cross alone, both ways, and the server keeps the others.

The server puts what comes into the text it has and answers for the new places. It keeps one text of each client, in
memory alone; a client that finds its own gone sends the same rows again. Where its body is a decoder's, it keeps keys
and values of the text as well, and computes new places alone; of all others it computes the whole.
"""

import secrets
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..core.batch import Task
from ..core.features import Unchanged
from ..core.guard import Shape
from ..core.message import Handler, Kind, Message
from ..nets.server_network import ServerNetwork
from ..nets.text_blocks import Memory
from ..nets.text_decoder import DecoderBody
from .labels import label_shape
from .plan.plan import Plan
from .plan.shapes import cut_shapes

GROWS = "grows"  # beside z in a PREDICT: which text, the number of the message in it, its first place


def grows(plan: Plan, task: Task) -> bool:
    """Whether what crosses has a row for each token, both ways, and each token a class of its own: the next one's."""
    if not task.vocabulary or not plan.protocol.crosses or label_shape(plan, task) != task.shape:
        return False
    cut = cut_shapes(plan, task)
    return not cut.beside and len(cut.sent) == 2 and cut.sent[0] == cut.u[0] == task.shape[0]


def keeping_texts(plan: Plan, task: Task, network: ServerNetwork) -> "Iterator[KeepsTexts]":
    """The server's half, where there is one."""
    if grows(plan, task):
        body = network.body
        # A lift or what fills up for channels at home may look at all places.
        as_it_comes = type(network.lift) is type(network.fill) is nn.Identity and isinstance(network.tail, Unchanged)
        remembered = Remembered(body) if as_it_comes and isinstance(body, DecoderBody) else None
        yield KeepsTexts(cut_shapes(plan, task).sent, remembered)


class _Text(NamedTuple):
    name: int
    number: int  # of the message that came last
    z: Tensor


class Remembered:
    """What the server's blocks made of the places of each client's text: keys and values, as many numbers as twice z
    in each block. Weights that have changed since have other ones, and the text is computed again."""

    def __init__(self, body: DecoderBody):
        self._body = body
        self._kept: dict[int, tuple[int, int, list[Memory]]] = {}  # by client: places, the weights' version, memories

    @torch.no_grad()
    def __call__(self, client: int, z: Tensor, first: int, last: int, begins: bool) -> Tensor:
        """u of the places from `first` to `last`; `z` is the whole text, of which those before may be known."""
        self._body.eval()
        # Every change of a tensor in place counts its version up.
        version = sum(tensor._version for tensor in self._body.state_dict(keep_vars=True).values())
        places, of_version, memories = self._kept.pop(client, (0, version, []))
        if begins or of_version != version or not memories:
            places, memories = 0, self._body.empty()
        places = min(places, first)
        for memory in memories:
            memory.shortened(places)
        u: Tensor = self._body(z[:, places:last], memories=memories)
        self._kept[client] = last, version, memories
        return u[:, first - places :]


class KeepsTexts:
    """A watcher at the server; `remembered` computes new places alone, without it all are computed."""

    def __init__(self, sent: Shape, remembered: Remembered | None = None):
        self._sent, self._remembered = sent, remembered
        self._texts: dict[int, _Text] = {}  # by client, the one it is at

    def __call__(self, message: Message, answer: Handler) -> Message:
        if message.kind is not Kind.PREDICT or GROWS not in message.tensors:
            return answer(message)
        name, number, first = message[GROWS].tolist()
        new, known = message["z"], self._texts.get(message.client)
        before = new.new_zeros(1, *self._sent)
        if number:
            # A question that was asked again has the number of the last.
            if known is None or known.name != name or number - known.number not in (0, 1):
                return message.reply()
            before = known.z
        z, last = _put(before, first, new), first + new.shape[1]
        self._texts[message.client] = _Text(name, number, z)
        if self._remembered is not None:
            return message.reply(u=self._remembered(message.client, z, first, last, begins=not number))
        u = answer(Message(message.kind, message.client, message.step, {"z": z}))["u"]
        return message.reply(u=u[:, first:last])


class SendsNewPlaces:
    """A watcher at the client, for one text: a place that has left does not leave again.

    Noise that is drawn anew for every message would average out if it did. Bytes that a guard has packed are those of
    all places, so rows travel as numbers.
    """

    def __init__(self) -> None:
        self.words = 0  # of the text, before each message
        self._name, self._number = secrets.randbits(62), 0
        self._z: Tensor | None = None  # as it has left
        self._u: Tensor | None = None

    def __call__(self, message: Message, send: Handler) -> Message:
        if message.kind is not Kind.PREDICT:
            return send(message)
        left = 0 if self._z is None else self._z.shape[1]
        z = message["z"][:, left : self.words]
        self._z = z.clone() if self._z is None else torch.cat([self._z, z], 1)
        answer = self._ask(message, send, left)
        if not answer.tensors and self._number:  # the server has this text no longer
            self._name, self._number, left = secrets.randbits(62), 0, 0
            answer = self._ask(message, send, left)
        # Of earlier places nothing changes: no place of a causal network looks at later ones.
        u = answer["u"]
        before = u.new_zeros(1, message["z"].shape[1], *u.shape[2:]) if self._u is None else self._u
        self._u, self._number = _put(before, left, u), self._number + 1
        return message.reply(u=self._u)

    def _ask(self, message: Message, send: Handler, first: int) -> Message:
        assert self._z is not None
        where = torch.tensor([self._name, self._number, first])
        new = {"z": self._z[:, first:].contiguous(), GROWS: where}
        return send(Message(message.kind, message.client, message.step, new))


def _put(whole: Tensor, first: int, new: Tensor) -> Tensor:
    return torch.cat([whole[:, :first], new, whole[:, first + new.shape[1] :]], 1)
