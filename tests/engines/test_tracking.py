"""Events of a run: JSON lines, and the same told to whoever follows runs."""

import json
import sys
from types import SimpleNamespace

import pytest
from toys import tiny_plan

from cutlayer.data import Fashion
from cutlayer.engines.local.start import Following, train
from cutlayer.engines.tracking import FILE, Tracking, tracked


class Heard:
    """Stands for mlflow and for wandb: remembers what it was told, in the calls that both packages have."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*arguments, **named):
            self.calls.append((name, arguments, named))
            return self

        return call

    @property
    def config(self):
        return self

    def figures(self, call):
        return [arguments[0] for name, arguments, _ in self.calls if name == call]


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """A small run with both packages listening."""
    folder = tmp_path_factory.mktemp("tracked") / "a"
    heard = {"mlflow": Heard(), "wandb": Heard()}
    with pytest.MonkeyPatch.context() as patch:
        for name, fake in heard.items():
            patch.setitem(sys.modules, name, fake)
        follow, track = tracked(Following(), folder, ["mlflow", "wandb"])
        plan = tiny_plan(epochs=2, batch_size=8, data=Fashion(limit=160))
        result = train(plan, folder, follow=follow)
        track.finished(result)
        track("picture", name="grid", path=folder / "grid.png")
    lines = [json.loads(line) for line in (folder / FILE).read_text().splitlines()]
    return lines, heard, result


def test_json_lines_have_every_kind_of_event(events):
    lines, _, result = events
    kinds = [line["event"] for line in lines]
    assert kinds[0] == "start" and kinds[-2:] == ["result", "picture"] and kinds.count("epoch") == 2
    assert "step" in kinds and all("task" in line for line in lines if line["event"] in ("step", "epoch"))
    last = [line for line in lines if line["event"] == "epoch"][-1]
    assert last["bytes_up"] == pytest.approx(result["bytes_up"]) and last["bytes_down"] > 0
    assert lines[-2]["accuracy"] == result["accuracy"]


@pytest.mark.parametrize(
    ("package", "call", "end"), [("mlflow", "log_metrics", "end_run"), ("wandb", "log", "finish")]
)
def test_others_are_told_the_same_figures(events, package, call, end):
    _, heard, result = events
    told = heard[package].figures(call)
    names = {name for figures in told for name in figures}
    assert {"epoch/task", "epoch/bytes_up", "step/task", "result/accuracy"} <= names
    assert any(figures.get("result/accuracy") == result["accuracy"] for figures in told)
    assert sum(name == end for name, _, _ in heard[package].calls) == 1


def test_a_leak_that_clients_measure_is_told(tmp_path):
    report = [{"leak_so_far": {"ssim": 0.7}}]
    client = SimpleNamespace(number=3, detection=SimpleNamespace(report=lambda: report))
    track = Tracking(tmp_path)
    track._run = SimpleNamespace(clients=[client], ledger=SimpleNamespace(samples={"training": 0}))
    track.epoch({"epoch": 1, "step": 4, "loss": 0.5})
    assert json.loads((tmp_path / FILE).read_text()) == {
        "event": "epoch", "epoch": 1, "step": 4, "loss": 0.5, "leak_ssim_client_3": 0.7,
    }  # fmt: skip
