"""How long training would take over a link: by hand, by the clock of a simulated link, and from a real run."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from toys import tiny_parts, tiny_plan

from cutlayer.attacks import Decoder
from cutlayer.audit.matrix import audit
from cutlayer.audit.spec import AuditSpec
from cutlayer.bench.shaped_link import Pace
from cutlayer.cli.app import main
from cutlayer.core.message import Kind, Message
from cutlayer.data import Digits
from cutlayer.engines.folder import load_plan
from cutlayer.engines.local import start
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import LFQ, LightSplit
from cutlayer.nets import LeNet
from cutlayer.rules import FedAvg
from cutlayer.training.facts.forecast import Piece, Stopwatch, forecast, ideal, ideal_ahead, in_words
from cutlayer.training.facts.link import Link
from cutlayer.training.plan.plan import Plan
from cutlayer.training.plan.schedule import Relay, SplitFed
from cutlayer.training.protocols import Vanilla
from cutlayer.wire.ledger import Ledger

torch.set_num_threads(1)

LINK = Link(rate=8000.0, rtt=0.5, down=16000.0)  # a thousand bytes a second up, two thousand down


def counted(**rows):
    """A ledger of `KIND_way=(messages, bytes)`."""
    ledger = Ledger()
    for name, (messages, size) in rows.items():
        kind, way = name.rsplit("_", 1)
        ledger.messages[kind, way], ledger.bytes[kind, way] = messages, size
    return ledger


def watched(asks=Kind.FORWARD, *, forward, backward, tail, steps):
    watch = Stopwatch()
    watch.server[asks], watch.server[Kind.BACKWARD], watch.tail = forward, backward, tail
    watch.count[asks] = watch.count[Kind.BACKWARD] = steps
    return watch


U_STEPS = {
    "FORWARD_up": (10, 10_000), "FORWARD_down": (10, 4_000), "BACKWARD_up": (10, 2_000), "BACKWARD_down": (10, 8_000),
}  # fmt: skip


def test_a_step_by_hand():
    """Ten steps took 10 s: 2 forward, 3 backward, 1 in the tail, so 4 in the head; z 1000, u 400, du 200, dz 800."""
    told = forecast(
        LINK, counted(**U_STEPS), watched(forward=2.0, backward=3.0, tail=1.0, steps=10),
        seconds=10.0, steps=10, per_epoch=7,
    )  # fmt: skip
    up, down = 1.0 + 0.2, 0.2 + 0.4
    assert told["step"] == pytest.approx({"compute": 1.0, "up": up, "down": down, "waiting": 2 * 0.5})
    assert told["seconds per step"] == pytest.approx(1.0 + up + down + 1.0)
    assert told["seconds per epoch"] == pytest.approx(7 * told["seconds per step"])
    assert told["share of communication"] == pytest.approx((up + down + 1.0) / told["seconds per step"])
    assert told["link"] == "8kbit/16kbit,500ms" and told["validation per epoch"] == 0
    assert "26.6 s an epoch, 3800 ms a step, 74 % of it communication" in in_words(told)[0]


def test_orders_weights_and_exchanges_are_round_trips_of_their_own():
    """Every second step begins a turn with 3000 bytes of weights down and up; a decoder comes down every fifth."""
    rows = U_STEPS | {
        "WEIGHTS_down": (5, 15_000), "WEIGHTS_up": (5, 15_000), "LIFT_up": (2, 200), "LIFT_down": (2, 8_000),
        "PREDICT_up": (4, 2_000), "PREDICT_down": (4, 1_000),
    }  # fmt: skip
    watch = watched(forward=2.0, backward=3.0, tail=1.0, steps=10)
    plain = forecast(LINK, counted(**U_STEPS), watch, seconds=10.0, steps=10, per_epoch=10)
    told = forecast(LINK, counted(**rows), watch, seconds=10.0, steps=10, per_epoch=10)
    weights, lifts = 15.0 + 7.5 + 5 * 0.5, 0.2 + 4.0 + 2 * 0.5
    assert told["seconds per epoch"] - plain["seconds per epoch"] == pytest.approx(weights + lifts)
    assert told["step"]["waiting"] == pytest.approx((20 + 5 + 2) * 0.5 / 10)
    assert told["validation per epoch"] == pytest.approx(2.0 + 0.5 + 4 * 0.5)


def test_labels_that_travel():
    rows = {"LOSS_up": (4, 4_400), "LOSS_down": (4, 200), "BACKWARD_up": (4, 200), "BACKWARD_down": (4, 3_200)}
    told = forecast(
        LINK, counted(**rows), watched(Kind.LOSS, forward=2.0, backward=1.0, tail=0.0, steps=4),
        seconds=4.0, steps=4, per_epoch=1,
    )  # fmt: skip
    assert told["seconds per step"] == pytest.approx(1.0 + 1.1 + 0.025 + 0.05 + 0.4 + 2 * 0.5)


def test_pieces_overlap_as_the_schedule_says():
    rows = {name: (2 * messages, size) for name, (messages, size) in U_STEPS.items()}
    watch = watched(forward=2.0, backward=3.0, tail=1.0, steps=20)
    told = forecast(LINK, counted(**rows), watch, seconds=10.0, steps=10, per_epoch=1)
    one = Piece(0.2, 500, 0.1, 200, 0.05, 100, 0.15, 400, 0.0)
    assert told["seconds per step"] == pytest.approx(ideal([one, one], LINK))
    whole = forecast(
        LINK, counted(**U_STEPS), watched(forward=2.0, backward=3.0, tail=1.0, steps=10),
        seconds=10.0, steps=10, per_epoch=1,
    )  # fmt: skip
    assert told["seconds per step"] < whole["seconds per step"]


def test_batches_that_are_begun_ahead_wait_for_one_round_trip():
    watch = watched(forward=2.0, backward=3.0, tail=1.0, steps=10)
    told, usual = (
        forecast(LINK, counted(**U_STEPS), watch, seconds=10.0, steps=10, per_epoch=10, ahead=ahead)
        for ahead in (5, 0)
    )
    one = Piece(0.4, 1000, 0.2, 400, 0.1, 200, 0.3, 800, 0.0)
    assert told["seconds per epoch"] == pytest.approx(2 * ideal_ahead(one, LINK, 5))
    assert told["step"]["waiting"] == pytest.approx(6 / 5 * 0.5) and told["step"]["up"] == usual["step"]["up"]
    assert told["seconds per step"] < usual["seconds per step"]


def test_one_piece_arrives_when_the_shaped_link_says():
    """The relay's own arithmetic, message by message, ends when the forecast does."""
    one = Piece(head=0.3, z=1500, forward=0.2, u=700, tail=0.1, du=900, backward=0.4, dz=1100, rest=0.05)
    up, down = Pace(LINK), Pace(LINK.back)
    now = up.arrival(100.0 + one.head, one.z) + one.forward
    now = down.arrival(now, one.u) + one.tail
    now = up.arrival(now, one.du) + one.backward
    now = down.arrival(now, one.dz) + one.rest
    assert ideal([one], LINK) == pytest.approx(now - 100.0)


