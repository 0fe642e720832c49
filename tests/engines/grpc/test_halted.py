"""A deployed client that its detectors stop: it leaves by itself, and the others go on."""

import json
from dataclasses import replace

import pytest
from rehearsal import NAMES, Rehearsal, refuse_other_weights, rehearse, undisturbed
from toys import tiny_plan

from cutlayer.core.errors import Halt
from cutlayer.core.message import Kind
from cutlayer.detectors import OutlierGradients
from cutlayer.engines.grpc import deploy
from cutlayer.engines.grpc.admission import Limits
from cutlayer.engines.grpc.channel import Address
from cutlayer.training import checkpoint

WATCH = (OutlierGradients(rehearsal=20, window=2),)


class Hijacker:
    """To client 1 it answers with gradients of its own liking; to the others it is honest."""

    def __init__(self):
        self.z, self.heard = None, []

    def __call__(self, message, handle):
        answer = handle(message)
        if message.client != 1:
            return answer
        self.heard.append(message)
        if "z" in message.tensors:
            self.z = message["z"]
        return message.reply(dz=30 * self.z) if message.kind is Kind.BACKWARD else answer


def test_a_client_that_is_hijacked_leaves_and_the_others_go_on(tmp_path, patient_with):
    patient_with("ward-a", "ward-c")
    evil = Hijacker()
    plan = tiny_plan(clients=3, batch_size=4, epochs=3, shared_client_network=False, client_detectors=WATCH)
    run = Rehearsal(plan, tmp_path, Limits(every=3, deadline=1.0), watchers=(evil,))
    for name in NAMES:
        run.join(name)
    server = run.serve()
    server.join(60)
    assert not server.is_alive()
    (error,) = run.errors
    assert isinstance(error, Halt) and error.exit_code == 5 and "client 1 has stopped: OutlierGradients" in str(error)
    result = run.results["server"]
    assert {one["client"] for one in result["skipped"]} == {"ward-b"} and not result["exact"]
    assert run.results["ward-a"]["steps"] == run.results["ward-c"]["steps"] == 12  # nobody else missed a step
    own = tmp_path / "ward-b"
    why = json.loads((own / "halted.json").read_text())
    steps = why["step"]
    assert 2 <= steps < 12 and why["detectors"][0]["alarm"] and why["why"] in str(error)
    last = evil.heard[-1]
    assert (last.kind, last.step) == (Kind.BACKWARD, steps - 1)  # nothing after the step that gave it away
    state, facts = checkpoint.load(own / "halted.safetensors")
    assert facts["steps"] == steps and any(name.startswith("net.head") for name in state)
    rows = [json.loads(line) for line in (own / "history.jsonl").read_text().splitlines()]
    assert rows[-1]["halted"] == why["why"] and "OutlierGradients" in rows[-1]
    with pytest.raises(Halt, match="delete"):
        deploy.join(plan, "ward-b", own, address=Address("127.0.0.1:1"))


def test_honest_servers_keep_their_clients_and_scores_are_those_of_one_process(tmp_path):
    plan = tiny_plan(
        clients=3, batch_size=4, epochs=2, client_detectors=(replace(WATCH[0], threshold=0.99, window=3),)
    )
    run = rehearse(plan, tmp_path)
    local = undisturbed(plan)
    refuse_other_weights(local, run)
    for site in run.sites.values():
        client = local.clients[site.party.number]
        assert site.party.detection.report() == client.detection.report() != []
    assert "detectors" in run.results["ward-a"] and "detectors" not in run.results["server"]
