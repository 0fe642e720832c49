"""What a client has released, written down before it leaves: a server gets what the plan has, and no more.

released.jsonl   one line for each turn and each evaluation, on disk before its first message leaves
sent/            the messages themselves, since the older of the client's two snapshots

A batch is released once an epoch. Whoever asks for it again after a rewind gets the same bytes again, whatever has
become of the weights since: two messages of one batch with the same noise would show it without.
"""

import json
import os
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..core.errors import OffPlan
from ..core.files import room_for, sync, write_all
from ..wire.pieces import Pieces

JOURNAL, TAPES = "released.jsonl", "sent"
MOST_KEPT = 2 << 30  # bytes of messages on disk; a server that never orders a snapshot would else fill it
_RECORD = struct.Struct("<II")  # bytes of the key, bytes of the frame
Key = tuple[Any, ...]
Frame = TypeVar("Frame", bytes, bytearray, Pieces)


class _Place(NamedTuple):
    """Where a message that was sent lies."""

    tape: int
    at: int
    size: int


class Books:
    """One client's releases in one run, as they are on disk."""

    def __init__(self, folder: Path, epochs: int, batches: int, most_kept: int = MOST_KEPT):
        """`batches`: of this client in an epoch."""
        self._epochs, self._batches, self._most = epochs, batches, most_kept
        self._steps: dict[int, array[int]] = {}  # by epoch: the step at which each batch was released, or -1
        self._next = 0  # the first step that no batch was released at
        self._detours: set[tuple[int, int]] = set()
        self._evaluations: dict[Key, tuple[int, int]] = {}  # the epoch of each, and the tape its messages are on
        self._sent: dict[Key, _Place | None] = {}  # None: not kept
        self.replayed = 0  # messages that were sent once more
        self._folder, self._tapes = folder, folder / TAPES
        self._tapes.mkdir(parents=True, exist_ok=True)
        self._read(folder / JOURNAL)
        with room_for(folder / JOURNAL):
            self._journal = os.open(folder / JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            sync(folder)
        self._kept, self._tape, self._file = 0, 0, -1
        self._began: dict[int, int] = {}  # by number of a snapshot: the tape of what was sent after it
        self._paths = {_numbers(path)[0]: path for path in self._tapes.glob("*.frames")}
        self._oldest = min(self._paths, default=0)
        for tape in sorted(self._paths):
            self._scan(tape)
        self._open_tape(self._tape, _numbers(self._paths[self._tape])[1] if self._paths else 0)

    # ------------------------------------------------------------------ what may be asked for
    def turn(self, step: int, epoch: int, first: int, last: int) -> bool:
        """The server orders batches `first` to `last` of an epoch.

        Whether this client has made these steps with other samples before: it then needs other random numbers.
        """
        if not (0 <= epoch < self._epochs and 0 <= first <= last <= self._batches):
            raise OffPlan(
                f"the server orders batches {first} to {last} of epoch {epoch}; the plan has {self._batches} batches "
                f"in each of {self._epochs} epochs"
            )
        known = self._steps.get(epoch)
        before = [known[batch] if known is not None else -1 for batch in range(first, last)]
        for place, was in enumerate(before):
            if was not in (-1, step + place):
                raise OffPlan(
                    f"the server orders batch {first + place} of epoch {epoch} at step {step + place}, and it was "
                    f"released at step {was}: the plan has it once"
                )
        new = -1 in before
        detour = step < self._next if new else any((epoch, batch) in self._detours for batch in range(first, last))
        if new:
            self._write(["turn", step, epoch, first, last, int(detour)])
        return detour

    def evaluation(self, purpose: str, epoch: int) -> None:
        """Held-out samples leave once an epoch for validation, and once for each test."""
        if not 0 <= epoch <= self._epochs:
            raise OffPlan(f"the server asks for a {purpose} of epoch {epoch}; the plan has {self._epochs}")
        was, tape = self._evaluations.get(_evaluated(purpose, epoch), (epoch, self._oldest))
        if was != epoch or tape < self._oldest:
            raise OffPlan(
                f"the server asks for a {purpose} of epoch {epoch}, and had one of epoch {was}: the plan has one"
            )
        if _evaluated(purpose, epoch) not in self._evaluations:
            self._write(["evaluation", purpose, epoch, self._tape])

    def release(self, key: Key, frame: Frame) -> Frame | bytes:
        """What may leave under this key: `frame`, or what has left under it before."""
        if key in self._sent:
            self.replayed += 1
            return self._again(key)
        self._sent[key] = self._keep(key, frame) if self._kept + len(frame) <= self._most else None
        return frame

    def snapshots(self, numbers: Sequence[int]) -> None:
        """The client has these snapshots now, the last just written, and is never led further back.

        Tapes have numbers of their own, which only grow: a server chooses those of snapshots.
        """
        self._open_tape(self._tape + 1, max(numbers))
        self._oldest = min(self._began.get(number, self._oldest) for number in numbers)
        for tape in [tape for tape in self._paths if tape < self._oldest]:
            path = self._paths.pop(tape)
            self._kept -= path.stat().st_size
            path.unlink()
            self._sent = {key: place for key, place in self._sent.items() if place is None or place.tape != tape}

    def spent(self) -> dict[str, Any]:
        """What was released, for whoever reads the result."""
        batches = sum(len(steps) - steps.count(-1) for steps in self._steps.values())
        kinds = [key[0] for key in self._evaluations]
        return {
            "epochs": len(self._steps),
            "batches": batches,
            "batches_planned": self._epochs * self._batches,
            **{f"{purpose} evaluations": kinds.count(purpose) for purpose in sorted(set(kinds))},
            "sent_again": self.replayed,
        }

    @property
    def epochs(self) -> int:
        """In which samples of this client were released."""
        return len(self._steps)

    def close(self) -> None:
        os.close(self._journal)
        os.close(self._file)

    # --------------------------------------------------------------------- the journal
    def _write(self, line: list[Any]) -> None:
        with room_for(self._folder / JOURNAL):
            write_all(self._journal, json.dumps(line).encode() + b"\n")
            os.fdatasync(self._journal)  # a power cut must not give the server its batch anew
        self._note(line)

    def _note(self, line: list[Any]) -> None:
        if line[0] == "evaluation":
            _, purpose, epoch, tape = line
            self._evaluations[_evaluated(purpose, epoch)] = epoch, tape
            return
        step, epoch, first, last, detour = line[1:]
        steps = self._steps.setdefault(epoch, array("q", [-1]) * self._batches)
        for place, batch in enumerate(range(first, last)):
            steps[batch] = step + place
            if detour:
                self._detours.add((epoch, batch))
        self._next = max(self._next, step + last - first)

    def _read(self, path: Path) -> None:
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
        if lines[-1]:  # half a line: nothing of it has left
            os.truncate(path, path.stat().st_size - len(lines[-1]))
        try:
            for line in lines[:-1]:
                self._note(json.loads(line))
        except (ValueError, TypeError, IndexError) as error:
            raise ValueError(
                f"{path} is damaged, so nobody knows what was released: take part anew with another --out"
            ) from error

    # ----------------------------------------------------------------------- the tapes
    def _open_tape(self, tape: int, snapshot: int) -> None:
        """From here on messages go to this tape, until there is another snapshot."""
        path = self._paths.get(tape, self._tapes / f"{tape}-{snapshot}.frames")
        with room_for(path):
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._paths[tape] = opened, path
        self._tape, self._end, self._began[snapshot] = tape, os.fstat(self._file).st_size, tape

    def _keep(self, key: Key, frame: Frame) -> _Place:
        """Not waited for: who is killed leaves it with the system, and after a power cut the journal still counts."""
        name = json.dumps(key).encode()
        size, parts = len(frame), frame.parts if isinstance(frame, Pieces) else [frame]
        place = _Place(self._tape, self._end + _RECORD.size + len(name), size)
        with room_for(self._paths[self._tape]):
            write_all(self._file, _RECORD.pack(len(name), size) + name)
            for part in parts:
                write_all(self._file, part)
        self._kept += place.at + size - self._end
        self._end = place.at + size
        return place

    def _again(self, key: Key) -> bytes:
        place = self._sent[key]
        if place is None:
            raise OffPlan(f"the server asks again for {key}, and what was sent then is no longer kept")
        with self._paths[place.tape].open("rb") as file:
            file.seek(place.at)
            return file.read(place.size)

    def _scan(self, tape: int) -> None:
        """What is on a tape; half a message at its end has not left."""
        path = self._paths[tape]
        size, at = path.stat().st_size, 0
        with path.open("rb") as file:
            while at + _RECORD.size <= size:
                named, count = _RECORD.unpack(file.read(_RECORD.size))
                start = at + _RECORD.size + named
                if start + count > size:
                    break
                self._sent.setdefault(tuple(json.loads(file.read(named))), _Place(tape, start, count))
                at = start + count
                file.seek(at)
        os.truncate(path, at)
        self._tape, self._kept = tape, self._kept + at
        self._began[_numbers(path)[1]] = tape


def _numbers(path: Path) -> tuple[int, int]:
    """Of a tape, and of the snapshot before it."""
    tape, snapshot = path.stem.split("-")
    return int(tape), int(snapshot)


def _evaluated(purpose: str, epoch: int) -> Key:
    return (purpose, epoch) if purpose == "validate" else (purpose,)
