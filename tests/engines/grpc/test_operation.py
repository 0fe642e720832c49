"""Running a deployment: status, metrics, logs, predictions, exit codes, and folders that are somebody else's."""

import io
import json
import logging
import socket
import urllib.request
from dataclasses import replace

import pytest
import torch
from rehearsal import Rehearsal, rehearse, undisturbed
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.cli import app as cli
from cutlayer.cli.deploy import status_lines
from cutlayer.core.batch import Batch
from cutlayer.engines.grpc.channel import Address, GaveUp, status
from cutlayer.engines.grpc.deploy import Service, join, summary
from cutlayer.engines.grpc.health import start_health
from cutlayer.engines.grpc.logs import Facts, start_logs
from cutlayer.engines.grpc.session import Refused
from cutlayer.engines.grpc.visitor import PredictOnlyClient
from cutlayer.guards import LightSplit
from cutlayer.training.build import build_client
from cutlayer.training.protocols import Alone, UShaped, Vanilla
from cutlayer.training.step import load, predict
from cutlayer.wire.ledger import Ledger

NAMES = ("ward-a", "ward-b")
PLAN = tiny_plan(epochs=1, batch_size=8, clients=2, guard=LightSplit(ratio=4))


@pytest.fixture
def lines():
    """What the parties say, as JSON."""
    text = io.StringIO()
    handler, logger = logging.StreamHandler(text), logging.getLogger("cutlayer")
    handler.setFormatter(Facts("json"))
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in text.getvalue().splitlines()]
    logger.removeHandler(handler)
    logger.setLevel(level)


def staying(plan, folder):
    """A run that is over, with a server that still answers."""
    rehearsal = Rehearsal(plan, folder, names=NAMES)
    work = rehearsal.service.run
    rehearsal.service.run = lambda: work(stay=True)
    serving = rehearsal.serve()
    joined = [rehearsal.join(name) for name in NAMES]
    for thread in joined:
        thread.join(60)
    assert not rehearsal.errors
    return rehearsal, serving


@pytest.mark.parametrize("protocol", [UShaped(), Vanilla()], ids=repr)
def test_predictions_of_a_visitor_are_those_of_the_local_network(protocol, tmp_path):
    plan = replace(PLAN, protocol=protocol)
    local = undisturbed(plan)
    load(local.networks[0], local.coordinator.shared)
    rehearsal, serving = staying(plan, tmp_path)
    test = tiny_parts().test
    batches = [Batch(test.x[:20], test.y[:20], seed=1), Batch(test.x[20:], test.y[20:], seed=2)]
    with PredictOnlyClient(plan, TASK, "ward-b", rehearsal.address("ward-b"), ledger := Ledger()) as visitor:
        client = build_client(plan, TASK, visitor.number, visitor.ask)
        load(client, local.coordinator.shared)
        found = predict(client, batches)
        rehearsal.service.network._came.clear()
        # A broken connection between two questions is no reason to fail.
        visitor._channel._channel.close()
        again = predict(client, batches)
    rehearsal.service.stop()
    serving.join(30)
    assert torch.equal(found, predict(local.networks[0], batches)) and torch.equal(found, again)
    assert ledger.messages["PREDICT", "up"] == 4 and ledger.bytes["PREDICT", "down"] > 0
    assert not rehearsal.errors


def test_status_and_metrics_tell_how_it_stands(tmp_path):
    rehearsal, serving = staying(PLAN, tmp_path)
    port = start_health("127.0.0.1:0", rehearsal.service.status).server_port
    facts = status(rehearsal.address("ward-a"))
    assert (facts["state"], facts["epoch"], facts["step"]) == ("finished", 1, rehearsal.host.progress.step)
    assert facts["plan"] == PLAN.fingerprint() and facts["exact"] and facts["accuracy"] is not None
    text = "\n".join(status_lines(facts))
    assert "epoch 1 of 1" in text and "ward-b" in text and "waits for it" not in text
    hanging_up = facts | {"clients": [one | {"connected": True} for one in facts["clients"]]}
    for seen in (facts, hanging_up):  # whoever asks a moment after the end finds a connection still open
        assert all(" done " in line for line in status_lines(seen)[3:])
    get = lambda path: urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10).read().decode()  # noqa: E731
    assert json.loads(get("/healthz")) == {"state": "finished", "missing": []}
    metrics = get("/metrics")
    rows = {row["kind"]: row["bytes"] for row in facts["ledger"]["rows"] if row["direction"] == "up"}
    assert f'cutlayer_bytes_total{{direction="up",kind="FORWARD"}} {float(rows["FORWARD"])}' in metrics
    assert f"cutlayer_step {float(facts['step'])}" in metrics
    rehearsal.service.stop()
    serving.join(30)


