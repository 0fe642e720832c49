"""Clients of one process: of very many, only those used last have a network in memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

from torch import Tensor

from ...core.state import State, load_optimizer, unfix
from ...guards import NoGuard
from ...rules.base import NET, OPTIMIZER
from ...training.build import build_client, build_remote
from ...training.client import Client
from ...training.faster import AS_ALWAYS, Faster
from ...training.step import ClientNetwork, export, load
from .asleep import Asleep, Layout, Seat

AWAKE = 32  # client networks in memory at once


class PooledClient(Client):
    """A client that can give its network up, and has it back when it is needed."""

    def __init__(self, *given: Any, spares: list[Seat], faster: Faster = AS_ALWAYS):
        """`spares`: networks without an owner. Where one lies, none needs to be built."""
        super().__init__(*given)
        self.spares, self._faster = spares, faster
        self._seat: Seat | None = None
        self._remote = build_remote(self.plan, self.number, self.uplink.send)
        self._steps, self._peaks, self._asleep = 0, dict[str, float](), Asleep()
        self._whole = False  # whether its frozen parts are not those it was built with

    @property
    def awake(self) -> bool:
        return self._network is not None

    @property
    def network(self) -> ClientNetwork:
        """Its network; built, or woken up, when it is first asked for."""
        return self._network if self._network is not None else self._woken(known=False)

    def _network_to_fill(self) -> ClientNetwork:
        # One that another client gave up will do.
        return self._network if self._network is not None else self._woken(known=True)

    def _woken(self, known: bool) -> ClientNetwork:
        """With `known`, all weights will be replaced."""
        if self._asleep.layout and self.spares and self._interchangeable and self.spares[-1].take_up(self._asleep):
            self._asleep = Asleep()
            return self._seated(self.spares.pop())
        state, self._asleep = self._asleep.state(self.device), Asleep()
        whole = any(name.startswith(NET) for name in state)
        network = self._built(known or whole)
        if whole:
            load(network, state)
        elif state:
            load_optimizer(network.optimizer, state)
        return network

    def _built(self, known: bool) -> ClientNetwork:
        if known and self.spares and self._interchangeable:
            load_optimizer(self.spares[-1].network.optimizer, {})
            return self._seated(self.spares.pop())
        self.spares.clear()
        network = build_client(self.plan, self.task, self.number, self.uplink.send, self.device)
        self._faster.prepare(network.split.head, network.split.tail)
        return self._begun(network)

    def _seated(self, seat: Seat) -> ClientNetwork:
        """The network of a seat, from now on this client's."""
        left = seat.network
        seat.network = ClientNetwork(self.number, left.split, left.optimizer, self._remote)
        self._seat = seat
        return self._begun(seat.network)

    def _begun(self, network: ClientNetwork) -> ClientNetwork:
        if self._whole:
            unfix(network.split)
            self._seat = None  # it has no place for what was fixed
        network.steps, network.peaks = self._steps, self._peaks
        network.remote.continue_at(self._steps * self.plan.micro_batches)
        self._network = network
        return network

    @property
    def _interchangeable(self) -> bool:
        """Whether its network may be another client's: a guard may hold secrets, or be lacking there."""
        own_base = self.plan.fixed_parts and not self.plan.shared_client_network
        return isinstance(self.plan.guard_of(self.number), NoGuard) and not own_base and not self.plan.unequal_ranks

    def keep_whole(self) -> None:
        """Its frozen parts are about to be replaced: from now on they are kept like the others."""
        self._whole = True
        if self._network is not None:
            unfix(self._network.split)
            self._seat = None

    def sleep(self, layout: Layout, keeps: bool) -> None:
        """Give the network up; with `keeps`, what it has learnt is laid down in one piece of memory."""
        if self._network is not None:
            self._steps, self._peaks = self._network.steps, self._network.peaks
            seat = self._seat or Seat(self._network, layout)
            if keeps and seat.holds:
                self._asleep = seat.lay_down()
            else:
                kept = self._optimizer_state() if self.plan.keeps_optimizers else {}
                stays = export(self._network, copies=False) if keeps else kept
                self._asleep = Asleep.of(stays, layout) if stays else Asleep()
            if self._interchangeable and not self.spares and not self.plan.client_detectors:
                self.spares.append(seat)
            self._network = self._seat = None
        if self.own.share is not None:
            self._samples = None
        self._epoch = None

    @property
    def steps(self) -> int:
        return self._steps if self._network is None else self._network.steps

    @property
    def peaks(self) -> dict[str, float]:
        return self._peaks if self._network is None else self._network.peaks

    def own_state(self) -> State:
        state = self._asleep.state(self.device)
        if self._network is not None or not state:
            return super().own_state()
        return state | self.memory()

    def _optimizer_state(self) -> State:
        if self._network is not None:
            return super()._optimizer_state()
        return {name: t for name, t in self._asleep.state(self.device).items() if name.startswith(OPTIMIZER)}

    def _load_network(self, state: State) -> None:
        if state or self.awake:
            super()._load_network(state)
        else:
            self._asleep = Asleep()

    def continue_at(self, steps: int) -> None:
        self._steps = steps
        if self._network is not None:
            super().continue_at(steps)


