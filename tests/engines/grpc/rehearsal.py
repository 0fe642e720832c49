"""A deployment rehearsed in one process: a server and its clients as threads, over real sockets of the loopback."""

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from masked import TEXTS, text_parts
from toys import TASK, LinearNet, TinyNet, tiny_parts, tiny_plan

from cutlayer.core.message import Message, Watcher
from cutlayer.core.seeds import derive
from cutlayer.data.base import Parts
from cutlayer.engines.grpc.admission import Limits
from cutlayer.engines.grpc.channel import Address
from cutlayer.engines.grpc.client import DeployedClient
from cutlayer.engines.grpc.deploy import Service
from cutlayer.engines.grpc.server import GrpcServer
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import DPSGD, SEAL, WCC, Chain, Gate, LightSplit, Noise
from cutlayer.nets import TextEncoder
from cutlayer.nets.lora import LoRA
from cutlayer.rules import FedAdam, FedMuon, Median, Scaffold
from cutlayer.training.batches import task_of
from cutlayer.training.plan.optimizers import SGD, Adam
from cutlayer.training.plan.plan import Plan
from cutlayer.training.plan.roles import Frozen, SendOnce
from cutlayer.training.plan.schedule import Relay, SplitFed, Turn, Wave
from cutlayer.training.plan.shapes import cut_shapes
from cutlayer.training.protocols import Bypass, Vanilla

NAMES = ("ward-a", "ward-b", "ward-c")
PATIENCE = 60.0  # seconds after which a rehearsal that does not end has failed
BUILDING = threading.Lock()  # networks start from torch's one generator, which parties of one process share
OPEN: list["Rehearsal"] = []  # begun, and to be closed when their test is over
SEALED = 200  # bytes that a seal adds to a message at most
COUNTED = ("FORWARD", "BACKWARD", "LOSS", "WEIGHTS", "TURN")

# What the fault campaign trains. Early stopping comes with its best epoch, and own heads with state of their own.
_LONG = {"clients": 3, "batch_size": 4, "epochs": 6}
FAULTED = {
    "U-shaped, chain": tiny_plan(**_LONG, guard=Chain(LightSplit(ratio=4), WCC(weight=0.17)), local_steps=2),
    "vanilla, Adam": tiny_plan(**_LONG, protocol=Vanilla(), client_optimizer=Adam(), server_optimizer=Adam()),
    "bypass, noise": tiny_plan(**_LONG, protocol=Bypass(), guard=Noise(scale=0.1), net=TinyNet(dropout=0.3)),
    "own heads, early stopping": tiny_plan(
        **{**_LONG, "epochs": 12},
        shared_client_network=False,
        patience=3,
        val_share=0.2,
        client_optimizer=SGD(lr=0.5),
        guard=SEAL(),
    ),
    "relay, early stopping": tiny_plan(
        **{**_LONG, "epochs": 12}, patience=3, val_share=0.2, client_optimizer=SGD(lr=0.5)
    ),
    "SplitFed, Adam at the server": tiny_plan(**_LONG, rounds=SplitFed(), rule=FedAdam(lr=0.05), local_steps=2),
    "control variates, one body": tiny_plan(
        **_LONG, rounds=SplitFed(version=2), rule=Scaffold(), client_optimizer=SGD(lr=0.05, momentum=0.0)
    ),
    "a wave, own heads": tiny_plan(**_LONG, rounds=Wave(), shared_client_network=False, client_optimizer=Adam()),
    "frozen clients": tiny_plan(**_LONG, roles=Frozen(share=0.4, inherit=2), protocol=Vanilla()),
    "adapters over a frozen base": tiny_plan(
        **_LONG, net=LinearNet(), adapters=LoRA(rank=2, at="query"), client_optimizer=Adam(), rounds=SplitFed()
    ),
    "adapters of unequal ranks": tiny_plan(
        **_LONG, net=LinearNet(), adapters=LoRA(rank=(1, 3), at="query"), rounds=SplitFed(), local_steps=2
    ),
    "adapters of a transformer": tiny_plan(
        **_LONG,
        net=TextEncoder(layers=2, width=8, heads=2, at=1, vocabulary=TEXTS.vocabulary, pad="mask"),
        adapters=LoRA(rank=2),
        client_optimizer=Adam(),
        server_optimizer=Adam(),
    ),
    "sent once": tiny_plan(
        **{**_LONG, "batch_size": 8},
        guard=Gate(numbers=6, bits=2, budget=2000, hidden=8),
        roles=SendOnce(split=2, views=2),  # all epochs with the server: its table of steps has each
    ),
    "DP-SGD": tiny_plan(**_LONG, guard=DPSGD(), net=TinyNet(norm="group")),
    "learnt at home, sent once": tiny_plan(
        **_LONG, guard=Gate(numbers=6, bits=1, hidden=8, home=1.0), roles=SendOnce(home=1, split=1, views=1)
    ),
    "a fused wave": tiny_plan(**_LONG, rounds=Wave(fused=True), net=TinyNet(norm="group"), guard=LightSplit(ratio=4)),
    "frozen clients in a wave": tiny_plan(**_LONG, roles=Frozen(share=0.4), rounds=Wave(), protocol=Vanilla()),
    "SplitFed, a robust merge": tiny_plan(**_LONG, rounds=SplitFed(), rule=Median()),
    "ahead": tiny_plan(
        **_LONG, rounds=Relay(ahead=1), local_steps=3, guard=Noise(scale=0.1), client_optimizer=Adam()
    ),
    "one body, drawn clients, Muon": tiny_plan(
        **_LONG, rounds=SplitFed(version=2), rule=FedMuon(), clients_per_round=2
    ),
}


