"""Waiting costs nothing: whoever waits is told, and does not look again and again."""

import threading
import time

import pytest
import torch
from proxy import wait_for
from rehearsal import NAMES
from toys import tiny_plan

from cutlayer.core.errors import Interrupted
from cutlayer.core.lost_numbers import finite
from cutlayer.engines.grpc.connection import ClientConnection, Wakeup
from cutlayer.engines.grpc.deploy import Service


def in_thread(work):
    found = []

    def watched():
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=watched, daemon=True)
    thread.start()
    return thread, found


def test_a_bell_wakes_whoever_waits_for_something_that_now_holds():
    wakeup, here = Wakeup(), []
    thread, found = in_thread(lambda: wakeup.wait_for(lambda: bool(here)))
    wakeup.ring()
    thread.join(0.1)
    assert thread.is_alive()
    here.append(1)
    wakeup.ring()
    thread.join(20)
    assert found == [True]
    assert wakeup.wait_for(lambda: False, timeout=0.01) is False


def test_lines_ring_when_their_client_comes_or_goes():
    line, rings = ClientConnection("a", 0, 1 << 20), []
    line.wakeup.ring = lambda: rings.append(line.connected)
    line.connect({}, push := lambda packets: None, lambda error: None)
    line.disconnect(push)
    line.connect({}, push, lambda error: None)
    line.drop()
    assert rings == [True, False, True, False]
    line.stop()
    assert len(rings) == 5


@pytest.fixture
def service(tmp_path):
    made = Service(tiny_plan(clients=3), NAMES, tmp_path / "server", listen="127.0.0.1:0", identity=None)
    yield made
    made.stop()


def test_a_server_without_clients_looks_for_them_only_when_something_happens(service):
    looked, missing = [], service.admission.missing
    service.admission.missing = lambda: looked.append(1) or missing()
    told = []
    thread, found = in_thread(lambda: service.run(on_wait=told.append))
    wait_for(lambda: told)
    time.sleep(0.3)  # in which nothing happens
    assert told == [list(NAMES)] and len(looked) <= 3
    service.stop()
    thread.join(20)
    assert isinstance(found[0], Interrupted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_what_is_finite(dtype):
    for bad in (torch.nan, torch.inf, -torch.inf):
        for place in (0, 37, 99):
            numbers = torch.ones(10, 10, dtype=dtype)
            numbers.view(-1)[place] = bad
            assert not finite(numbers)
    assert finite(torch.full((3,), torch.finfo(dtype).max, dtype=dtype))
    assert finite(torch.empty(0, 4, dtype=dtype)) and finite(torch.tensor(1.0, dtype=dtype))