def test_nothing_is_foretold_of_nothing():
    assert forecast(LINK, Ledger(), Stopwatch(), seconds=0.0, steps=0, per_epoch=3) is None


def test_the_watch_tells_server_and_client_apart(monkeypatch):
    clock = iter([1.0, 3.0, 10.0, 14.0, 20.0, 21.0])
    monkeypatch.setattr("cutlayer.training.facts.forecast.time.perf_counter", lambda: next(clock))
    watch = Stopwatch()
    for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.FORWARD):
        watch(Message(kind, 0, 0), lambda message: message)
    assert watch.server == {Kind.FORWARD: 3.0, Kind.BACKWARD: 4.0} and watch.tail == 7.0


# ------------------------------------------------------------------------------- of real runs
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"protocol": Vanilla()},
        {"clients": 2},
        {"micro_batches": 2},
        {"rounds": Relay(ahead=1), "local_steps": 0, "batch_size": 8},
    ],
    ids=str,
)
def test_a_run_is_told_its_bytes_and_rounds(changes):
    """Over a link of one byte a second computing is nothing: what is foretold are the bytes of the ledger."""
    plan = tiny_plan(epochs=2, val_share=0.0, **changes)
    watch = Stopwatch()
    run = LocalRun(plan, tiny_parts(), classes=3, at_server=[watch])
    run.train()
    slow = Link(rate=8.0)
    told = forecast(
        slow,
        run.ledger,
        watch,
        seconds=run.progress.seconds,
        steps=run.progress.step,
        per_epoch=sum(run.timetable.batches),
        ahead=run.timetable.ahead,
    )
    ways = {
        way: sum(n for (k, w), n in run.ledger.bytes.items() if w == way and k != "PREDICT") / run.progress.step
        for way in ("up", "down")
    }
    assert told["step"]["up"] == pytest.approx(ways["up"]) and told["step"]["down"] == pytest.approx(ways["down"])
    if plan.micro_batches == 1 and not plan.rounds.ahead:
        assert told["seconds per step"] == pytest.approx(sum(ways.values()) + told["step"]["compute"])
        assert told["step"]["compute"] == pytest.approx(run.progress.seconds / run.progress.step)
    else:
        assert told["seconds per step"] < sum(ways.values())


