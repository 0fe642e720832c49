import pytest
from nursery import Nursery


@pytest.fixture(scope="session")
def nursery():
    """Where processes that may be killed come from; it starts with the first test that needs it."""
    found = Nursery()
    yield found
    found.close()
