"""Feature-space hijacking: its answers are the gradient of its critic, and a head that follows them can be read."""

import pickle
from dataclasses import replace

import pytest
import torch
from torch import nn
from toys import TASK, samples, tiny_parts, tiny_plan

from cutlayer.attacks import FSHA, Knowledge, KnownGuard
from cutlayer.audit.hijack import Training, hijack
from cutlayer.audit.judge import judge
from cutlayer.audit.matrix import audit
from cutlayer.audit.spec import AuditSpec
from cutlayer.audit.victim import Victim
from cutlayer.core.batch import Batch
from cutlayer.core.message import Kind, Message
from cutlayer.data import Digits
from cutlayer.data.base import Loaded
from cutlayer.engines.local.run import LocalRun
from cutlayer.guards import SEAL, KAnonymous, LightSplit, NoGuard, Noise
from cutlayer.metrics.images import ncc
from cutlayer.training.plan.plan import Task
from cutlayer.training.protocols import Bypass, UShaped, Vanilla

SMALL = FSHA(steps=8, width=4, hidden=16, warm=20, batch=8)
CUT = (4, 5, 5)


def attacker_of(spec=SMALL, guard=None, cut=CUT, aux=None, task=TASK):
    guard = guard or NoGuard()
    images = samples(40, 3).x if aux is None else aux
    known = Knowledge(task=task, aux=images, guard=KnownGuard(guard, cut, 5, task))
    torch.manual_seed(0)
    return spec.attacker(known.only(spec.needs), 7)


def exchange(attacker, z, client=0, step=0):
    """One training step as the server sees it: the answer to FORWARD, to BACKWARD, and what the honest body got."""
    reached = []

    def handle(message):
        reached.append(message.kind)
        return (
            message.reply(u=torch.ones(3))
            if message.kind is Kind.FORWARD
            else message.reply(dz=torch.full_like(z, 9.0))
        )

    up = attacker(Message(Kind.FORWARD, client, step, {"z": z}), handle)
    down = attacker(Message(Kind.BACKWARD, client, step, {"du": torch.ones(3)}), handle)
    return up, down, reached


def test_the_client_gets_the_gradient_of_the_mean_of_the_critic():
    attacker = attacker_of()
    z = torch.rand(6, *CUT)
    up, down, _ = exchange(attacker, z)
    assert torch.equal(up["u"], torch.ones(3)) and down.kind is Kind.BACKWARD
    # By differences in float64: no autograd on this side.
    critic, point = attacker.critic.double(), z.double()
    for index in [(0, 0, 0, 0), (2, 1, 3, 4), (5, 3, 2, 2)]:
        nudge = torch.zeros_like(point)
        nudge[index] = 1e-6
        with torch.no_grad():
            slope = (critic(point + nudge).mean() - critic(point - nudge).mean()) / 2e-6
        assert float(slope) == pytest.approx(float(down["dz"][index]), rel=1e-3, abs=1e-7)


def test_a_larger_scale_is_a_larger_answer():
    z = torch.rand(6, *CUT)
    plain, scaled = (exchange(attacker_of(replace(SMALL, scale=s)), z)[1]["dz"] for s in (1.0, 4.0))
    torch.testing.assert_close(4 * plain, scaled)


def test_the_honest_body_learns_along_only_to_conceal():
    z = torch.rand(6, *CUT)
    assert exchange(attacker_of(), z)[2] == [Kind.FORWARD, Kind.BACKWARD]
    assert exchange(attacker_of(replace(SMALL, conceal=False)), z)[2] == [Kind.FORWARD]


def test_a_message_that_is_sent_twice_gets_one_answer():
    attacker, z = attacker_of(), torch.rand(6, *CUT)
    first = exchange(attacker, z)[1]
    again = attacker(Message(Kind.BACKWARD, 0, 0, {"du": torch.ones(3)}), lambda message: message)
    assert torch.equal(first["dz"], again["dz"]) and attacker.count == 1


