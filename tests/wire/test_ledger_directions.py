"""The ledger: every byte that crosses is counted once, in the direction it went."""

import json

from toys import TASK, tiny_parts, tiny_plan

from cutlayer.audit.verdicts import total_bytes
from cutlayer.core.message import Kind, Message
from cutlayer.engines.local.run import LocalRun
from cutlayer.wire import frames
from cutlayer.wire.ledger import DOWN, UP, Ledger

IMAGES = tiny_parts(8).private.x


def counted(**bytes_of):
    """`WEIGHTS_up=100`: a ledger of such messages, one each."""
    ledger = Ledger()
    for name, size in bytes_of.items():
        kind, direction = name.rsplit("_", 1)
        ledger.note(Message(Kind[kind], 0, 0), direction, size)
    return ledger


def test_relayed_weights_cost_what_goes_up_and_what_comes_down():
    """Every head travels twice: to the server, and from there to the next client."""
    ledger = counted(WEIGHTS_up=100, WEIGHTS_down=60, FORWARD_up=7, EVALUATE_down=9)
    ledger.samples["training"] = 10
    assert ledger.weights_per_sample() == 16
    assert counted(WEIGHTS_up=100).weights_per_sample() == counted(WEIGHTS_down=100).weights_per_sample() == 100


def test_a_step_costs_each_direction_its_own_messages():
    ledger = counted(
        FORWARD_up=1, FORWARD_down=20, LOSS_up=2, LOSS_down=30, BACKWARD_up=4, BACKWARD_down=40,
        WEIGHTS_up=1000, WEIGHTS_down=1000, PREDICT_up=1000, PREDICT_down=1000, LIFT_up=1000, TURN_down=1000,
    )  # fmt: skip
    ledger.samples["training"] = 2
    assert ledger.per_sample(UP) == 3.5 and ledger.per_sample(DOWN) == 45


def test_a_watching_ledger_counts_the_question_up_and_the_answer_down():
    ledger, question = Ledger(), Message(Kind.FORWARD, 0, 0, {"z": IMAGES})
    answer = question.reply(u=IMAGES[:1])
    assert ledger(question, lambda message: answer) is answer
    assert ledger.bytes == {("FORWARD", UP): frames.size(question), ("FORWARD", DOWN): frames.size(answer)}
    assert ledger.messages == {("FORWARD", UP): 1, ("FORWARD", DOWN): 1}
    assert frames.size(question) != frames.size(answer), "else directions could be confused"


def test_a_relay_counts_every_order_down_and_every_answer_up():
    run = LocalRun(tiny_plan(batch_size=8, clients=3), tiny_parts(), classes=TASK.classes)
    asked, crossed = run.carrier.ask, {UP: 0, DOWN: 0}

    def ask(client, order):
        answer = asked(client, order)
        assert order.kind is answer.kind is Kind.WEIGHTS
        crossed[DOWN] += len(frames.encode(order))
        crossed[UP] += len(frames.encode(answer))
        return answer

    run.carrier.ask = ask
    for turns in run.timetable.rounds(0)[:2]:
        run.take(turns)
    # The first client starts from its own weights, so only the second order carries some.
    assert crossed[UP] > crossed[DOWN] > 0
    assert {way: run.ledger.bytes["WEIGHTS", way] for way in crossed} == crossed
    assert run.ledger.messages["WEIGHTS", UP] == run.ledger.messages["WEIGHTS", DOWN] == 2
    assert run.ledger.weights_per_sample() == sum(crossed.values()) / 16


def test_a_verdict_compares_everything_that_travels():
    row = {"bytes_up": 1.0, "bytes_down": 20.0, "bytes_weights": 300.0, "rates": {"amortised": 4000.0}}
    assert total_bytes(row) == 4321


def test_a_ledger_comes_back_from_json_as_it_was():
    ledger = counted(WEIGHTS_up=100, WEIGHTS_down=60, FORWARD_up=7, FORWARD_down=8)
    ledger.note(Message(Kind.WEIGHTS, 0, 0), UP, 5)
    ledger.samples["training"] = 10
    back = Ledger.from_dict(json.loads(json.dumps(ledger.as_dict())))
    assert back.as_dict() == ledger.as_dict() and back.weights_per_sample() == 16.5


def test_before_the_first_sample_nothing_is_divided():
    assert Ledger().per_sample(UP) == Ledger().weights_per_sample() == 0
