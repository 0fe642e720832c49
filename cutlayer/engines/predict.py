"""Split inference with a trained network: in this process, or with the body on a server."""

import csv
import io
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.batch import NO_LABEL, Task
from ..core.message import Kind, through
from ..core.remote import Remote
from ..core.seeds import derive
from ..data.meaning import Meaning
from ..data.paths import Paths
from ..data.streamed import soon_of
from ..training import checkpoint
from ..training.batches import as_batch, in_batches, task_of
from ..training.build import build_client
from ..training.evaluation import confusion, mean_iou, mean_iou_of_each, perplexity, surprise_of_each
from ..training.facts.link import Link
from ..training.plan.plan import Plan
from ..training.step import ClientNetwork, load
from ..training.step import predict as logits_of
from ..wire.ledger import DOWN, UP, Ledger
from .folder import known_meaning, known_scale, learnt_from, load_plan, refuse_other_meaning, with_words
from .inputs import Inputs as Inputs
from .inputs import refuse_stream as refuse_stream
from .local import start


@dataclass(frozen=True)
class Predictions:
    """Class and confidence for every sample (or every pixel), and what it cost."""

    classes: tuple[str, ...]
    found: Tensor  # a class a sample, or a map of classes
    confidence: Tensor  # of each sample; the mean over its pixels
    labels: Tensor  # NO_LABEL where nobody knows
    seconds: list[float]  # of each message, from input to answer
    bytes_up: list[int]  # of each message
    bytes_down: list[int]
    stream: bool = False
    link: Link | None = None  # to say how long it would take over
    left: int = 0  # samples of the same data that would train, and were not predicted
    surprise: Tensor | None = None  # of next tokens: the sum over the places of each text (evaluation.py)
    places: Tensor | Paths | None = None  # of each sample: its row in the file, or its file

    @property
    def maps(self) -> bool:
        """Whether every pixel has a class."""
        return self.found.dim() > 1 and self.surprise is None

    @cached_property
    def known(self) -> bool:
        """Whether there is a label to compare with."""
        return bool((self.labels != NO_LABEL).any())

    @cached_property
    def right(self) -> Tensor:
        """The share of right classes in each sample: 0 or 1, or anything between where every place has one."""
        hits = (self.found == self.labels).reshape(len(self.found), -1)
        return hits.sum(1).double() / self._judged.clamp_min(1)

    @property
    def _judged(self) -> Tensor:
        """How many places of each sample have a label."""
        return (self.labels != NO_LABEL).reshape(len(self.labels), -1).sum(1)

    def summary(self) -> dict[str, Any]:
        number = len(self.found)
        told: dict[str, Any] = {
            "mode": "stream" if self.stream else "batch",
            "samples": number,
            "batches": len(self.seconds),
        }
        if self.known:
            told["accuracy"] = float(self.right.mean())
        if self.maps and self.known:
            told["mean_iou"] = mean_iou(self._confusion())
        if self.surprise is not None:
            tokens = int(self._judged.sum())
            told["accuracy"] = float((self.right * self._judged).sum() / tokens)
            told["perplexity"] = perplexity(float(self.surprise.sum()), tokens)
        if self.left:
            told["left_for_training"] = self.left
        told |= _speed(self.seconds, number)
        told |= {"bytes_up": sum(self.bytes_up) / number, "bytes_down": sum(self.bytes_down) / number}
        if self.link is not None:
            told["link"] = {"link": str(self.link), **_speed(self._over(self.link), number)}
        return told

    def _confusion(self) -> Tensor:
        some = zip(self.found.split(64), self.labels.split(64), strict=True)
        return torch.stack([confusion(found, truth, len(self.classes)) for found, truth in some]).sum(0)

    def _over(self, link: Link) -> list[float]:
        """Seconds of each message if it crossed this link: computed as here, its bytes, and a round trip. Where
        nothing crosses, nothing is waited for."""
        return [
            spent + (link.seconds(up) + link.back.seconds(down) + link.rtt if up or down else 0.0)
            for spent, up, down in zip(self.seconds, self.bytes_up, self.bytes_down, strict=True)
        ]

    def as_csv(self) -> str:
        """A line a sample; in a stream also what each took and weighed."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        columns = self._of_maps() if self.maps else self._of_classes() if self.surprise is None else self._of_texts()
        if self.stream:
            columns["ms"] = [f"{1e3 * spent:.3f}" for spent in self.seconds]
            columns |= {"bytes_up": self.bytes_up, "bytes_down": self.bytes_down}
        if isinstance(self.places, Paths):
            columns["file"] = list(map(str, self.places))
        elif self.places is not None:
            columns["row"] = self.places.tolist()
        rows.writerow(["sample", *columns])
        rows.writerows([number, *row] for number, row in enumerate(zip(*columns.values(), strict=True)))
        return text.getvalue()

    def _of_classes(self) -> dict[str, list[Any]]:
        told = {
            "predicted": [self.classes[which] for which in self.found],
            "confidence": [f"{sure:.4f}" for sure in self.confidence],
        }
        return told | ({"label": [self.classes[which] for which in self.labels]} if self.known else {})

    def _of_maps(self) -> dict[str, list[Any]]:
        if not self.known:
            return {"confidence": [f"{sure:.4f}" for sure in self.confidence]}
        each = mean_iou_of_each(self.found, self.labels, len(self.classes))
        figures = {"mean_iou": each, "accuracy": self.right, "confidence": self.confidence}
        return {name: [f"{value:.4f}" for value in values] for name, values in figures.items()}

    def _of_texts(self) -> dict[str, list[Any]]:
        assert self.surprise is not None
        each = [perplexity(float(all), int(count)) for all, count in zip(self.surprise, self._judged, strict=True)]
        return {
            "perplexity": [f"{value:.4f}" for value in each],
            "accuracy": [f"{value:.4f}" for value in self.right],
            "confidence": [f"{value:.4f}" for value in self.confidence],
        }


def _speed(seconds: list[float], samples: int) -> dict[str, Any]:
    times = torch.tensor(seconds, dtype=torch.float64) * 1e3
    shares = {"median": 0.5, "p95": 0.95, "p99": 0.99}
    return {
        "latency_ms": {name: float(times.quantile(share)) for name, share in shares.items()},
        "samples_per_second": samples / sum(seconds),
    }


@dataclass(frozen=True)
class Over:
    """The server that has the body, and as whom this client comes to it."""

    server: str  # HOST:PORT
    name: str
    identity: Path | None = None  # folder of its certificate; None: without TLS


def predict(
    folder: Path,
    inputs: Inputs | None = None,
    over: Over | None = None,
    *,
    given: Plan | None = None,
    link: Link | None = None,
    device: str = "cpu",
    on_batch: Callable[[int, int], None] = lambda done, all: None,
) -> Predictions:
    """Samples through the network in `folder`: one of `cutlayer train`, or of `cutlayer join` together with the
    server that has the body. `given`: the plan, where a recipe's own network is in it. `link`: also say how long it
    would take over that."""
    plan, inputs = load_plan(folder, given), inputs or Inputs()
    if inputs.data is not None:
        inputs = replace(inputs, data=with_words(inputs.data, folder))
    if not inputs.labelled or inputs.data is None:  # what the network knows is asked for
        plan = replace(plan, data=with_words(learnt_from(folder, plan), folder))
    loaded, samples = inputs.load(plan, known_scale(folder))
    names = loaded.classes
    if inputs.labelled:
        refuse_other_meaning(folder, Meaning.of(loaded), repr(inputs.data or plan.data))
    else:
        refuse_other_meaning(folder, replace(Meaning.of(loaded), classes=()), repr(plan.data))
        if len(known := known_meaning(folder).classes) == len(names):
            names = known  # a site's own data may have others than the plan's
    left = len(loaded.train) if inputs.data is not None and inputs.labelled else 0
    ledger, stream = Ledger(), inputs.stream
    task = task_of(loaded.train, len(loaded.classes))
    with (
        network_here(plan, folder, ledger, task, inputs.data_dir, device)
        if over is None
        else network_there(plan, folder, ledger, task, over, device)
    ) as client:
        # Noise is drawn anew by every process: the same image twice must not meet the same noise.
        secret = derive(plan.private_seed or 0, "predict", secrets.token_hex(8))
        size = plan.batch_size if plan.guard.mixes_samples else 1 if stream else inputs.size
        found, confidence, seconds, up, down = [], [], [], [], []
        surprise = list[Tensor]()
        batches = in_batches(torch.arange(len(samples)), size, 1 if stream else plan.least_batch)
        labels = list[Tensor]()
        for number, index in enumerate(batches):
            samples.soon(soon_of(batches, number))
            before = [ledger.bytes[Kind.PREDICT.name, way] for way in (UP, DOWN)]
            began = time.perf_counter()
            batch = as_batch(samples, index, derive(secret, number)).to(device)
            scores = logits_of(client, [batch])
            if scores.shape[2:] != batch.y.shape[1:]:  # a tail may give maps of the size that it has learnt
                raise RuntimeError(f"there are scores of {tuple(scores.shape)} for labels of {tuple(batch.y.shape)}")
            best = scores.softmax(1).max(1)
            # Maps of many large images are kept for the report: in as few bytes as hold a class.
            kept = torch.int16 if best.indices.dim() > 2 else torch.int64
            found.append(best.indices.to(kept).cpu())
            labels.append(batch.y.to(kept).cpu())
            seconds.append(time.perf_counter() - began)
            confidence.append(best.values.reshape(len(index), -1).double().mean(1).cpu())
            if samples.vocabulary and samples.y.dim() > 1:
                surprise.append(surprise_of_each(scores, batch.y).cpu())
            up.append(ledger.bytes[Kind.PREDICT.name, UP] - before[0])
            down.append(ledger.bytes[Kind.PREDICT.name, DOWN] - before[1])
            on_batch(int(index[-1]) + 1, len(samples))
    names = (*names, *range(len(names), scores.shape[1]))  # of classes that these samples have nothing of
    return Predictions(
        tuple(map(str, names)), torch.cat(found), torch.cat(confidence), torch.cat(labels),
        seconds, up, down, stream, link, left, torch.cat(surprise) if surprise else None, samples.places,
    )  # fmt: skip


@contextmanager
def network_here(
    plan: Plan, folder: Path, ledger: Ledger, task: Task, data_dir: Path | None, device: str
) -> Iterator[ClientNetwork]:
    """The client of a run whose body is in this process, for samples of this `task`."""
    if not (folder / "last.safetensors").exists() and (folder / "client.safetensors").exists():
        raise ValueError(
            f"{folder} is a client's part of a run between machines, and the body is at its server: "
            "give --server HOST:PORT --as NAME"
        )
    run = start.ready(plan, data_dir, device)
    tensors, facts = checkpoint.load(folder / "last.safetensors")
    if plan.patience and facts["best"][1]:  # it has had a best epoch
        tensors, facts = checkpoint.load(folder / "best.safetensors")
    run.restore(tensors, facts)
    client = run.newest(0)
    try:
        yield replace(client, remote=Remote(client.number, through([ledger], run.server.handle)))
    except RuntimeError as error:  # some networks take pictures of any size
        raise (_other_shape(folder, task, run.task.shape) if task.shape != run.task.shape else error) from None


@contextmanager
def network_there(
    plan: Plan, folder: Path, ledger: Ledger, task: Task, over: Over, device: str
) -> Iterator[ClientNetwork]:
    """A client that took part in a run, with the body at the server."""
    path = folder / "client.safetensors"
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds no finished part in a run: there is no {path.name} in it")
    state, facts = checkpoint.load(path)
    shape, classes = facts.get("task", task)[:2]
    if task.shape != tuple(shape):
        raise _other_shape(folder, task, tuple(shape))
    task = task._replace(classes=classes)
    from .grpc import certs  # grpcio is needed for this alone
    from .grpc.channel import Address
    from .grpc.visitor import PredictOnlyClient

    identity = certs.read_identity(over.identity, "client") if over.identity else None
    address = Address(over.server, identity, give_up=60.0)
    with PredictOnlyClient(plan, task, over.name, address, ledger) as visitor:
        client = build_client(plan, task, visitor.number, visitor.ask, device)
        if visitor.number != facts["number"]:
            raise ValueError(f"{folder} is client {facts['number']}'s, {over.name} is client {visitor.number}")
        load(client, {key: tensor.to(device) for key, tensor in state.items()})
        yield client


def _other_shape(folder: Path, task: Task, learnt: tuple[int, ...]) -> ValueError:
    ours, theirs = (" x ".join(map(str, shape)) for shape in (task.shape, learnt))
    return ValueError(
        f"the samples are {ours}, and the network in {folder} has learnt from {theirs}: give it data in the form of "
        "its training data"
    )