def test_clients_do_not_get_each_others_gradients():
    attacker = attacker_of()
    for client, rows in ((0, 6), (1, 4)):
        attacker(Message(Kind.FORWARD, client, 0, {"z": torch.rand(rows, *CUT)}), lambda message: message)
    for client, rows in ((1, 4), (0, 6)):
        answer = attacker(Message(Kind.BACKWARD, client, 0, {"du": torch.ones(1)}), lambda message: message)
        assert len(answer["dz"]) == rows and answer.client == client


def test_a_prediction_passes_unseen():
    attacker, asked = attacker_of(), Message(Kind.PREDICT, 0, 0, {"z": torch.rand(2, *CUT)})
    answer = asked.reply(u=torch.zeros(1))
    assert attacker(asked, lambda message: answer) is answer and not attacker.waiting


def test_the_pilot_stands_still_once_the_client_comes():
    attacker = attacker_of()
    before = {name: t.clone() for name, t in attacker.pilot.state_dict().items()}
    critic = {name: t.clone() for name, t in attacker.critic.state_dict().items()}
    exchange(attacker, torch.rand(6, *CUT))
    assert all(torch.equal(t, before[name]) for name, t in attacker.pilot.state_dict().items())
    assert any(not torch.equal(t, critic[name]) for name, t in attacker.critic.state_dict().items())


def test_a_head_that_follows_these_gradients_becomes_readable():
    """The control, on digits of half the size: after hijacking NCC is well above that of the mean image."""
    digits = torch.nn.functional.avg_pool2d(Digits(limit=1000).load().train.images(), 2)
    aux, private = digits[:500], digits[500:]
    spec = FSHA(width=16, warm=150)
    attacker = attacker_of(spec, cut=(4, 7, 7), aux=aux, task=Task((1, 14, 14), 10))
    torch.manual_seed(1)
    head = nn.Sequential(nn.Conv2d(1, 4, 4, stride=2, padding=1), nn.ReLU())
    optimizer = torch.optim.Adam(head.parameters(), 3e-3)

    def readable():
        with torch.no_grad():
            sent = [Message(Kind.FORWARD, 0, 0, {"z": head(private)})]
        return ncc(private, attacker.reconstruct(sent)).mean().item()

    before = readable()
    for _ in range(400):
        z = head(private[torch.randint(len(private), (32,))])
        optimizer.zero_grad()
        z.backward(attacker.hijack(z.detach()))
        optimizer.step()
    floor = ncc(private, aux.mean(0).expand_as(private)).mean().item()
    assert readable() > max(before, floor) + 0.1


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "guard", [NoGuard(), LightSplit(ratio=4), SEAL(), Noise(scale=0.1), KAnonymous(k=2)], ids=repr
)
def test_it_answers_in_every_form_against_every_kind_of_guard(guard):
    run = LocalRun(tiny_plan(guard=guard, epochs=1, batch_size=8), tiny_parts(), classes=TASK.classes)
    for form in SMALL.against(guard, CUT):
        hijacked, attacker, *_ = hijack(form, Training(run.plan, run.parts, TASK))
        assert attacker.count == hijacked.progress.step >= SMALL.steps
        row, pictures = judge(form, Victim(hijacked, 16), run.parts, 0, attacker=attacker)
        assert pictures.shape == (16, *TASK.shape) and pictures.min() >= 0 and pictures.max() <= 1
        assert row["knows"][0].endswith("it chooses what the server answers")


@pytest.mark.parametrize("protocol", [Vanilla(), Bypass()], ids=repr)
def test_it_hijacks_every_protocol(protocol):
    run = LocalRun(tiny_plan(protocol=protocol, epochs=1, batch_size=8), tiny_parts(), classes=TASK.classes)
    hijacked, attacker, *_ = hijack(SMALL, Training(run.plan, run.parts, TASK))
    assert attacker.count == hijacked.progress.step
    assert judge(SMALL, Victim(hijacked, 16), run.parts, 0, attacker=attacker)[0]["n"] == 16


