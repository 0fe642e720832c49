"""The server's detectors over sockets: what they say is what they say in one process."""

import json

import pytest
from rehearsal import NAMES, rehearse, undisturbed
from toys import tiny_plan

from cutlayer.data.poisons import BadNets
from cutlayer.detectors import ConsensusCosine
from cutlayer.training.plan.schedule import Relay, SplitFed, Wave


@pytest.mark.parametrize("rounds", [Relay(), Wave(), SplitFed()], ids=repr)
def test_over_sockets_as_in_one_process(rounds, tmp_path):
    watch = (ConsensusCosine(window=1, shuffles=49), ConsensusCosine(signature="input", threshold=3.0))
    plan = tiny_plan(
        clients=3, epochs=2, batch_size=6, rounds=rounds, server_detectors=watch, poison=BadNets(clients=1)
    )
    local = undisturbed(plan)
    found = rehearse(plan, tmp_path, names=NAMES[:3]).results["server"]["server_detectors"]
    assert found == [one.report() for one in local.coordinator.watches]
    assert all(one["rounds"] for one in found)
    kept = json.loads((tmp_path / "server" / "result.json").read_text())["server_detectors"]
    assert [one["alarms"] for one in kept] == [one["alarms"] for one in found]