def test_a_decoder_that_is_copied_counts():
    plan = tiny_plan(epochs=3, val_share=0.0, guard=LFQ(bits=2, decoder="client", freq=1))
    watch = Stopwatch()
    run = LocalRun(plan, tiny_parts(), classes=3, at_server=[watch])
    run.train()
    told = forecast(
        Link(rtt=1.0), run.ledger, watch, seconds=run.progress.seconds, steps=run.progress.step, per_epoch=1
    )
    exchanged = run.ledger.messages["LIFT", "up"] / run.progress.step
    assert exchanged > 0 and told["step"]["waiting"] == pytest.approx(2 + 1 + exchanged)


@pytest.mark.campaign
def test_an_audit_foretells_each_guard():
    loaded = Digits(limit=120).load()
    plan = Plan(net=LeNet(), epochs=1, batch_size=16, aux_samples=40, val_share=0.0)
    spec = AuditSpec(plan, [LightSplit(ratio=8)], [Decoder(steps=2, readers=("conv",))], images=8)
    found = audit(replace(spec, link=Link.parse("1mbit,10ms")), loaded)
    open_cut, guarded = (row["link"] for row in found.rows)
    assert guarded["step"]["up"] < open_cut["step"]["up"] and guarded["link"] == "1mbit,10ms"
    without = audit(replace(spec, guards=[]), loaded)
    assert "link" not in without.rows[0]


def test_the_command_says_it(monkeypatch, capsys, tmp_path):
    words = ["cutlayer", "train", "--data", "Digits(limit=100)", "--net", "LeNet", "--epochs", "1", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", [*words, "--link", "20mbit/100mbit,40ms", "--out", str(tmp_path / "a")])
    with pytest.raises(SystemExit, match="0"):
        main()
    said = capsys.readouterr().err
    assert "over 20mbit/100mbit,40ms:" in said and "% of it communication" in said
    kept = json.loads((tmp_path / "a" / "result.json").read_text())["link"]
    assert kept["seconds per epoch"] > 0 and set(kept["step"]) == {"compute", "up", "down", "waiting"}
    monkeypatch.setattr(sys, "argv", [*words, "--link", "soon", "--out", str(tmp_path / "b")])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert "like 20mbit,40ms" in capsys.readouterr().err and not (tmp_path / "b").exists()


def test_a_resumed_run_is_told_from_what_it_computed_itself(tmp_path):
    plan = replace(Plan(net=LeNet(), data=Digits(limit=60), epochs=2, batch_size=16, val_share=0.0), private_seed=1)
    stop = iter([False] * 3 + [True] * 99)
    with pytest.raises(Exception, match="stopped"):
        start.train(plan, tmp_path / "a", follow=start.Following(stop=lambda: next(stop)))
    follow = start.Following(link=Link(rate=8.0))
    told = start.train(load_plan(tmp_path / "a"), tmp_path / "a", resume=True, follow=follow)["link"]
    assert 0 < told["step"]["compute"] < 60


def test_clients_side_by_side_are_refused(tmp_path):
    plan = Plan(net=LeNet(), data=Digits(limit=60), clients=2, rounds=SplitFed(version=2), rule=FedAvg())
    with pytest.raises(ValueError, match="clients that take turns"):
        start.train(plan, tmp_path / "a", follow=start.Following(link=Link(rtt=0.1)))
    assert not (tmp_path / "a").exists()