def test_status_names_who_never_came(tmp_path):
    service = Service(PLAN, NAMES, tmp_path, listen="127.0.0.1:0", identity=None)
    try:
        facts = status(Address(f"127.0.0.1:{service.network.port}"))
        assert facts["state"] == "waiting" and facts["missing"] == list(NAMES)
        assert status_lines(facts)[1] == "never came: ward-a, ward-b"
    finally:
        service.network.stop()


def test_logs_hold_events_and_no_contents(tmp_path, lines):
    rehearsal = Rehearsal(PLAN, tmp_path, names=NAMES)
    for name in NAMES:
        rehearsal.join(name)
    rehearsal.serve()
    rehearsal.end()
    said = lines()
    assert {"met", "new session"} <= {line["event"] for line in said}
    assert all(isinstance(value, str | int | float | bool) for line in said for value in line.values())
    assert all(len(json.dumps(line)) < 600 for line in said)
    assert str(PLAN.private_seed) not in json.dumps(said)


def test_a_form_of_logs_that_there_is_not():
    with pytest.raises(ValueError, match="text or json"):
        start_logs("xml")


def test_only_loopback_goes_without_certificates(tmp_path):
    for target in ("10.0.0.5:7443", "server.example.org:7443", "0.0.0.0:7443", "[::]:7443"):
        with pytest.raises(ValueError, match="loopback only"):
            Address(target)
        with pytest.raises(ValueError, match="loopback only"):
            Service(PLAN, NAMES, tmp_path / "s", listen=target, identity=None)
    for target in ("127.0.0.1:1", "localhost:1", "[::1]:1"):
        Address(target)


def test_a_folder_of_another_plan_or_of_something_else_is_refused(tmp_path):
    service = Service(PLAN, NAMES, tmp_path / "s", listen="127.0.0.1:0", identity=None)
    service.network.stop()
    with pytest.raises(ValueError, match="belongs to another plan"):
        Service(replace(PLAN, epochs=9), NAMES, tmp_path / "s", listen="127.0.0.1:0", identity=None)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("chapter 1")
    with pytest.raises(FileExistsError, match="not empty"):
        Service(PLAN, NAMES, tmp_path / "mine", listen="127.0.0.1:0", identity=None)
    with pytest.raises(ValueError, match="the plan has 2 clients"):
        Service(PLAN, ("one",), tmp_path / "t", listen="127.0.0.1:0", identity=None)


def test_a_server_that_comes_back_has_its_clients_in_their_order(tmp_path):
    """They have their numbers by it: both were sent away with a word about a REWIND, and the server waited."""

    def serve(*names):
        Service(PLAN, names, tmp_path / "server", listen="127.0.0.1:0", identity=None).close()

    serve("wrad-a", "ward-b")
    serve(*NAMES)  # nobody had come yet
    rehearse(PLAN, tmp_path, names=NAMES)
    for names in (NAMES[::-1], ("ward-a", "ward-c")):
        with pytest.raises(
            ValueError, match="begun with the clients ward-a, ward-b, in this order: name them so, or"
        ):
            serve(*names)
    serve(*NAMES)


def test_clients_that_learn_alone_are_neither_served_nor_joined(tmp_path):
    plan = tiny_plan(protocol=Alone(), clients=2, shared_client_network=False)
    with pytest.raises(ValueError, match="nothing is learnt together"):
        Service(plan, NAMES, tmp_path / "s", listen="127.0.0.1:0", identity=None)
    with pytest.raises(ValueError, match=r"nothing to serve or to join.*cutlayer train"):
        join(plan, NAMES[0], tmp_path / "j", address=Address("127.0.0.1:1"))
    assert not list(tmp_path.iterdir())


def test_a_port_that_is_taken_is_said(tmp_path):
    service = Service(PLAN, NAMES, tmp_path / "s", listen="127.0.0.1:0", identity=None)
    try:
        with pytest.raises(OSError, match="the port is taken"):
            Service(PLAN, NAMES, tmp_path / "t", listen=f"127.0.0.1:{service.network.port}", identity=None)
    finally:
        service.network.stop()


@pytest.mark.parametrize("own", ["127.0.0.1", "::1"])
def test_a_port_that_a_stranger_has_on_one_address_of_a_name_is_taken(own, tmp_path):
    """Else clients that try that address first come to the stranger."""
    try:
        stranger = socket.create_server((own, 0), family=socket.AF_INET6 if ":" in own else socket.AF_INET)
    except OSError:
        pytest.skip(f"this machine has no {own}")
    with stranger, pytest.raises(OSError, match="the port is taken"):
        Service(PLAN, NAMES, tmp_path, listen=f"localhost:{stranger.getsockname()[1]}", identity=None)


