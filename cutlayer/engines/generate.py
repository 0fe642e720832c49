"""Writing with a causal network by split inference: the client names each next token, the server never sees words.

The client keeps what its layers make of the text so far, so that a new token costs it one token's work. The server
keeps z of the text, so that only new places cross, and of a decoder's body what it made of them
(`training/growing_text.py`).
"""

import secrets
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batch import PAD, Batch
from ..core.features import Features
from ..core.message import Kind
from ..core.seeds import derive, generator
from ..core.split import Split
from ..data.meaning import Meaning
from ..data.tokenizer import Tokenizer
from ..nets.text_blocks import Memory
from ..nets.text_decoder import DecoderHead
from ..training.batches import task_of
from ..training.growing_text import SendsNewPlaces, grows
from ..training.labels import refuse_unfit_labels
from ..training.step import ClientNetwork
from ..training.step import predict as logits_of
from ..wire.ledger import DOWN, UP, Ledger
from .folder import known_scale, learnt_from, load_plan, refuse_other_meaning, with_words
from .predict import Over, network_here, network_there, refuse_stream


class RememberingHead(nn.Module):
    """A causal head for one text that grows at its end: z of tokens it has seen is kept, not computed again."""

    def __init__(self, head: DecoderHead):
        super().__init__()
        self.head, self.place = head, 0
        self.memories = [Memory() for _ in head.blocks]
        self._z: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor | Features:
        """`x` (1, length) is the text so far, padded; z of padding is 0, and no earlier place looks at it."""
        words = int((x != PAD).sum())
        new = self.head.going_on(x[:, self.place : words], self.place, self.memories)
        if self._z is None:
            self._z = new.new_zeros(1, x.shape[1], new.shape[2])
        self._z = torch.cat([self._z[:, : self.place], new, self._z[:, words:]], 1)
        self.place = words
        return self.head.sent(self._z)


@dataclass(frozen=True)
class Writing:
    """How much is written, and how freely: 0 takes the likeliest token, 1 draws by the network's probabilities."""

    tokens: int = 20
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 1 or not 0 <= self.temperature < float("inf"):
            raise ValueError(
                f"--tokens is at least 1 and --temperature 0 or more; got {self.tokens} and {self.temperature}"
            )


@dataclass(frozen=True)
class Written:
    """The text, prompt included, its ids, and what each new token cost."""

    text: str
    ids: list[int]
    new: int
    seconds: list[float]
    bytes_up: list[int]
    bytes_down: list[int]
    full: bool  # the text has reached the length that the network reads
    ended: bool = False  # the network has written the sign that ends a text

    def summary(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "tokens": self.new,
            "full": self.full,
            "ended": self.ended,
            "tokens_per_second": self.new / max(sum(self.seconds), 1e-9),
            "bytes_up": sum(self.bytes_up) / max(1, self.new),
            "bytes_down": sum(self.bytes_down) / max(1, self.new),
        }


