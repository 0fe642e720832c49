"""A client that only predicts."""

from ...core.batch import Task
from ...core.message import Message
from ...training.plan.plan import Plan
from ...wire import frames
from ...wire.ledger import DOWN, UP, Ledger
from .channel import Address, NewSession, ServerChannel
from .distrust import answered_shape, decoded, refuse_wrong_answer
from .enrolment import Enrolment


class PredictOnlyClient:
    """A client that only predicts: nothing is learnt, so a lost question is simply asked again."""

    def __init__(self, plan: Plan, task: Task, name: str, address: Address, ledger: Ledger):
        self._plan, self._enrolment = plan, Enrolment(plan, name, address)
        self._u, self._ledger = answered_shape(plan, task), ledger
        self._channel = ServerChannel(address, lambda: {**self._enrolment.who(), "purpose": "predict"})

    def __enter__(self) -> "PredictOnlyClient":
        self.number = self._enrolment.enrol(self._channel)
        self._channel.open()
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.close()

    def ask(self, message: Message) -> Message:
        frame = frames.pieces(message)
        self._ledger.note(message, UP, len(frame))
        while True:
            try:
                self._channel.send(frame)
                answer = self._channel.receive()
                break
            except NewSession:
                continue
        reply = decoded(answer, self._channel.limit)
        self._ledger.note(reply, DOWN, len(answer))
        refuse_wrong_answer(message, reply, self._u, fan_out=self._plan.guard.fan_out)
        return reply
