"""Laws of detectors, of clients and of servers, beside a toy run."""

import json
from collections.abc import Sequence
from typing import Any

import torch

from ...core.errors import Halt
from ...core.message import Kind, Message
from ...core.seeds import generator
from ...detectors import Detector, ServerContext, ServerDetector, ServerWatch, Watch
from ...engines.local.run import LocalRun
from ...training.laws import TASK, need
from .toys import Skipped, toy_parts, toy_plan

SEEDS = (0, 1, 2)
CROWD, ROUNDS = 16, 10  # clients at a server's detector, and how often each sends: of few nobody knows their spread


def _run(seed: int, *detectors: Detector, at_server: Sequence[ServerDetector] = ()) -> LocalRun:
    clients = 3 if at_server else 1
    plan = toy_plan(
        seed=seed, client_detectors=detectors, server_detectors=tuple(at_server), clients=clients, epochs=3
    )
    run = LocalRun(plan, toy_parts(48, seed), classes=TASK.classes)
    run.train()
    return run


def silent_where_all_is_well(detector: Detector) -> None:
    """it is silent over an honest server, whatever the seed"""
    for seed in SEEDS:
        try:
            run = _run(seed, detector)
        except Halt as halt:
            raise AssertionError(f"it stops an honest run (seed {seed}): {halt}") from halt
        for _, watch in run.clients[0].detection.watches:
            watch.finish()
            need(not watch.alarm, f"it alarms over an honest server (seed {seed}): {watch.alarm}")


def changes_nothing(detector: Detector) -> None:
    """what is trained beside it is what is trained without it"""
    watched, blind = _run(0, detector), _run(0)
    if any(type(watch).probe is not Watch.probe for _, watch in watched.clients[0].detection.watches):
        raise Skipped("its probes take the place of steps")
    ours = {name: tensor for name, tensor in watched.tensors().items() if "watch." not in name}
    for name, tensor in blind.tensors().items():
        need(name in ours and torch.equal(ours[name], tensor), f"{name} is another with it: look, and draw, apart")


def no_server_is_told(detector: Detector) -> None:
    """no server is told of it"""
    watched, blind = toy_plan(client_detectors=(detector,)), toy_plan()
    same = watched.fingerprint() == blind.fingerprint() and watched.agreed() == blind.agreed()
    need(same, "the plan that is agreed on names it")
    need(watched.public() == blind.public(), "the plan that the server builds from names it")


def goes_on_from_a_snapshot(detector: Detector) -> None:
    """what it remembers can be laid down and taken up again"""
    run, other = _run(0, detector), LocalRun(
        toy_plan(client_detectors=(detector,), epochs=3), toy_parts(48), classes=TASK.classes
    )  # fmt: skip
    other.clients[0].load_state(run.clients[0].own_state())
    for (_, before), (_, after) in zip(
        run.clients[0].detection.watches, other.clients[0].detection.watches, strict=True
    ):
        kept, found = before.tensors(), after.tensors()
        need(
            kept.keys() == found.keys() and all(torch.equal(kept[name], found[name]) for name in kept),
            "load(tensors()) does not give tensors() back",
        )
        need(before.score == after.score or before.score is None, "its score is another after load(tensors())")


def watching(detector: ServerDetector) -> ServerWatch:
    """A watch of it at a toy server."""
    return detector.start(ServerContext(CROWD, CROWD, ROUNDS, ROUNDS, answers=True, seed=3))


def show(watch: ServerWatch, rounds: range, seed: int = 0, odd: int | None = None) -> ServerWatch:
    """Everybody sends a batch a round, alike but for chance, and the body answers; `odd` sends something else."""
    for step in rounds:
        draw = generator(1000 * seed + step)
        for client in range(CROWD):
            rows = torch.rand(20, 8, generator=draw) ** 3
            if client == odd:
                rows[:, 0] += 1
            message = Message(Kind.FORWARD, client, step, {"z": rows})
            answer = message.reply(u=2 * rows)
            kept = answer["u"].clone()
            got = watch(message, lambda _, answer=answer: answer)  # type: ignore[misc]
            need(got is answer and torch.equal(answer["u"], kept), "it changes what the server answers: hand it on")
        watch.turned(range(CROWD))
        watch.epoch_over()
    return watch


def silent_over_honest_clients(detector: ServerDetector) -> None:
    """it names nobody among honest clients, whatever the seed"""
    for seed in SEEDS:
        told = show(watching(detector), range(ROUNDS), seed).report()
        need(not told.get("suspects"), f"it suspects {told.get('suspects')} of honest clients (seed {seed})")


def server_changes_nothing(detector: ServerDetector) -> None:
    """what is trained beside it is what is trained without it, and no client is told"""
    watched, blind = _run(0, at_server=(detector,)), toy_plan(clients=3, epochs=3)
    same = watched.plan.fingerprint() == blind.fingerprint() and watched.plan.agreed() == blind.agreed()
    need(same, "the plan that is agreed on names it")
    alone = LocalRun(blind, toy_parts(48), classes=TASK.classes)
    alone.train()
    ours = watched.tensors()
    for name, tensor in alone.tensors().items():
        need(name in ours and torch.equal(ours[name], tensor), f"{name} is another with it")


def server_goes_on_from_a_snapshot(detector: ServerDetector) -> None:
    """what it remembers goes through JSON and back, and it goes on as if nothing had been"""
    whole, half = (show(watching(detector), range(some), odd=5) for some in (ROUNDS, 7))
    tensors, facts = half.snapshot()
    other = show(watching(detector), range(ROUNDS), odd=2)  # which is forgotten
    other.restore({name: tensor.clone() for name, tensor in tensors.items()}, json.loads(json.dumps(facts)))
    need(_same(other.report(), half.report()), "restore(snapshot()) reports something else")
    need(_same(show(other, range(7, ROUNDS), odd=5).report(), whole.report()), "restored, it goes on differently")


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return json.dumps(one, default=str) == json.dumps(other, default=str)


LAWS = (silent_where_all_is_well, changes_nothing, no_server_is_told, goes_on_from_a_snapshot)
SERVER_LAWS = (silent_over_honest_clients, server_changes_nothing, server_goes_on_from_a_snapshot)
