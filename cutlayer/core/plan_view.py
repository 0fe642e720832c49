"""What a part of a plan may ask of the others when it says that they do not go together: facts, never classes.

Rooms below `training` cannot import the plan. What they read of it stands here, and a plan has all of it.
"""

from typing import Protocol


class ProtocolView(Protocol):
    @property
    def crosses(self) -> bool: ...


class RoundsView(Protocol):
    @property
    def own_bodies(self) -> bool: ...
    @property
    def waves(self) -> bool: ...
    @property
    def fused(self) -> bool: ...


class RolesView(Protocol):
    def learning(self, clients: int) -> int: ...


class RuleView(Protocol):
    def correction(self) -> object | None: ...


class OptimizerView(Protocol):
    @property
    def plain(self) -> bool: ...


class PlanView(Protocol):
    """A plan, as `refuse_unfit_plan` of guards, rules, detectors and poisons is given it."""

    @property
    def clients(self) -> int: ...
    @property
    def clients_per_round(self) -> int | None: ...
    @property
    def shared_client_network(self) -> bool: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def micro_batches(self) -> int: ...
    @property
    def frozen_parts(self) -> tuple[str, ...]: ...
    @property
    def protocol(self) -> ProtocolView: ...
    @property
    def rounds(self) -> RoundsView: ...
    @property
    def roles(self) -> RolesView: ...
    @property
    def rule(self) -> RuleView: ...
    @property
    def client_optimizer(self) -> OptimizerView: ...