def parts_of(plan: Plan) -> Parts:
    """Texts for a network that reads them, pictures for all others."""
    return text_parts() if isinstance(plan.net, TextEncoder) else tiny_parts()


def undisturbed(plan: Plan, parts: Parts | None = None, watchers: Sequence[Watcher] = ()) -> LocalRun:
    """The same plan in one process, at its best epoch where it keeps one."""
    run = LocalRun(plan, parts or parts_of(plan), classes=TASK.classes, at_server=watchers)
    assert run.train()
    run.use_best()
    return run


def undisturbed_but_for(plan: Plan, skipped: Collection[tuple[int, int, int]]) -> LocalRun:
    """The plan in one process, but these turns (client, epoch, first batch) never happen. Unlike a plan in which a
    client has no data, it keeps its place in whatever is drawn over all of them."""
    run = LocalRun(plan, tiny_parts(), classes=TASK.classes)
    ask_all = run.carrier.ask_all

    def ask_those_there(turns: Sequence[Turn]) -> list[Message | None]:
        epoch = run.progress.epoch
        there = [one for one in turns if one.first == one.last or (one.client, epoch, one.first) not in skipped]
        found = zip(there, ask_all(there), strict=True) if there else ()
        brought = {turn.client: done for turn, done in found}
        return [brought.get(turn.client) for turn in turns]

    run.carrier.ask_all = ask_those_there  # type: ignore[method-assign]
    assert run.train()
    return run


def share(plan: Plan, parts: Parts, number: int) -> Parts:
    """What one client has of the data."""
    shares = plan.partition.assign(parts.private, plan.clients, derive(plan.seed, "partition"))
    return replace(parts, private=parts.private[shares[number]])


def open_site(
    plan: Plan, name: str, address: Address, folder: Path, parts: Parts, give_up: float = 30.0
) -> DeployedClient:
    """A client that has enrolled and read its data."""
    site = DeployedClient(plan, name, replace(address, give_up=give_up), folder)
    number = site.enrol()
    with BUILDING:
        site.prepare(number, task_of(parts.private, TASK.classes), share(plan, parts, number), own_data=False)
    return site


