"""Disks of a deployment that fill up or lose a file: who has one is away until it is mended, and nothing is lost."""

import contextlib
import os
import threading

import pytest
from full_disk import full_disk
from proxy import Relay, wait_for
from rehearsal import NAMES, Rehearsal, refuse_other_counts, refuse_other_weights, undisturbed
from toys import tiny_plan

from cutlayer.core.errors import DiskFull
from cutlayer.engines.folder import SECRET
from cutlayer.engines.grpc import deploy
from cutlayer.engines.grpc.admission import Limits
from cutlayer.engines.grpc.channel import Address
from cutlayer.training.checkpoint import Snapshots

PLAN = tiny_plan(epochs=4, batch_size=4, clients=3)
LIMITS = Limits(every=4, deadline=30.0)


def ended_by_its_disk(run, thread):
    thread.join(60)
    assert not thread.is_alive() and [type(error) for error in run.errors] == [DiskFull], run.errors
    run.errors.clear()
    run.threads.remove(thread)


def truncate_newest(folder):
    *older, newest = Snapshots(folder / "snapshots").numbers()
    assert older
    path = folder / "snapshots" / f"snapshot-{newest}.safetensors"
    os.truncate(path, path.stat().st_size // 2)


def test_full_disks_and_truncated_snapshots_on_both_sides(tmp_path, caplog):
    """First the server's disk is full, then a client's; both come back to a newest snapshot that is half of one."""
    relays = []

    def through(port):
        relays.append(Relay(lambda: run.service.network.port))
        return relays[0].port

    run = Rehearsal(PLAN, tmp_path, limits=LIMITS, through=through)
    with full_disk(40, where="/server/") as disk:
        for name in NAMES:
            run.join(name)
        ended_by_its_disk(run, run.serve())
        assert disk.done > 40
    truncate_newest(tmp_path / "server")
    run.service = deploy.Service(PLAN, NAMES, tmp_path / "server", listen="127.0.0.1:0", identity=None, limits=LIMITS)
    with full_disk(30, where="/ward-b/"):
        served = run.serve()
        (other,) = [one for one in run.threads if one is not served and one is _thread_that_ends(run)]
        ended_by_its_disk(run, other)
    truncate_newest(tmp_path / "ward-b")
    run.join("ward-b")
    result = run.end()
    for relay in relays:
        relay.__exit__()
    local = undisturbed(PLAN)
    refuse_other_weights(local, run)
    refuse_other_counts(local, run)
    assert result["exact"] and result["skipped"] == [] and result["rewinds"] > 0
    assert caplog.text.count("damaged snapshot") == 2


def _thread_that_ends(run) -> threading.Thread:
    wait_for(lambda: run.errors, 60, "a full disk")
    wait_for(lambda: any(not one.is_alive() for one in run.threads))
    return next(one for one in run.threads if not one.is_alive())


def test_what_killed_processes_left_half_written_is_gone_when_the_folder_is_taken_up_again(tmp_path):
    folder = tmp_path / "server"
    deploy._begin(folder, PLAN).release()
    (folder / "snapshots").mkdir()
    for name in ("result.json.77.writing", "snapshots/snapshot-3.safetensors.77.writing", "snapshots/.tmpAb3"):
        (folder / name).write_bytes(b"half")
    deploy._begin(folder, PLAN).release()
    assert sorted(path.name for path in folder.rglob("*")) == ["plan.json", "snapshots"]


def test_a_folder_that_could_not_be_begun_is_begun_by_the_next_command(tmp_path):
    refused = 0
    for room in range(12):
        with full_disk(room, where="/ward-a/"), contextlib.suppress(DiskFull):
            _, lock = deploy._with_secret(PLAN, tmp_path / "ward-a")
            lock.release()
            break
        refused += 1
    assert refused > 4 and (tmp_path / "ward-a" / SECRET).exists()


@pytest.mark.parametrize("file", [SECRET, "plan.json"])
def test_an_emptied_file_of_a_client_is_named_with_what_can_still_be_done(file, tmp_path):
    _, lock = deploy._with_secret(PLAN, tmp_path)
    lock.release()
    (tmp_path / file).write_text("")
    with pytest.raises(ValueError, match=rf"{file} is empty or damaged.* put back a copy .*anew with another --out"):
        deploy.join(PLAN, "ward-a", tmp_path, address=Address("127.0.0.1:1"))