def test_secrets_of_a_client_are_drawn_once_and_are_the_owners_alone(tmp_path):
    plan = replace(PLAN, private_seed=None)
    for _ in range(2):
        with pytest.raises(GaveUp):
            join(plan, "ward-a", tmp_path / "a", address=Address("127.0.0.1:9", give_up=0.1))
    secret = tmp_path / "a" / "private.json"
    drawn = json.loads(secret.read_text())["private_seed"]
    assert drawn > 1 << 40 and secret.stat().st_mode & 0o077 == 0
    with pytest.raises(ValueError, match="another private seed"):
        join(replace(plan, private_seed=5), "ward-a", tmp_path / "a", address=Address("127.0.0.1:9", give_up=0.1))


NEVER = [
    "--deadline",
    "0",
]  # looked at once the plan is read: a guard that is not refused there would wait for clients


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["status", "127.0.0.1:9"], 1, "--certs FOLDER"),
        (["status", "10.0.0.1:9", "--insecure"], 1, "loopback only"),
        (["serve", "--insecure", "--every", "0"], 1, "--every"),
        (["serve", "--insecure", "--metrics", "9100"], 1, "--metrics is HOST:PORT"),
        (["serve", "--insecure", "--versions", "torch=almost"], 1, "same, patch, minor, any"),
        (["serve", "--insecure", "--stalled-after", "1"], 1, "--stalled-after"),
        (["serve", "--insecure", *NEVER, "--guard", "LightSplit(ratio='8')"], 1, "a number from 1 up; got '8'"),
        (["serve", "--insecure", *NEVER, "--guard", "Subset(ratio=0.5)"], 1, "a number from 1 up; got 0.5"),
        (["serve", "--insecure", *NEVER, "--guard", "Bottleneck1x1(ratio=())"], 1, "a number from 1 up; got ()"),
        (
            ["serve", "--insecure", *NEVER, "--guard", "Gaussian(epsilon=8)"],
            1,
            "write Chain(Clip(norm=1.0), Gaussian(eps",
        ),
        (["join", "Plan()", "127.0.0.1:9", "--as", "a", "--insecure", "--metrics", ":"], 1, "--metrics is HOST:PORT"),
        (["status", "127.0.0.1", "--insecure"], 1, "a server is HOST:PORT"),
        (["join", "Plan()", "127.0.0.1:9", "--as", "a", "--insecure", "--give-up", "0.1"], 4, "no answer from"),
        (["join", "Plan()", "127.0.0.1:9", "--insecure"], 2, ""),
        (["join", "Plan()", "localhost:9", "--as", "a", "--certs", "nowhere"], 1, "there is no folder nowhere"),
        (["train", "--compression", "Compression(LightSplit(ratio=2))"], 1, "Quantize, TopK"),
        (["predict", "nowhere"], 1, "there is no folder nowhere"),
        (["predict", "nowhere", "--server", "127.0.0.1:9", "--insecure"], 1, "--as NAME"),
    ],
)
def test_exit_codes(words, code, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["cutlayer", *words])
    threads = torch.get_num_threads()
    with pytest.raises(SystemExit) as ended:
        cli.main()
    torch.set_num_threads(threads)
    assert ended.value.code == code and said in capsys.readouterr().err
    if code == 1:
        assert not list(tmp_path.iterdir())  # a command that cannot work leaves nothing behind


def test_what_is_said_in_the_end_says_how_far_the_sites_lie_apart():
    """A mean over sites, large and small, hides one for which nothing was learnt."""
    result = {"steps": 12, "accuracy": 0.75, "accuracy_spread": 0.5}
    assert summary(result) == "finished after 12 steps, test accuracy 0.7500 (mean over clients, spread 0.5000)"
    for one in (
        result | {"accuracy_spread": 0.0},
        {"steps": 12, "accuracy": 0.75},
    ):  # one network, or one client's own
        assert summary(one) == "finished after 12 steps, test accuracy 0.7500"
    assert summary({"steps": 12, "accuracy": None, "accuracy_spread": None}) == "finished after 12 steps"


def test_a_refusal_has_an_exit_code_of_its_own():
    assert (Refused("plan", "no").exit_code, GaveUp().exit_code) == (3, 4)


def test_events_without_their_facts_are_not_said(monkeypatch, capsys):
    """`predict` starts no logs: what went wrong is its error, and not the bare name of an event before it."""
    for name in (None, "cutlayer"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    for party in ("serve", "join", "grpc"):
        logging.getLogger(f"cutlayer.{party}").error("refused", extra={"facts": {"error": "plan"}})
    assert capsys.readouterr().err == ""
