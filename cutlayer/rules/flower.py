"""Cutlayer's merging rules as strategies for Flower: pip install 'cutlayer[flower]'.

strategy = as_strategy(FedMuon(lr=0.05), fraction_train=0.5)
strategy.start(grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=30)
"""

from collections.abc import Iterable, Mapping
from logging import INFO, WARNING
from typing import Any

import numpy as np
import torch
from torch import Tensor

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
    from flwr.common.logger import log
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedAvg
except ImportError as error:
    raise ImportError("strategies for Flower need flwr 1.21 or newer: pip install 'cutlayer[flower]'") from error

from .base import NET, STAT, Rule, Update, sound

# Ends of the names torch gives to what BatchNorm keeps: data, which no optimizer may step along.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def as_strategy(rule: Rule, *, statistics: Iterable[str] = STATISTICS, **settings: Any) -> "RuleStrategy":
    """A Flower strategy that merges by `rule`; `settings` are those of Flower's FedAvg.

    Arrays whose names end in one of `statistics` are averaged as data and never optimised.
    """
    return RuleStrategy(rule, tuple(statistics), **settings)


class RuleStrategy(FedAvg):  # type: ignore[misc]
    """Flower's FedAvg in everything but the merge. Updates that are not finite are left out, and logged."""

    def __init__(self, rule: Rule, statistics: tuple[str, ...] = STATISTICS, **settings: Any):
        if not rule.merges:
            raise ValueError(f"{rule} hands on one client's weights; Flower needs a rule that merges, e.g. FedAvg()")
        if rule.correction() is not None:
            raise ValueError(f"half of {rule} runs at the clients, where Flower does not know it: take another rule")
        super().__init__(**settings)
        self.rule, self.statistics = rule, statistics
        self.state: dict[str, Tensor] = {}  # weights, statistics and the rule's memory

    def summary(self) -> None:
        log(INFO, "\t├──> Rule: %r", self.rule)
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        memory = {name: t for name, t in self.state.items() if not name.startswith((NET, STAT))}
        self.state = self._named(arrays) | memory
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        if not self.state:
            raise ValueError("aggregate_train comes after configure_train, which says what the clients started from")
        replies = list(replies)
        answers = [message for message in replies if not message.has_error()]
        kept, rejected = sound(self.state, [self._update(message) for message in answers])
        for place, why in rejected.items():
            log(WARNING, "\t> Left out the update of node %d: %s", answers[place].metadata.src_node_id, why)
        left_out = [answers[place] for place in rejected]
        # Flower logs failures, checks the records and averages the metrics. Its mean of the arrays is not used.
        fit = [message for message in replies if not any(message is other for other in left_out)]
        _, metrics = super().aggregate_train(server_round, fit)
        if not kept:
            return None, None
        self.state = self.rule(self.state, kept)
        return self._arrays(), metrics

    def _update(self, message: Message) -> Update:
        """What a reply brings; one without arrays or a count of samples is for `sound` to turn down."""
        arrays: Mapping[str, Array] = next(iter(message.content.array_records.values()), {})
        metrics: Mapping[str, Any] = next(iter(message.content.metric_records.values()), {})
        samples = metrics.get(self.weighted_by_key, 0)
        whole = int(samples) if isinstance(samples, float) and samples.is_integer() else samples
        return Update(self._named(arrays), whole)

    def _named(self, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
        return {
            (STAT if name.endswith(self.statistics) else NET) + name: torch.from_numpy(np.array(array.numpy()))
            for name, array in arrays.items()
        }

    def _arrays(self) -> ArrayRecord:
        """In the order in which they came: Flower keeps it, and so does a model that loads them by place."""
        return ArrayRecord(
            {
                name.partition(".")[2]: Array(tensor.numpy())
                for name, tensor in self.state.items()
                if name.startswith((NET, STAT))
            }
        )