def generate(
    folder: Path,
    prompt: str,
    writing: Writing | None = None,
    over: Over | None = None,
    *,
    data_dir: Path | None = None,
    device: str = "cpu",
) -> Written:
    """Go on with `prompt` by the network of a run that has learnt next tokens; `folder`, `over` as for `predict`."""
    plan, writing, ledger = load_plan(folder), writing or Writing(), Ledger()
    refuse_stream(plan, "one text is one", "take it for batches of texts alone, with `cutlayer predict`")
    data = with_words(learnt_from(folder, plan), folder)
    loaded = data.load(data_dir, known_scale(folder))
    refuse_other_meaning(folder, Meaning.of(loaded), repr(data))
    task = task_of(loaded.train, len(loaded.classes))
    if not task.vocabulary or loaded.train.y.dim() < 2:
        raise ValueError(f"{folder} has not learnt which token comes next: train it on data with next_token=True")
    if loaded.tokenizer is None:
        raise ValueError(f"{folder} cannot write: the words of its token ids are not known: train it on Texts")
    refuse_unfit_labels(plan, task, loaded.train.y)
    ids, ends = start_of(prompt, loaded.tokenizer, task.shape[0])
    before, seconds, up, down = len(ids), list[float](), list[int](), list[int]()
    there = None if over is None else network_there(plan, folder, ledger, task, over, device)
    with there or network_here(plan, folder, ledger, task, data_dir, device) as client:
        secret = derive(plan.private_seed or 0, "generate", secrets.token_hex(8))
        sender = SendsNewPlaces() if grows(plan, task) else None
        began = time.perf_counter()
        with client.remote.watched(sender) if sender else nullcontext():
            words = readable(loaded.tokenizer)
            for token in continued(client, ids, task.shape[0], writing, secret, sender, words):
                ids.append(token)
                seconds.append(time.perf_counter() - began)
                up.append(ledger.bytes[Kind.PREDICT.name, UP] - sum(up))
                down.append(ledger.bytes[Kind.PREDICT.name, DOWN] - sum(down))
                began = time.perf_counter()
                if token in ends:
                    break
    text = loaded.tokenizer.decode(ids)
    new, ended = len(ids) - before, ids[-1] in ends
    return Written(text, ids, new, seconds, up, down, full=len(ids) > task.shape[0] and not ended, ended=ended)


def start_of(prompt: str, tokenizer: Tokenizer, length: int) -> tuple[list[int], list[int]]:
    """The ids of a prompt, as of a text that has not ended, and those that would say that it has."""
    ids, ends = tokenizer.encode(prompt), tokenizer.behind(prompt)
    ids = ids[: len(ids) - len(ends)]
    if not ids:
        raise ValueError("the prompt has no word: give one to begin with")
    if len(ids) > length:
        raise ValueError(f"the prompt has {len(ids)} tokens and the network reads {length}: shorten it")
    return ids, ends[:1]


def continued(
    client: ClientNetwork,
    ids: list[int],
    length: int,
    writing: Writing,
    seed: int,
    sender: SendsNewPlaces | None = None,
    words: Tensor | None = None,
) -> Iterator[int]:
    """New tokens one by one; whoever asks for the next has put the last behind `ids`.

    `sender` watches the client's remote, and is told how long the text is. `words`: which ids can be read, for the
    first ones; a network may have room for more.
    """
    split = remembering(client.split)
    draw = generator(derive(writing.seed, "writing"))
    device = next(client.split.parameters()).device
    for _ in range(min(writing.tokens, length + 1 - len(ids))):
        if sender is not None:
            sender.words = len(ids)
        x = torch.full((1, length), PAD, device=device)
        x[0, : len(ids)] = torch.tensor(ids, device=device)
        scores = logits_of(replace(client, split=split), [Batch(x, x, seed=seed)])[0, :, len(ids) - 1].cpu()
        yield _chosen(scores, words, writing.temperature, draw)


def remembering(split: Split) -> Split:
    """The client's network for one text that grows: its head computes what is new."""
    if not isinstance(split.head, DecoderHead):
        return split  # e.g. a body behind it, where nothing crosses: all of it is computed again
    other = type(split).__new__(type(split))
    nn.Module.__init__(other)
    other.__dict__.update({name: value for name, value in split.__dict__.items() if name != "_modules"})
    for name, part in split.named_children():
        setattr(other, name, RememberingHead(split.head) if name == "head" else part)
    return other


def readable(tokenizer: Tokenizer) -> Tensor:
    """Which ids have a word: neither padding, nor what stands for every other word."""
    return torch.tensor([place not in (PAD, tokenizer.unknown) for place in range(len(tokenizer.words))])


def _chosen(scores: Tensor, words: Tensor | None, temperature: float, draw: torch.Generator) -> int:
    words = torch.arange(len(scores)) != PAD if words is None else words
    scores = scores[: len(words)].double().masked_fill(~words, -torch.inf)
    if not temperature:
        return int(scores.argmax())
    scores = (scores - scores.max()) / temperature  # what is left of the likeliest is 0, however cold it is
    return int(torch.multinomial(scores.softmax(0), 1, generator=draw))
