"""What copies' optimizers remember is the same wherever it lies, and a file of it is nobody else's."""

import errno
import os
import tempfile

import pytest
import torch
from toys import TASK, tiny_parts, tiny_plan

from cutlayer.engines.local.run import LocalRun
from cutlayer.rules import FedAvg
from cutlayer.training import laid_by as module
from cutlayer.training.laid_by import laid_by
from cutlayer.training.plan.optimizers import SGD, Adam
from cutlayer.training.plan.schedule import SplitFed


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


STATE = {
    "optimizer.0.momentum_buffer": torch.randn(7, 5),
    "optimizer.0.step": torch.tensor(3.0),
    "optimizer.1.momentum_buffer": torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last),
    "optimizer.2.empty": torch.zeros(0, 3),
    "optimizer.3.half": torch.randn(9).bfloat16(),
    "optimizer.4.double": torch.randn(3).double(),
    "optimizer.5.part": torch.randn(40)[3:10],
}


def same(one, other):
    assert list(one) == list(other)
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype and torch.equal(tensor, other[name])
        assert tensor.stride() == other[name].stride()


def test_what_is_too_much_lies_in_a_file_that_has_no_name(folder, monkeypatch):
    monkeypatch.setattr(module, "IN_MEMORY", 0)
    lying = laid_by(STATE, others=0)
    same(STATE, lying)
    assert all(lying[name] is not tensor for name, tensor in STATE.items())
    assert not list(folder.iterdir())
    lying["optimizer.0.step"] += 1
    assert float(STATE["optimizer.0.step"]) == 3


def test_it_takes_no_memory_before_somebody_looks(monkeypatch):
    def resident():
        with open("/proc/self/statm") as told:
            return int(told.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    state = {"optimizer.0.momentum_buffer": torch.ones(1 << 23)}  # 32 MiB
    laid_by(state, others=1 << 10)  # what is needed once
    before = resident()
    lying = [laid_by(state, others=1 << 10) for _ in range(3)]
    assert resident() - before < 16 << 20
    assert float(lying[2]["optimizer.0.momentum_buffer"].sum()) == 1 << 23
    assert resident() - before > 16 << 20, "else nothing was measured"


def test_what_is_little_stays_where_it_is():
    assert laid_by(STATE, others=3) is STATE
    assert laid_by(STATE, others=module.IN_MEMORY) is not STATE, "many of them are not little"


def test_without_room_for_a_file_it_stays_in_memory(folder, monkeypatch):
    def full(number, content):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(module, "IN_MEMORY", 0)
    monkeypatch.setattr(module, "write_all", full)
    assert laid_by(STATE, others=0) is STATE
    assert not list(folder.iterdir())


@pytest.mark.parametrize("optimizer", [SGD(lr=0.05, momentum=0.9), Adam(lr=0.01)], ids=str)
def test_a_run_learns_the_same_and_goes_on_from_a_snapshot(monkeypatch, optimizer):
    def trained(in_memory):
        monkeypatch.setattr(module, "IN_MEMORY", in_memory)
        plan = tiny_plan(
            clients=3, rounds=SplitFed(), rule=FedAvg(), local_steps=1, batch_size=4, server_optimizer=optimizer
        )
        run, again = (LocalRun(plan, tiny_parts(), classes=TASK.classes) for _ in range(2))
        rounds = run.timetable.rounds(0)
        for turns in rounds[:2]:
            run.take(turns)
        held = run.server.bodies.kept()[1]
        again.restore(*run.snapshot())
        for turns in rounds[2:4]:
            run.take(turns)
            again.take(turns)
        same(run.tensors(), again.tensors())
        return run.tensors(), len({t.untyped_storage().data_ptr() for t in held.values()}) == 1

    (plain, together), (lying, in_a_file) = trained(1 << 30), trained(0)
    same(plain, lying)
    assert in_a_file and not together
