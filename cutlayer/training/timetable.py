"""Which rounds a plan has, epoch by epoch: a function of the plan and of how many batches each client holds."""

from collections.abc import Sequence
from functools import cached_property

from .plan.plan import Plan
from .plan.roles import Role
from .plan.schedule import Turn, epoch_rounds


class Timetable:
    """The rounds of every epoch; both sides could write it down before the first step."""

    def __init__(self, plan: Plan, batches: Sequence[int]):
        self.plan, self.batches = plan, list(batches)
        self._rounds: dict[int, list[tuple[Turn, ...]]] = {}

    def rounds(self, epoch: int) -> list[tuple[Turn, ...]]:
        """Of one epoch, in order."""
        if epoch not in self._rounds:
            plan = self.plan
            if len(self._rounds) > 1:  # of very many clients one is long
                self._rounds.clear()
            self._rounds[epoch] = epoch_rounds(
                plan.rounds,
                plan.roles,
                self.batches,
                plan.local_steps,
                plan.clients_per_round,
                epoch=epoch,
                seed=plan.seed,
            )
        return self._rounds[epoch]

    @cached_property
    def steps(self) -> int:
        """Of the whole plan, all clients together: without writing rounds down where no draw decides it."""
        each = self._steps_of_an_epoch()
        if each is not None:
            return self.plan.epochs * each
        turns = (turn for epoch in range(self.plan.epochs) for one in self.rounds(epoch) for turn in one)
        return sum(turn.last - turn.first for turn in turns)

    def _steps_of_an_epoch(self) -> int | None:
        """None: it hangs on who is drawn."""
        roles, take = self.plan.roles, self.plan.clients_per_round
        if roles.turns_vary:
            return None
        out = [role is Role.OUT for role in roles.at(0, len(self.batches), self.plan.seed)]
        if take is None:
            return sum(have for have, left_out in zip(self.batches, out, strict=True) if not left_out)
        length, count = self.plan.local_steps or max(self.batches, default=0), 0
        for first in range(0, max(self.batches, default=0), length or 1):
            turns = [min(length, have - first) for have in self.batches if have > first]
            if take < len(turns) and (any(out) or len(set(turns)) > 1):
                return None
            count += sum(turns[:take])
        return count

    @property
    def passes(self) -> int:
        """How often each client with the most data has a turn, in all epochs."""
        longest = max(self.batches, default=0)
        return self.plan.epochs * -(-longest // (self.plan.local_steps or max(1, longest)))

    @property
    def ahead(self) -> int:
        """How many steps of a turn are begun one before the other is over; 0: none is."""
        return self.plan.rounds.ahead and (self.plan.local_steps or max(self.batches, default=0))

    def place(self, client: int, step: int) -> tuple[int, int, bool]:
        """(epoch, batch of it, whether it was frozen) of a client's step. Who is not drawn misses some."""
        whole = self.batches[client]  # of an epoch, where none is left out
        alike = self.plan.clients_per_round is None and not self.plan.roles.turns_vary
        passed, step = divmod(step, whole) if alike and whole else (0, step)
        for epoch in range(passed, self.plan.epochs):
            turns = (turn for round_ in self.rounds(epoch) for turn in round_ if turn.client == client)
            for turn in turns:
                if step < turn.last - turn.first:
                    return epoch, turn.first + step, turn.frozen
                step -= turn.last - turn.first
        raise ValueError(f"client {client} has no such step in this plan")
