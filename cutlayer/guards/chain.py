"""Guards one after another: the client applies them left to right, the server lifts right to left."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Task
from ..core.guard import Guarded, GuardModule, Shape
from ..core.search import Fixed, Search
from ..core.seeds import derive
from .base import Bound, Guard, NoGuard, Release, behind


class _Step(NamedTuple):
    part: Guard
    before: Shape  # the shape it reads
    public: int  # its public seed


@dataclass(frozen=True, repr=False, init=False)
class Chain(Guard):
    """Guards in sequence, e.g. Chain(LightSplit(ratio=8), WCC(weight=0.01))."""

    parts: tuple[Guard, ...]
    in_suite: ClassVar[bool] = False  # it has no usual parts
    search: ClassVar[Search] = Fixed("its parts are searched")

    def __init__(self, *parts: Guard):
        strange = [part for part in parts if not isinstance(part, Guard)]
        if strange or not parts:
            raise ValueError(f"Chain takes guards, e.g. Chain(LightSplit(ratio=8), WCC(weight=0.01)); got {parts}")
        flat = [inner for part in parts for inner in part.stages()]
        object.__setattr__(self, "parts", tuple(flat))
        self._refuse_what_cannot_work()
        self._calibrated()  # an ε that nothing bounds is refused now, not after an hour

    def __repr__(self) -> str:
        return f"Chain({', '.join(map(repr, self.parts))})"

    @classmethod
    def usual(cls) -> "Chain":
        raise NotImplementedError("a chain has no usual parts")

    def stages(self) -> tuple[Guard, ...]:
        return self.parts

    # What a chain is follows from its parts. (Class variables elsewhere, so the type checker objects.)
    @property
    def acts_alone(self) -> bool:  # type: ignore[override]
        return all(part.acts_alone for part in self.parts)

    @property
    def capturable(self) -> bool:  # type: ignore[override]
        return all(part.capturable for part in self.parts)

    @property
    def mixes_samples(self) -> bool:  # type: ignore[override]
        return any(part.mixes_samples for part in self.parts)

    @property
    def reads_classes(self) -> bool:  # type: ignore[override]
        return any(part.reads_classes for part in self.parts)

    @property
    def holds_back(self) -> bool:  # type: ignore[override]
        return any(part.holds_back for part in self.parts)

    @property
    def exchange(self) -> str:  # type: ignore[override]
        return next((part.exchange for part in self.parts if part.exchange), "")

    @property
    def reads_gradients(self) -> bool:  # type: ignore[override]
        return any(part.reads_gradients for part in self.parts)

    @property
    def post_hoc(self) -> bool:  # type: ignore[override]
        return any(part.post_hoc for part in self.parts)

    @property
    def least_batch(self) -> int:
        return max(part.least_batch for part in self.parts)

    @property
    def least_to_learn(self) -> int:
        return max(part.least_to_learn for part in self.parts)

    @property
    def least_in_service(self) -> int:
        return max(part.least_in_service for part in self.parts)

    def least_rows(self, shape: Shape) -> int:
        return max(step.part.least_rows(step.before) for step in self._steps(shape, 0))

    @property
    def fan_out(self) -> int:
        return max(part.fan_out for part in self.parts)  # such guards mix samples, so there is one at most

    @property
    def attributes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for part in self.parts for name in part.attributes))

    @property
    def has_key(self) -> bool:
        return any(part.has_key for part in self.parts)

    @property
    def rests_in_service(self) -> bool:  # type: ignore[override]
        return any(part.rests_in_service for part in self.parts)

    @property
    def draws_anew(self) -> bool:
        return any(part.draws_anew for part in self.parts)

    def out_shape(self, shape: Shape) -> Shape:
        whole, bundled = shape, False
        for part in self._calibrated():
            if part.holds_back and shape != whole:
                raise ValueError(f"{part} keeps a part of the cut {whole} home, but reads {shape}: put it first")
            before, shape = shape, part.out_shape(shape)
            if bundled and shape != before:
                raise ValueError(f"{part} changes the shape of rows that stand for several samples: put it first")
            bundled = bundled or part.fan_out > 1
        return shape

    def build(self, shape: Shape, public: int, private: int, task: Task | None = None) -> GuardModule:
        modules = [
            step.part.build(step.before, step.public, derive(private, place), task)
            for place, step in enumerate(self._steps(shape, public))
        ]
        lifted = [number for number, part in enumerate(self.parts) if not part.client_only]
        # As `public_part` has it: a single half at the server stands alone, several in reverse.
        names = {number: f"{place}." for place, number in enumerate(reversed(lifted))} if len(lifted) > 1 else {}
        return _InTurn(modules, names or dict.fromkeys(lifted, ""))

    def lift(self, shape: Shape, public: int) -> nn.Module:
        lifts = [part.lift(before, seed) for part, before, seed in self._steps(shape, public) if not part.client_only]
        return nn.Sequential(*reversed(lifts))

    def undo(self, shape: Shape, public: int) -> nn.Module | None:
        undos: list[nn.Module] = []
        for part, before, seed in self._steps(shape, public):
            undo = part.undo(before, seed)
            if undo is not None:
                undos.append(undo)
            elif part.out_shape(before) != before:
                return None  # what this part did to the shape cannot be undone
        return nn.Sequential(*reversed(undos)) if undos else None

    def without(self, module: GuardModule, place: int) -> GuardModule:
        assert isinstance(module, _InTurn)
        module.inner[place] = GuardModule()
        return module

    def attach(self, optimizer: torch.optim.Optimizer, client: nn.Module) -> None:
        for part in self.parts:
            part.attach(optimizer, client)

    def releases_weights(self) -> Release | None:
        return next((release for part in self.parts if (release := part.releases_weights()) is not None), None)

    def bound(self, before: Bound) -> Bound:
        for part in self.parts:
            _, before = behind(part, before)
        return before

    def message_bits(self, shape: Shape) -> int | None:
        """Of the last part that changes what leaves: whatever came before, no more gets through it."""
        found = None
        for step in self._steps(shape, 0):
            found = found if step.part.client_only else step.part.message_bits(step.before)
        return found

    def over(self, epochs: int) -> Guard:
        parts = [part.over(epochs) for part in self.parts]
        return self if all(new is old for new, old in zip(parts, self.parts, strict=True)) else Chain(*parts)

    def public_part(self) -> Guard:
        shown = [part.public_part() for part in self.parts if not part.client_only]
        return Chain(*shown) if len(shown) > 1 else shown[0] if shown else NoGuard()

    def _steps(self, shape: Shape, public: int) -> list[_Step]:
        """Client-only parts must not shift the public seeds of the others: the server, which does not know of them,
        has to arrive at the same ones."""
        steps, place = [], 0
        for part in self._calibrated():
            steps.append(_Step(part, shape, derive(public, place) if place else public))
            shape, place = part.out_shape(shape), place + (not part.client_only)
        return steps

    def _calibrated(self) -> list[Guard]:
        settled, bound = [], Bound()
        for part in self.parts:
            part, bound = behind(part, bound)
            settled.append(part)
        return settled

    def _refuse_what_cannot_work(self) -> None:
        mixing = [part for part in self.parts if part.mixes_samples]
        if len(mixing) > 1:
            raise ValueError(
                f"{mixing[0]} and {mixing[1]} both mix the samples of a batch, so the second would hide rows that "
                "are no samples any more: use one of them"
            )
        exchanging = [part for part in self.parts if part.exchange]
        if len(exchanging) > 1:
            raise ValueError(
                f"{exchanging[0]} and {exchanging[1]} both exchange their server's half: use one of them"
            )
        learning = [part for part in self.parts if part.reads_gradients]
        if len(learning) > 1:
            raise ValueError(
                f"{learning[0]} and {learning[1]} both replace the gradients a client learns from: use one of them"
            )
        for place, part in enumerate(self.parts):
            readers = [later for later in self.parts[place + 1 :] if later.reads_samples]
            if part.mixes_samples and readers:
                raise ValueError(
                    f"{readers[0]} compares what leaves with its sample, but behind {part} rows are no samples any "
                    f"more: put {readers[0]} before it"
                )
            after = [later for later in self.parts[place + 1 :] if later.fills_zeros]
            if part.makes_zeros and after:
                raise ValueError(
                    f"{part} drops coordinates, but {after[0]} fills them again: the zeros are gone and so are the "
                    f"bytes saved. Put {after[0]} first, or leave one out"
                )
            again = [later for later in self.parts[place + 1 :] if later.only_compresses]
            if part.packs and again:
                raise ValueError(
                    f"{part} has packed what leaves as small as it can, and {again[0]} behind it would have to send "
                    "other numbers in more bytes: leave one of them out"
                )
            before = [earlier for earlier in self.parts[:place] if not earlier.client_only]
            if part.reads_pictures and before:
                raise ValueError(f"{part} codes pictures, and {before[0]} changes them before: put {part} first")
            if part.holds_back and any(earlier.holds_back for earlier in self.parts[:place]):
                raise ValueError(f"{part} would keep home what another guard already kept: use one of them")


class _InTurn(GuardModule):
    def __init__(self, modules: Sequence[GuardModule], halves: Mapping[int, str]):
        super().__init__()
        self.inner = nn.ModuleList(modules)
        self.fan_out = max(module.fan_out for module in modules)
        self._halves = halves  # of each part that has one: how the names of its half at the server begin

    def unmixed(self, seen: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor | None]:
        for module in reversed(self.inner):
            seen, rows = module.unmixed(seen, rows)  # type: ignore[operator]
        return seen, rows

    def lift_due(self, step: int) -> dict[str, Tensor] | None:
        for number, prefix in self._halves.items():
            due = self.inner[number].lift_due(step)  # type: ignore[operator]
            if due is not None:
                return {prefix + name: tensor for name, tensor in due.items()}
        return None

    def take_lift(self, state: Mapping[str, Tensor]) -> None:
        for number, prefix in self._halves.items():
            own = {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}
            self.inner[number].take_lift(own)  # type: ignore[operator]

    def forward(self, z: Tensor, batch: Batch) -> Guarded:
        penalties: dict[str, Tensor] = {}
        rows = home = None
        self.notes = {}
        self.packed = None
        for module in self.inner:
            before = z
            z, penalty, own_rows, own_home = module(z, batch)
            self.packed = self.packed if z is before else module.packed
            for name, term in penalty.items():
                # The same penalty at two stages counts twice, under one name.
                penalties[name] = penalties[name] + term if name in penalties else term
            rows = own_rows if own_rows is not None else rows
            home = own_home if own_home is not None else home
            self.notes |= module.notes  # type: ignore[arg-type]
        return Guarded(z, penalties, rows, home)
