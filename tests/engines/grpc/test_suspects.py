"""Weights from the server are suspects: what no client made is refused, and honest runs are what they were."""

import pytest
from crooked import crooked, refused
from rehearsal import NAMES, Rehearsal, refuse_other_weights, rehearse, undisturbed
from toys import tiny_plan

from cutlayer.attacks.headswap import swapped
from cutlayer.core.errors import OffPlan
from cutlayer.core.message import Kind
from cutlayer.data.partitions import Dirichlet
from cutlayer.engines.grpc import certs
from cutlayer.engines.grpc.admission import Limits
from cutlayer.engines.grpc.session import Refused
from cutlayer.rules import FedAdam, Scaffold
from cutlayer.training.orders import weights_in
from cutlayer.training.plan.optimizers import SGD
from cutlayer.training.plan.roles import Frozen
from cutlayer.training.plan.schedule import SplitFed, Wave

RELAY = tiny_plan(clients=2, batch_size=8, epochs=2, val_share=0.2)
MERGED = tiny_plan(clients=2, batch_size=8, epochs=2, val_share=0.2, rounds=SplitFed())
LARGE = {"clients": 3, "batch_size": 4, "epochs": 2}


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    folder = tmp_path_factory.mktemp("authority") / "certs"
    certs.make(folder, ["127.0.0.1", "localhost"], NAMES)
    return folder


@pytest.fixture
def server(request, identities, tmp_path):
    with crooked(request.param, tmp_path, NAMES[:2], identities=identities) as found:
        yield found


def ways(server, weights, step):
    """All ways on which a server can hand on weights to the second client."""
    return {
        "a turn": lambda: server.turn(1, 0, step, step + 1, step, **weights),
        "an evaluation": lambda: server.evaluate(1, 0, 1, **weights),
        "the end": lambda: server.number(Kind.END, 1, 0, **weights),
    }


WAYS = ("a turn", "an evaluation", "the end")


@pytest.mark.parametrize("server", [RELAY], indirect=True)
@pytest.mark.parametrize("way", WAYS)
def test_a_swapped_head_is_refused_in_a_relay(server, way):
    brought = weights_in(server.turn(0, 0, 0, 1, 0))
    error = refused(server, ways(server, swapped(brought), 0)[way], client=1)
    assert isinstance(error, OffPlan) and "no client of this run has made them" in str(error)
    assert not any(message.client == 1 for message in server.heard)


@pytest.mark.parametrize("server", [RELAY], indirect=True)
def test_what_was_made_is_followed_but_no_older_round_and_nothing_without_a_seal(server):
    first = weights_in(server.turn(0, 0, 0, 1, 0))
    second = weights_in(server.turn(1, 0, 0, 1, 0, **first))
    third = weights_in(server.turn(0, 0, 1, 2, 1, **second))
    server.turn(1, 0, 1, 2, 1, **third)
    bare = {name: tensor for name, tensor in third.items() if not name.startswith("seal.")}
    assert "without a seal" in str(refused(server, lambda: server.turn(0, 0, 2, 3, 2, **bare)))
    assert "round 3, and round 4 was here" in str(refused(server, lambda: server.turn(1, 0, 2, 3, 2, **third), 1))


@pytest.mark.parametrize("server", [RELAY], indirect=True)
def test_a_rewind_leads_to_what_the_client_has_seen_itself(server):
    first = weights_in(server.turn(0, 0, 0, 1, 0))
    server.number(Kind.REWIND, 0, 0)
    server.turn(1, 0, 0, 1, 0, **first)
    again = weights_in(server.turn(0, 0, 0, 1, 0))
    assert all((tensor == first[name]).all() for name, tensor in again.items()), "the seal, too"


@pytest.mark.parametrize("server", [MERGED], indirect=True)
@pytest.mark.parametrize("way", WAYS)
def test_a_swapped_head_is_refused_where_rounds_are_merged(server, way):
    counts = server.host.coordinator.counts
    start = weights_in(server.turn(0, 0, 0, 0, 0, batches=counts))
    server.host.coordinator.shared = dict(start)
    for client in (0, 1):
        brought = weights_in(server.turn(client, 0, 0, 1, 0, batches=counts, **start))
    error = refused(server, ways(server, swapped(brought), 1)[way], client=1)
    assert isinstance(error, OffPlan) and "weights that have moved too far" in str(error)


