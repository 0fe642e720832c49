"""Seals on weights that clients hand on by way of a server: what no client of this run has made is refused.

A seal is a tensor beside the weights. It says run, round, sender and the seal before it, and ends with an HMAC over
these and the weights, under a key that all clients have and no server.
"""

import hashlib
import hmac
import secrets
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.errors import OffPlan
from ..core.layout import in_rows
from ..core.state import State
from ..rules.base import NET, OPTIMIZER, SEAL, STAT

NAME = SEAL + "relay"
_LAYOUT = struct.Struct("<16sQI32s32s32s")


class Seal(NamedTuple):
    """What a seal says, and the code that only clients can make."""

    run: bytes  # drawn by the first client: weights of an earlier run are not of this one
    round: int  # how often the weights were handed on
    sender: int
    previous: bytes  # the code of the weights its sender started from
    optimizer: bytes  # a hash of the optimizer's state, which does not always travel
    code: bytes

    def as_tensor(self) -> Tensor:
        return torch.frombuffer(bytearray(_LAYOUT.pack(*self)), dtype=torch.uint8)

    @classmethod
    def read(cls, tensor: Tensor) -> "Seal":
        if tensor.dtype != torch.uint8 or tensor.shape != (_LAYOUT.size,):
            raise OffPlan("the server brings weights whose seal cannot be read")
        return cls(*_LAYOUT.unpack(tensor.contiguous().numpy().tobytes()))


class Seals:
    """One client's side: what it has seen of the chain, and the next seal."""

    def __init__(self, key: bytes, plan: str, client: int):
        """`plan`: the fingerprint of what all have agreed on."""
        self._key, self._plan, self._client = key, plan.encode(), client
        self._run, self._round, self._code = b"", 0, b""

    def check(self, state: Mapping[str, Tensor], *, any_round: bool = False) -> None:
        """Refuse weights that no client has sealed, or that are older than what this client has seen.

        `any_round`: they may be older, though not of another run.
        """
        if NAME not in state:
            raise OffPlan("the server brings weights without a seal: no client has made them")
        seal = Seal.read(state[NAME])
        if not hmac.compare_digest(seal.code, self._code_of(seal, _digest(state, NET, STAT))):
            raise OffPlan("the server brings weights whose seal does not fit: no client of this run has made them")
        if any(name.startswith(OPTIMIZER) for name in state) and seal.optimizer != _digest(state, OPTIMIZER):
            raise OffPlan("the server brings an optimizer's state that does not belong to its weights")
        if self._run and seal.run != self._run:
            raise OffPlan("the server brings weights of another run")
        if not any_round:
            self._refuse_older(seal)
        self.adopt(seal)

    def _refuse_older(self, seal: Seal) -> None:
        if seal.round < self._round:
            raise OffPlan(f"the server brings weights of round {seal.round}, and round {self._round} was here before")
        fork = seal.round == self._round and self._code and seal.code != self._code
        if fork or (seal.round == self._round + 1 and self._code and seal.previous != self._code):
            raise OffPlan(
                f"the server brings other weights of round {seal.round} than those made of the last it showed"
            )

    def seal(self, state: Mapping[str, Tensor]) -> State:
        """`state` with the seal of this client, which started from what it last saw."""
        optimizer = _digest(state, OPTIMIZER)
        run, previous = self._run or secrets.token_bytes(16), self._code or bytes(32)
        made = Seal(run, self._round + 1, self._client, previous, optimizer, b"")
        made = made._replace(code=self._code_of(made, _digest(state, NET, STAT)))
        return {**state, NAME: made.as_tensor()}

    def adopt(self, seal: Seal) -> None:
        """This is the newest of the chain."""
        self._run, self._round, self._code = seal.run, seal.round, seal.code

    def seen(self) -> dict[str, Any]:
        """Plain facts for a snapshot: a rewind leads to what this client itself has seen."""
        return {"run": self._run.hex(), "round": self._round, "code": self._code.hex()}

    def go_to(self, seen: Mapping[str, Any]) -> None:
        self._run, self._round = bytes.fromhex(seen["run"]), int(seen["round"])
        self._code = bytes.fromhex(seen["code"])

    def _code_of(self, seal: Seal, weights: bytes) -> bytes:
        said = b"".join((self._plan, _LAYOUT.pack(*seal[:-1], b""), weights))
        return hmac.digest(self._key, said, "sha256")


def _digest(state: Mapping[str, Tensor], *kinds: str) -> bytes:
    """Of names, types, shapes and numbers."""
    found = hashlib.sha256()
    for name in sorted(name for name in state if name.startswith(kinds)):
        tensor = in_rows(state[name].detach().cpu())
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return found.digest()
