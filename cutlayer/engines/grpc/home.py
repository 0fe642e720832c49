"""What a client keeps at home: its network, its history, and the snapshots it goes back to."""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ...core.errors import ProtocolError
from ...core.state import State
from ...training import checkpoint
from ...training.checkpoint import Snapshots
from ...training.client import Client
from ...training.loop import BEST
from ...training.plan.plan import Plan
from ...training.suspicion import Suspicion, without_last
from ...wire.ledger import Ledger
from ..books import Books
from ..taken import FolderLock
from .pulse import Pulse

log = logging.getLogger("cutlayer.join")

OnStep = Callable[[int, int, Mapping[str, float]], None]  # epoch, steps so far, the loss term by term


class Home:
    """One client's side of a run as it lies in its folder. It knows nothing of the server."""

    books: Books  # what it has released; there once it is prepared
    suspicion: Suspicion | None  # of weights that others have made

    def __init__(self, plan: Plan, folder: Path, device: str):
        self.plan, self.folder, self.device = plan, folder, device
        self.ledger = Ledger()
        self.snapshots = Snapshots(folder / "snapshots")
        self.party: Client | None = None
        self.lock: FolderLock | None = None
        self.pulse = Pulse()
        self._on_step: OnStep = lambda *told: None
        self.rows: list[dict[str, Any]] = []  # the history of this client: its loss, term by term
        self.sums: dict[str, tuple[float, int]] = {}
        self._lacks_best = False  # it stands at a best epoch that it was not there for

    @property
    def batches(self) -> int:
        """Of this client in an epoch."""
        return self._party.batches

    @property
    def _party(self) -> Client:
        assert self.party is not None, "prepare() comes first"
        return self.party

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