def test_how_near_the_client_has_come_to_the_pilot_is_told():
    """Where the client sends what the pilot would, the two are the same; as it was driven here they are not."""
    guard = LightSplit(ratio=4)
    attacker, images = attacker_of(replace(SMALL, knows="matched+lift"), guard), samples(9, 5).x
    client = attacker.view.copies[0]
    seen = client(attacker.pilot.encoder(images), Batch(images, torch.zeros(9), seed=0)).seen
    there = attacker.read([Message(Kind.FORWARD, 0, 0, {"z": seen})])
    assert there.shape == (9, *CUT)
    torch.testing.assert_close(there, attacker.features(images))
    run = LocalRun(tiny_plan(epochs=1, batch_size=8), tiny_parts(), classes=TASK.classes)
    hijacked, attacker, *_ = hijack(SMALL, Training(run.plan, run.parts, TASK))
    row = judge(SMALL, Victim(hijacked, 16), run.parts, 0, attacker=attacker)[0]
    assert row["feature_mse"] > 0 and -1 <= row["feature_cosine"] < 1


def test_float64(double):
    run = LocalRun(tiny_plan(epochs=1, batch_size=8), tiny_parts(), classes=TASK.classes)
    hijacked, attacker, *_ = hijack(SMALL, Training(run.plan, run.parts, TASK))
    assert judge(SMALL, Victim(hijacked, 16), run.parts, 0, attacker=attacker)[0]["n"] == 16


def test_the_inverse_behind_a_projection_is_fully_connected():
    assert type(attacker_of(guard=LightSplit(ratio=4)).pilot.inverse).__name__ == "MLPReader"
    assert type(attacker_of().pilot.inverse).__name__ == "Inverse"
    assert type(attacker_of(replace(SMALL, inverse="mlp")).pilot.inverse).__name__ == "MLPReader"
    with pytest.raises(ValueError, match="take 'mlp' or 'auto'"):
        attacker_of(replace(SMALL, inverse="conv"), guard=LightSplit(ratio=4))


def test_a_hijacked_run_is_as_long_as_the_attack_needs_and_has_no_best_epoch():
    plan = tiny_plan(epochs=1, batch_size=8, patience=1)
    runs = [hijack(replace(SMALL, steps=steps), Training(plan, tiny_parts(), TASK)).run for steps in (1, 7, 13)]
    assert [run.progress.epoch for run in runs] == [1, 2, 3]
    assert all(run.plan.patience == 0 for run in runs)
    assert hijack(SMALL, Training(replace(plan, epochs=5), tiny_parts(), TASK)).run.progress.epoch == 5


def test_what_is_over_cannot_be_hijacked():
    run = LocalRun(tiny_plan(epochs=1, batch_size=8), tiny_parts(), classes=TASK.classes)
    with pytest.raises(ValueError, match="run an audit"):
        judge(SMALL, Victim(run, 16), run.parts, seed=0)


def test_an_audit_gives_it_a_run_of_its_own_and_keeps_the_honest_figures():
    loaded = Loaded(samples(160, 1), samples(60, 2), ("a", "b", "c"))
    plan = tiny_plan(epochs=2, batch_size=16)
    result = audit(AuditSpec(plan, [LightSplit(ratio=4)], [SMALL], images=16), loaded)
    assert [row["attack"] for row in result.rows] == [
        repr(a) for a in (SMALL, *SMALL.against(LightSplit(ratio=4), CUT))
    ]
    for row in result.rows:
        assert row["hijacked"]["steps"] >= SMALL.steps and 0 <= row["hijacked"]["accuracy"] <= 1
    by_guard = {}
    for row in result.rows:
        by_guard.setdefault(row["guard"], set()).add((row["accuracy"], row["bytes_up"], row["within_over_total"]))
    assert all(len(figures) == 1 for figures in by_guard.values())  # whatever the form, one honest run a guard


