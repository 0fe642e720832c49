"""One identity, one process: folders are locked, and who is superseded goes for good."""

import os
import time

import pytest
from rehearsal import Rehearsal, open_site, rehearse
from toys import tiny_plan

from cutlayer.engines.grpc import deploy
from cutlayer.engines.grpc.admission import Limits
from cutlayer.engines.grpc.session import Refused
from cutlayer.engines.taken import FolderLock

PLAN = tiny_plan(clients=2, batch_size=8, epochs=5)
NAMES = ("ward-a", "ward-b")


def test_a_folder_is_one_process_s(tmp_path):
    lock = FolderLock(tmp_path)
    with pytest.raises(BlockingIOError, match=rf"another process \({os.getpid()}\) goes on in {tmp_path}: wait"):
        FolderLock(tmp_path)
    lock.release()
    FolderLock(tmp_path).release()


def test_neither_side_starts_twice_in_one_folder(tmp_path):
    run = Rehearsal(PLAN, tmp_path, names=NAMES)
    with pytest.raises(BlockingIOError, match="choose another --out"):
        deploy.Service(PLAN, NAMES, tmp_path / "server", listen="127.0.0.1:0", identity=None)
    (tmp_path / "a").mkdir()
    lock = FolderLock(tmp_path / "a")
    with pytest.raises(BlockingIOError, match="another process"):
        deploy.join(PLAN, "ward-a", tmp_path / "a", address=run.address("ward-a"))
    assert not (tmp_path / "a" / "private.json").exists(), "no secret was drawn for it"
    lock.release()


def test_a_second_process_of_a_name_ends_the_first_for_good_and_every_client_hears_of_it(tmp_path):
    """The same join started twice changed all weights, and both reported success."""

    def waiting(message, handle):
        if message.client == 0 and message.step == 7:  # else the run may be over before the second has come
            until(lambda: run.host.connections[1].superseded)
        return handle(message)

    def until(what):
        end = time.monotonic() + 60
        while not what():
            assert time.monotonic() < end
            time.sleep(0.01)

    run = Rehearsal(PLAN, tmp_path, Limits(every=2, deadline=60.0), names=NAMES, watchers=(waiting,))
    for name in NAMES:
        run.join(name)
    run.serve()
    until(lambda: run.service.host is not None and run.host.progress.step >= 7)
    second = open_site(PLAN, "ward-b", run.address("ward-b"), tmp_path / "elsewhere", run.parts)
    told = second.run()
    for thread in run.threads:
        thread.join(30)
    (error,) = run.errors
    assert isinstance(error, Refused) and error.name == "superseded" and error.exit_code == 3
    assert "takes part from another process now" in str(error)
    assert run.host.connections[1].superseded == 1
    assert not told["exact"] and not run.results["ward-a"]["exact"] and not run.results["server"]["exact"]


def test_an_undisturbed_run_says_so_to_every_client(tmp_path):
    run = rehearse(tiny_plan(clients=2, batch_size=16, epochs=1), tmp_path, names=NAMES)
    assert run.results["ward-a"]["exact"] and run.results["ward-b"]["exact"]
