from collections.abc import Callable

import pytest
from nursery import Nursery
from rehearsal import close_all

from cutlayer.engines.grpc.connection import ClientConnection

LONG = 60.0  # seconds that nobody takes, on however busy a machine


@pytest.fixture(scope="session")
def nursery():
    """Where processes that may be killed come from; it starts with the first test that needs it."""
    found = Nursery()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def nobody_stays():
    """Threads of one test are none of the next one's business."""
    yield
    close_all()


@pytest.fixture
def patient_with(monkeypatch) -> Callable[..., None]:
    """`patient_with("ward-a", ...)`: a short deadline is for the others. On a busy machine an honest client stands
    still for a second now and then, and a turn of its own that is skipped is not what a test is about."""
    receive = ClientConnection.receive

    def these(*names: str) -> None:
        def received(line, deadline):
            return receive(line, LONG if line.name in names else deadline)

        monkeypatch.setattr(ClientConnection, "receive", received)

    return these