@dataclass
class Rehearsal:
    """A service and clients that can be started one by one; errors of any thread come out at `end`."""

    plan: Plan
    folder: Path
    limits: Limits = field(default_factory=lambda: Limits(every=3, deadline=20.0))
    parts: Parts = field(default_factory=tiny_parts)
    names: tuple[str, ...] = NAMES
    identities: Path | None = None  # a folder of `cutlayer certs`
    quiet: float = 20.0  # as the clients have it; the server has it among its limits
    through: Callable[[int], int] = lambda port: port  # a relay in front of the server's port
    watchers: tuple = ()

    def __post_init__(self) -> None:
        own = self.identities / "server" if self.identities else None
        self.service = Service(
            self.plan, self.names, self.folder / "server", listen="127.0.0.1:0", identity=own, limits=self.limits,
            at_server=self.watchers,
        )  # fmt: skip
        # What is looked at once and remembered draws numbers too: now, and not beside a client that builds.
        cut_shapes(self.plan.public(), task_of(self.parts.private, TASK.classes))
        OPEN.append(self)
        self.port = self.through(self.service.network.port)
        self.sites: dict[str, DeployedClient] = {}
        self.results: dict[str, dict] = {}
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    @property
    def host(self) -> GrpcServer:
        assert self.service.host is not None
        return self.service.host

    def address(self, name: str) -> Address:
        from cutlayer.engines.grpc import certs

        own = certs.read_identity(self.identities / name, "client") if self.identities else None
        host = "localhost" if own else "127.0.0.1"
        return Address(f"{host}:{self.port}", own, quiet=self.quiet)

    def join(self, name: str, give_up: float = 30.0) -> threading.Thread:
        def work() -> None:
            site = open_site(self.plan, name, self.address(name), self.folder / name, self.parts, give_up)
            self.sites[name] = site
            self.results[name] = site.run()

        return self._start(work)

    def serve(self) -> threading.Thread:
        def work() -> None:
            self.results["server"] = self.service.run()

        return self._start(work)

    def _start(self, work: Callable[[], None]) -> threading.Thread:
        def watched() -> None:
            try:
                work()
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=watched, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def end(self, patience: float = PATIENCE) -> dict:
        """Wait for everybody; the server's result."""
        for thread in self.threads:
            thread.join(patience)
            assert not self.errors, self.errors
            assert not thread.is_alive(), f"not over after {patience} s: {self.service.status()}"
        return self.results["server"]


def close_all() -> None:
    """Whoever still waits gives up now: in the middle of a step it would put torch's generator back, much later."""
    while OPEN:
        run = OPEN.pop()
        for site in run.sites.values():
            site.channel.give_up = 0.0
        run.service.stop()
        run.service.network.stop(grace=0.0)
        for thread in run.threads:
            thread.join(10)


def rehearse(plan: Plan, folder: Path, **options) -> Rehearsal:
    """From the first connection to the last, with nothing in the way."""
    rehearsal = Rehearsal(plan, folder, **options)
    for name in rehearsal.names:
        rehearsal.join(name)
    rehearsal.serve()
    rehearsal.end()
    return rehearsal


def refuse_other_weights(local: LocalRun, rehearsal: Rehearsal) -> None:
    """Everything that training changes is the same, bit for bit, on all sides."""
    ours, theirs = local.tensors(), rehearsal.host.coordinator.tensors()
    theirs.pop("shared/seal.relay", None)  # in one process nobody seals anything
    for site in rehearsal.sites.values():
        assert site.party is not None
        number, state = site.party.number, site.party.own_state()
        theirs |= {f"client{number}/{name}": tensor for name, tensor in state.items()}
        if local.coordinator.shared:  # every client ends with what the last one brought back
            ours |= {f"client{number}/{name}": tensor for name, tensor in local.coordinator.shown(number).items()}
    refuse_other_tensors(ours, theirs)


def refuse_other_tensors(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    differ = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert not differ, f"{len(differ)} of {len(ours)} tensors differ: {differ[:5]}"


def refuse_other_counts(local: LocalRun, rehearsal: Rehearsal) -> None:
    """The same steps, the same validation, and the same messages of the same sizes: nothing was done twice."""
    host = rehearsal.host
    assert (host.progress.step, host.progress.taken, host.progress.epoch) == (
        local.progress.step,
        local.progress.taken,
        local.progress.epoch,
    )
    assert [row.get("val") for row in host.progress.history] == [row.get("val") for row in local.progress.history]
    refuse_other_crossings(local, host.ledger.as_dict(), sealed=rehearsal.identities is not None)


def refuse_other_crossings(local: LocalRun, theirs: dict, sealed: bool) -> None:
    """As many messages of every kind, and of the same sizes. With certificates weights have seals besides, and who is
    not drawn for the first round is shown the first of them."""
    here, there = crossings(local.ledger.as_dict()), crossings(theirs)
    shown = local.plan.clients - (local.plan.clients_per_round or local.plan.clients)
    for key in [key for key in here if sealed and key[0] == "WEIGHTS"]:
        (count, least), (messages, most) = here.pop(key), there.pop(key)
        most_besides = SEALED * messages + shown * least // count
        assert messages == count + shown and least <= most <= least + most_besides, (key, count, messages)
    assert there == here


def crossings(ledger: dict, kinds: tuple[str, ...] = COUNTED) -> dict:
    """Messages and bytes by kind and direction."""
    return {
        (row["kind"], row["direction"]): (row["messages"], row["bytes"])
        for row in ledger["rows"]
        if row["kind"] in kinds
    }