@pytest.mark.parametrize("server", [MERGED], indirect=True)
def test_the_first_weights_are_a_clients_and_counts_are_sealed(server):
    counts = server.host.coordinator.counts
    start = weights_in(server.turn(0, 0, 0, 0, 0, batches=counts))
    false = counts.clone()
    false[0, 0] += 1
    error = refused(server, lambda: server.turn(0, 0, 0, 1, 0, batches=false, **start))
    assert "client 0 a number of batches that it has not sealed" in str(error)
    error = refused(server, lambda: server.turn(1, 0, 0, 1, 0, batches=counts, **swapped(start)), 1)
    assert "no client of this run has made them" in str(error)


HONEST = {
    "relay, early stopping": tiny_plan(
        **{**LARGE, "epochs": 4}, patience=1, val_share=0.2, client_optimizer=SGD(lr=0.5)
    ),
    "relay, frozen": tiny_plan(**LARGE, roles=Frozen(share=0.4, inherit=2)),
    "merged, uneven": tiny_plan(**LARGE, rounds=SplitFed(), partition=Dirichlet(alpha=0.4)),
    "merged, drawn": tiny_plan(**{**LARGE, "epochs": 3}, rounds=SplitFed(), clients_per_round=2, local_steps=2),
    "merged, early stopping": tiny_plan(**{**LARGE, "epochs": 4}, rounds=SplitFed(), patience=1, val_share=0.2),
    "FedAdam": tiny_plan(**LARGE, rounds=SplitFed(), rule=FedAdam(lr=0.05), local_steps=2),
    "SCAFFOLD": tiny_plan(
        **LARGE, rounds=SplitFed(version=2), rule=Scaffold(), client_optimizer=SGD(lr=0.05, momentum=0.0)
    ),
    "wave": tiny_plan(**LARGE, rounds=Wave()),
}


FEW = ("relay, early stopping", "merged, uneven", "merged, drawn")


@pytest.mark.parametrize(
    "plan",
    [pytest.param(plan, id=name, marks=[] if name in FEW else pytest.mark.campaign) for name, plan in HONEST.items()],
)
def test_an_honest_run_is_what_it_was(plan, identities, tmp_path):
    run = rehearse(plan, tmp_path, identities=identities)
    assert run.results["server"]["exact"]
    refuse_other_weights(undisturbed(plan), run)


def test_a_single_client_is_merged_with_itself(tmp_path):
    """It was told weights, and refused them as nothing of the plan's."""
    plan = tiny_plan(clients=1, batch_size=16, epochs=1, rounds=SplitFed())
    refuse_other_weights(undisturbed(plan), rehearse(plan, tmp_path, names=NAMES[:1]))


class Losing:
    """A watcher at the server: at certain messages the session of whoever sent them is gone."""

    def __init__(self, *at):
        self.at, self.seen, self.run = at, 0, None

    def __call__(self, message, handle):
        self.seen += 1
        if self.seen in self.at:
            self.run.host.connections[message.client].drop()
        return handle(message)


@pytest.mark.parametrize("name", ["relay, early stopping", "merged, uneven"])
def test_rewinds_lead_back_to_sealed_weights_and_change_nothing(name, identities, tmp_path):
    plan, losing = HONEST[name], Losing(9, 15, 16, 30)
    run = Rehearsal(plan, tmp_path, identities=identities, watchers=(losing,))
    losing.run = run
    for client in NAMES:
        run.join(client)
    run.serve()
    assert run.end()["exact"] and run.results["server"]["rewinds"] > 0
    refuse_other_weights(undisturbed(plan), run)
    assert sum(result["released"]["sent_again"] for result in run.results.values() if "released" in result) > 0


@pytest.mark.parametrize("plan", [tiny_plan(**LARGE), tiny_plan(**LARGE, rounds=SplitFed())], ids=["relay", "merged"])
def test_the_others_go_on_when_one_is_gone_for_good(plan, identities, tmp_path, patient_with):
    """Its turns since the snapshot are undone, and theirs come again from other weights: with the bytes they had."""
    patient_with("ward-a", "ward-c")

    def leaving(message, handle):
        if message.client == 1 and message.step == 2:
            run.host.connections[1].drop(Refused("unknown client", "gone for good"))
        return handle(message)

    run = Rehearsal(plan, tmp_path, Limits(every=12, deadline=1.0), identities=identities, watchers=(leaving,))
    for client in NAMES:
        run.join(client)
    run.serve()
    run.threads[3].join(60)
    assert [type(error).__name__ for error in run.errors] == ["Refused"]
    result = run.results["server"]
    assert not result["exact"] and {one["client"] for one in result["skipped"]} == {"ward-b"}
    assert set(result["ended"]) == {"ward-a", "ward-c"}