class ClientPool(Sequence[PooledClient]):
    """All clients of a run; `awake(number)` before a client's network is needed."""

    def __init__(self, clients: Sequence[PooledClient]):
        self._clients, self._layout = list(clients), Layout()
        self._used: dict[int, None] = {}  # those with a network in memory, the one used last at the end

    def __len__(self) -> int:
        return len(self._clients)

    @overload
    def __getitem__(self, place: int) -> PooledClient: ...
    @overload
    def __getitem__(self, place: slice) -> list[PooledClient]: ...
    def __getitem__(self, place: int | slice) -> PooledClient | list[PooledClient]:
        return self._clients[place]

    def __iter__(self) -> Iterator[PooledClient]:
        return iter(self._clients)

    def awake(self, number: int, keeps: bool, all_of_them: bool = False) -> PooledClient:
        """This client, whose network is needed now. Others are put to sleep; they keep what is their own alone.

        `keeps`: a client's network is more than what is shared. `all_of_them` are needed to the end of a round.
        """
        self._used.pop(number, None)
        self._used[number] = None
        while len(self._used) > AWAKE and not all_of_them:
            oldest = next(iter(self._used))
            del self._used[oldest]
            self._clients[oldest].sleep(self._layout, keeps=keeps)
        return self._clients[number]

    def peaks(self) -> dict[str, float]:
        """The largest value of each term of the loss, of all clients."""
        names = {name for client in self._clients for name in client.peaks}
        return {name: max(client.peaks.get(name, 0.0) for client in self._clients) for name in sorted(names)}

    def tensors(self, keeps: bool) -> State:
        """Everything of the clients that a next turn depends on."""
        return dict(self.own_tensors(keeps))

    def own_tensors(self, keeps: bool) -> Iterator[tuple[str, Tensor]]:
        """The same one by one: to be looked at, in the memory of one client."""
        for client in self._clients:
            own = client.own_state() if keeps else client.memory()
            if client.awake:
                self.awake(client.number, keeps)
            yield from ((f"client{client.number}/{name}", t) for name, t in own.items())

    def load(self, tensors: Mapping[str, Tensor], shown: Callable[[int], State] | None) -> None:
        """Go back to what `tensors` once was; where clients keep nothing, they have what they are `shown`."""
        found: dict[str, State] = {}
        for key, tensor in tensors.items():
            party, name = key.split("/", 1)
            found.setdefault(party, {})[name] = tensor
        for client in self._clients:
            client.load_state(found.get(f"client{client.number}", {}))
            if client.awake:
                if shown is not None:
                    load(client.network, {name: t.to(client.device) for name, t in shown(client.number).items()})
                self.awake(client.number, keeps=shown is None)
