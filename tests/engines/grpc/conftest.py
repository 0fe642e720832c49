import pytest
from nursery import Nursery
from rehearsal import close_all


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
