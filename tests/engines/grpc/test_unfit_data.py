"""A client that its own data keep from taking part says so: else the server would wait for it and never say why."""

import json

import pytest
from toys import SECRET

from cutlayer.data import Digits, Table
from cutlayer.engines.grpc.audit_log import AUDIT_LOG
from cutlayer.engines.grpc.channel import Address
from cutlayer.engines.grpc.deploy import Service, join
from cutlayer.guards import KAnonymous, LightSplit
from cutlayer.nets import MLP
from cutlayer.training.plan.plan import Plan

NARROW = Plan(data=Digits(limit=40), guard=LightSplit(ratio=100_000), private_seed=SECRET)
GROUPS = Plan(data=Digits(limit=40), guard=KAnonymous(k=32), private_seed=SECRET)


def refusals(plan, folder, data=None):
    """What the client raises, and what the server's log says of it."""
    service = Service(plan.public(), ["client-0"], folder / "server", listen="127.0.0.1:0", identity=None)
    try:
        address = Address(f"127.0.0.1:{service.network.port}", give_up=2.0)
        with pytest.raises(ValueError) as raised:
            join(plan, "client-0", folder / "client", address=address, data=data)
    finally:
        service.close()
    lines = [json.loads(line) for line in (folder / "server" / AUDIT_LOG).read_text().splitlines()]
    return str(raised.value), [line["text"] for line in lines if line["event"] == "refused"]


def test_a_cut_that_does_not_fit_the_data_is_told_of_at_the_server(tmp_path):
    raised, (said,) = refusals(NARROW, tmp_path)
    assert "LightSplit(ratio=100000)" in raised
    assert "the plan does not fit data of (1, 28, 28), 10 classes" in said and raised in said


def test_what_else_is_wrong_with_its_data_stays_with_the_client(tmp_path):
    (tmp_path / "own.csv").write_text("age,risk\n41,high\n52,low\n")
    plan = Plan(net=MLP(widths=(4, 4)), private_seed=SECRET)
    raised, (said,) = refusals(plan, tmp_path, Table(path=str(tmp_path / "own.csv"), target="sex"))
    assert "sex" in raised
    assert said == "client-0 agreed to the plan and cannot take part with its data: its own last line says why"


def test_too_few_samples_are_told_of_without_their_number(tmp_path):
    raised, (said,) = refusals(GROUPS, tmp_path)
    assert "KAnonymous" in raised and "cannot take part with its data" in said
