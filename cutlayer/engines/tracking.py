"""What happens in a run as events: JSON lines in its folder always; TensorBoard, MLflow or wandb if asked for.

    follow, track = tracked(Following(), folder, ["tensorboard"])
    result = train(plan, folder, follow=follow)
    track.finished(result)

An event is a dict with `event` (start, step, epoch, row, picture, result), a `step`, and plain figures. A tracker
is a function of such an event; one line in `TRACKERS` makes another one known.
"""

import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..wire.ledger import DOWN, UP

if TYPE_CHECKING:
    from ..training.progress import StepEvent
    from .local.run import LocalRun
    from .local.start import Following

Event = Mapping[str, Any]
Tracker = Callable[[Event], None]
FILE = "events.jsonl"
EVERY = 10  # steps: losses of single steps are many, and much alike


class Tracking:
    """One callback over the events of a run, for all who listen."""

    def __init__(self, folder: Path, names: Iterable[str] = ()):
        self.folder = folder
        self.names = list(dict.fromkeys(names))
        refuse_unknown(self.names)
        self._trackers: list[Tracker] | None = None
        self._run: LocalRun | None = None

    def __call__(self, event: str, **facts: Any) -> None:
        if self._trackers is None:  # the folder is there by now: whoever made it was not surprised by a file in it
            self._trackers = [JsonLines(self.folder), *(TRACKERS[name](self.folder) for name in self.names)]
        for tracker in self._trackers:
            tracker({"event": event, **facts})

    def started(self, run: "LocalRun") -> None:
        self._run = run
        self("start", step=run.progress.step, plan=repr(run.plan))

    def stepped(self, event: "StepEvent") -> None:
        if event.step % EVERY == 0:
            self("step", step=event.step, **event.terms)

    def epoch(self, row: Mapping[str, Any]) -> None:
        self("epoch", **row, **self._crossed(), **self._leaks())

    def finished(self, result: Mapping[str, Any]) -> None:
        self("result", step=result["steps"], **_figures(result))

    def _crossed(self) -> dict[str, float]:
        if self._run is None or not self._run.ledger.samples["training"]:
            return {}
        return {"bytes_up": self._run.ledger.per_sample(UP), "bytes_down": self._run.ledger.per_sample(DOWN)}

    def _leaks(self) -> dict[str, float]:
        """What clients' leak meters measured so far."""
        found: dict[str, float] = {}
        for client in self._run.clients if self._run is not None else ():
            for one in client.detection.report():
                for name, value in (one.get("leak_so_far") or {}).items():
                    found[f"leak_{name}_client_{client.number}"] = value
        return found


def tracked(follow: "Following", folder: Path, names: Iterable[str] = ()) -> "tuple[Following, Tracking]":
    """`follow`, which also tells a new tracking what happens."""
    track = Tracking(folder, names)

    def started(run: "LocalRun") -> None:
        follow.on_start(run)
        track.started(run)

    def stepped(event: "StepEvent") -> None:
        follow.on_step(event)
        track.stepped(event)

    def epoch(row: dict[str, Any]) -> None:
        follow.on_epoch(row)
        track.epoch(row)

    return replace(follow, on_start=started, on_step=stepped, on_epoch=epoch), track


def refuse_unknown(names: Iterable[str]) -> None:
    """Before anything is trained: the name is known, and its package is here."""
    for name in names:
        if name not in TRACKERS:
            raise ValueError(f"--track is one of {', '.join(TRACKERS)}; got {name!r}")
        importlib.import_module(name)


def _figures(event: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in event.items() if type(value) in (int, float)}


def _named(event: Event) -> dict[str, float]:
    """Figures under names that keep apart what belongs to different rows of an audit."""
    whose = "/".join(str(event[name]) for name in ("guard", "attack") if name in event)
    plain = {name: value for name, value in _figures(event).items() if name not in ("step", "epoch", "seed")}
    return {f"{whose or event['event']}/{name}": value for name, value in plain.items()}


class JsonLines:
    def __init__(self, folder: Path):
        self._path = folder / FILE

    def __call__(self, event: Event) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(dict(event), default=str) + "\n")


class TensorBoard:
    def __init__(self, folder: Path):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def __call__(self, event: Event) -> None:
        if event["event"] == "start":
            self._writer.add_text("plan", event["plan"])
        elif event["event"] == "picture":
            self._writer.add_image(event["name"], _pixels(event["path"]), dataformats="HWC")
        for name, value in _named(event).items():
            self._writer.add_scalar(name, value, event.get("step", 0))
        self._writer.flush()


class MLflow:
    """Where MLFLOW_TRACKING_URI points, else ./mlruns."""

    def __init__(self, folder: Path):
        import mlflow

        self._mlflow = mlflow
        mlflow.set_experiment("cutlayer")
        mlflow.start_run(run_name=folder.name)

    def __call__(self, event: Event) -> None:
        if event["event"] == "start":
            self._mlflow.set_tag("plan", event["plan"])
        elif event["event"] == "picture":
            self._mlflow.log_artifact(str(event["path"]))
        # MLflow takes letters, digits and a few marks in names.
        plain = {"".join(c if c.isalnum() or c in "_-./ " else "_" for c in n): v for n, v in _named(event).items()}
        self._mlflow.log_metrics(plain, step=event.get("step", 0))
        if event["event"] == "result":
            self._mlflow.end_run()


class Wandb:
    """Online or not as WANDB_MODE says."""

    def __init__(self, folder: Path):
        import wandb

        self._wandb = wandb
        self._run = wandb.init(project="cutlayer", name=folder.name, dir=str(folder))

    def __call__(self, event: Event) -> None:
        if event["event"] == "start":
            self._run.config.update({"plan": event["plan"]}, allow_val_change=True)
        elif event["event"] == "picture":
            self._run.log({event["name"]: self._wandb.Image(str(event["path"]))})
        if named := _named(event):
            self._run.log({**named, "step": event.get("step", 0)})
        if event["event"] == "result":
            self._run.finish()


TRACKERS: dict[str, Callable[[Path], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": Wandb}


def _pixels(path: Path) -> Any:
    import numpy as np
    from PIL import Image

    return np.asarray(Image.open(path).convert("RGB"))