def test_it_can_be_put_away_in_the_middle():
    attacker, z = attacker_of(), torch.rand(6, *CUT)
    exchange(attacker, z)
    again = pickle.loads(pickle.dumps(attacker))
    assert torch.equal(exchange(attacker, z, step=1)[1]["dz"], exchange(again, z, step=1)[1]["dz"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 0}, "whole numbers from 1 up"),
        ({"width": 1.5}, "whole numbers from 1 up"),
        ({"penalty": 0.0}, "above 0"),
        ({"inverse": "ridge"}, "inverse is one of auto, conv, mlp"),
        ({"knows": "all"}, "knows one of oblivious"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        FSHA(**changes)


def test_budgets():
    assert FSHA.suite("quick", TASK, True) == []
    assert FSHA.sized("standard").steps == 2000
    paper = FSHA.sized("paper")
    assert (paper.steps, paper.width, paper.blocks, paper.penalty, paper.conceal) == (10_000, 256, 6, 500.0, False)


def test_its_bar_is_for_the_setting_that_was_measured():
    assert FSHA().bar("Digits()", "MnistNet()") == ("psnr", 16.0)
    assert FSHA().bar("Digits()", "MnistNet(cut=4)") is None


# ------------------------------------------------------------------ in disguise
def honestly(message, dz):
    return message.reply(u=torch.ones(3)) if message.kind is Kind.FORWARD else message.reply(dz=dz)


def answers(spec, gradients, z):
    """What a client gets that sends the same z again and again, and what the honest body would have answered."""
    attacker, found = attacker_of(spec), []
    for step, dz in enumerate(gradients):
        attacker(Message(Kind.FORWARD, 0, step, {"z": z}), lambda message: honestly(message, dz))  # noqa: B023
        down = attacker(Message(Kind.BACKWARD, 0, step, {"du": z}), lambda message: honestly(message, dz))  # noqa: B023
        found.append(down["dz"])
    return found


def test_at_first_and_where_labels_look_wrong_it_answers_honestly():
    z, usual = torch.rand(6, *CUT), [torch.randn(6, *CUT) for _ in range(6)]
    usual[4] = 3 * usual[4]  # a probe: wrong labels give longer gradients
    found = answers(replace(SMALL, evade=0.6, joins=2), usual, z)
    assert [torch.equal(one, dz) for one, dz in zip(found, usual, strict=True)] == [
        True,
        True,
        False,
        False,
        True,
        False,
    ]


def test_a_disguised_answer_is_as_long_as_the_honest_one_at_most_and_partly_it():
    z, honest = torch.rand(6, *CUT), torch.randn(6, *CUT)
    for share in (0.5, 0.9):
        (found,) = answers(replace(SMALL, evade=share), [honest], z)
        rest = (found - share * honest).flatten(1).norm(dim=1) / (1 - share)
        torch.testing.assert_close(rest, honest.flatten(1).norm(dim=1))
        assert (found.flatten(1).norm(dim=1) <= 1.0001 * honest.flatten(1).norm(dim=1)).all()


@pytest.mark.parametrize("changes", [{"evade": 1.0}, {"evade": -0.1}, {"joins": 3}, {"evade": 0.5, "joins": 8}])
def test_disguises_that_cannot_be_are_refused(changes):
    with pytest.raises(ValueError, match=r"evade|joins"):
        replace(SMALL, **changes)


@pytest.mark.parametrize("protocol", [UShaped(), Vanilla()], ids=repr)
def test_batches_in_pieces_are_answered_piece_by_piece(protocol):
    plan = tiny_plan(epochs=1, batch_size=8, micro_batches=3, aux_samples=40, protocol=protocol, private_seed=1)
    found = hijack(SMALL, Training(plan, tiny_parts(), TASK), images=8)
    assert found.run.progress.step > 3
