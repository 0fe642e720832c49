"""How a run went for each client: what it holds, what it did, and how well the network serves what it holds."""

from typing import Any

import torch
from torch import Tensor

from ..training.facts.fairness import expected_accuracies, fairness
from .local.run import LocalRun


def by_client(run: LocalRun) -> dict[str, Any]:
    """`clients` and `fairness` after `run.evaluate` of the test set; nothing where pixels have classes."""
    counts = class_counts(run)
    if counts is None:
        return {}  # maps of pixels
    alike = run.coordinator.alike  # then only the first client was asked
    asked = run.clients[:1] if alike else run.clients
    scored = [client.scored.by_class for client in asked if client.scored and client.scored.by_class is not None]
    if len(scored) < len(asked):
        return {}  # no test data
    shares = [counts] if alike else counts.split(1)
    expected = [one for own, scores in zip(shares, scored, strict=True) for one in expected_accuracies(own, scores)]
    roles = _roles(run)
    clients = [
        {
            "client": place,
            "samples": int(own.sum()),
            "classes": own.tolist(),
            "steps": run.progress.taken[place],
            "role": roles[place],
            "accuracy": accuracy,
        }
        for place, (own, accuracy) in enumerate(zip(counts, expected, strict=True))
    ]
    return {"clients": clients, "fairness": fairness(expected)}


def class_counts(run: LocalRun) -> Tensor | None:
    """How many samples of each class (column) each client (row) holds; None where a sample has no one class."""
    labels = [client.samples.y for client in run.clients]
    if any(y.dim() > 1 for y in labels):
        return None
    return torch.stack([y.bincount(minlength=run.task.classes).cpu() for y in labels])


def _roles(run: LocalRun) -> list[str]:
    """active, frozen, both (roles change) or out (never drawn, or left out), by what was done so far."""
    frozen: list[set[bool]] = [set() for _ in run.clients]
    for epoch in range(run.progress.epoch):
        for turns in run.timetable.rounds(epoch):
            for turn in turns:
                frozen[turn.client].add(turn.frozen)
    names = {frozenset(): "out", frozenset({True}): "frozen", frozenset({False}): "active"}
    return [names.get(frozenset(done), "both") for done in frozen]
