"""An attack gets what the server gets, and nothing else; what it was told beforehand is written down."""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from ..core.batch import Task
from ..core.guard import GuardModule, Shape
from ..core.message import Handler, Kind, Message
from ..core.spec import Spec
from ..core.state import State
from ..guards.base import Guard
from ..nets.base import Net

FORMS = ("oblivious", "lift", "matched", "matched+lift")  # of knowing a guard, the weakest first
# Fields by which an attack works longer or with larger networks.
EFFORT = (
    "steps", "reader_steps", "rounds", "input_steps", "clone_steps", "warm", "starts", "restarts", "width", "hidden",
    "reader_width", "readers", "epochs", "prior_steps",
)  # fmt: skip
AMOUNTS = ("images", "records", "series")  # inputs whose numbers are amounts, not names of words
ANY_INPUT = (*AMOUNTS, "texts")
EVERY = ""  # of a field that says which form: none is asked for, so an audit runs each one that makes a difference


@dataclass(frozen=True)
class KnownGuard:
    """The guard as the server's plan has it: its settings and public seed, never a client's key."""

    spec: Guard
    shape: Shape  # of what the guard reads
    public: int
    task: Task
    true_key: int | None = None  # a client's private seed: handed out by the judge alone, as a ceiling
    rests: bool = False  # what is to be read was sent in service, where the guard rests

    def copy(self, own: int) -> GuardModule:
        """A client's half with keys of the attacker's own drawing."""
        return self.spec.build(self.shape, self.public, own, self.task).train(not self.rests)

    def undo(self) -> nn.Module | None:
        return self.spec.undo(self.shape, self.public)


class Pass(NamedTuple):
    """What the server recorded of one pass over the client's data, and the client as it was then (white box)."""

    messages: Sequence[Message]
    encode: Callable[[Tensor, Tensor], Tensor]


class Turn(NamedTuple):
    """One batch of a client whose weights pass through the server's hands: what it sent, the gradient that it was
    answered with, and its weights (with optimizer state, where that travels) before and after its step."""

    upload: Message
    dz: Tensor
    before: State
    after: State


class Published(NamedTuple):
    """Head, with the client's guard, and tail as they were in a file that everybody may have, before the training."""

    encode: Callable[..., Tensor]
    tail: nn.Module


@dataclass(frozen=True)
class Knowledge:
    """All that an attacker can be told beyond the messages. An attack is handed the fields it names, no others."""

    task: Task | None = None  # the shape of an input, the number of classes: both sides know these anyway
    aux: Tensor | None = None  # images like the victim's, none of them the victim's
    aux_labels: Tensor | None = None
    aux_attributes: dict[str, Tensor] | None = None
    private: tuple[Tensor, Tensor] | None = None  # images of the victim's own and their labels, none of them scored
    observed: Sequence[Message] | None = None  # what the server recorded of one whole pass over the client's data
    history: Sequence[Message] | None = None  # what it recorded while the client learnt, in the order it came
    passes: Sequence[Pass] | None = None  # of its last epochs, the oldest first
    # For each of these, and last for the messages to be read: which row stands for each sample. The judge's alone.
    order: Sequence[Tensor] | None = None
    turns: Sequence[Turn] | None = None  # with the messages to be read: the step that each batch of them led to
    net: Net | None = None  # the architecture, without weights
    tail: nn.Module | None = None  # white box: the client's last layers
    published: "Published | None" = None  # of a client that began with weights of a file
    bodies: Sequence[nn.Module] | None = None  # the server's own part at the end of each epoch of `history`
    body: nn.Module | None = None  # the server's own part: lift, body and, where labels travel, the classifier
    # White box: images and labels -> what would be sent, and as a third argument which draw of the guard's noise.
    encode: Callable[..., Tensor] | None = None
    head: Callable[[Tensor, Tensor], Tensor] | None = None  # the same without the guard: activations of the cut
    guard: KnownGuard | None = None
    undo: nn.Module | None = None  # the public map of the guard back to the shape of the cut

    def only(self, names: Sequence[str]) -> "Knowledge":
        """This knowledge without everything that is not in `names`; what is needed and missing is an error."""
        missing = [name for name in names if name in REQUIRED and getattr(self, name) is None]
        if missing:
            raise ValueError(
                f"the attack needs {' and '.join(REQUIRED[name] for name in missing)}, but was not given it"
            )
        return Knowledge(**{name: getattr(self, name) for name in names})


REQUIRED = {
    "task": "the shape of an input",
    "aux": "auxiliary images (set some aside: --aux-samples N)",
    "aux_labels": "labels of the auxiliary images",
    "aux_attributes": "sensitive attributes of the auxiliary images",
    "private": "some of the client's own images",
    "observed": "recorded messages of a pass over the client's data",
    "history": "what was recorded while the client learnt",
    "passes": "messages and heads of several epochs, which an audit records",
    "order": "the order of the samples in every epoch, which an audit records",
    "turns": "weights that change hands after every batch, which a run with several clients has",
    "net": "the architecture of the client's network",
    "tail": "the client's tail (white box)",
    "published": "weights from a file that the client began with (--start FILE)",
    "bodies": "the server's own network as it was while the client learnt",
    "body": "the server's own network",
    "encode": "the client's head and guard (white box)",
    "head": "the client's head (white box)",
    "guard": "the guard's public settings",
}
IN_WORDS = {
    "task": "the shape of an input and the number of classes",
    "aux": "auxiliary images of the same kind, disjoint from the private ones",
    "aux_labels": "the auxiliary images' labels",
    "aux_attributes": "the auxiliary images' sensitive attributes",
    "private": "a share of the client's own images with their labels; the images scored are others",
    "observed": "all messages of one pass over the client's data",
    "history": "all messages of the client's training, in the order they came",
    "passes": "all messages of several epochs, and the client's head at the end of each (white box)",
    "order": "which sample every row of these messages stands for, which no server knows",
    "turns": "the weights that it hands on, before and after the step of each batch, and the gradients it answered",
    "net": "the architecture of the client's network, without weights",
    "tail": "the client's tail, weights included (white box)",
    "published": "the published weights of head and tail that the client went on training, and its guard",
    "bodies": "its own network as it was at the end of every epoch",
    "body": "its own network, weights included",
    "encode": "the client's head, weights included (white box), and its guard",
    "head": "the client's head, weights included (white box), without the guard and its key",
    "guard": "the guard's settings and public seed",
    "undo": "the guard's public map and seed",
}
assert set(IN_WORDS) == {field.name for field in fields(Knowledge)}


class Attacker:
    """An attack at work. As a watcher it sees every message; a passive one lets them pass."""

    def __call__(self, message: Message, handle: Handler) -> Message:
        return handle(message)

    def handed_on(self, weights: State) -> State:
        """What the server gives a client to start from, instead of what the others have made."""
        return weights

    def reconstruct(self, messages: Sequence[Message]) -> Tensor:
        """Images in [0, 1] behind the rows of these messages, in order."""
        raise NotImplementedError

    def infer(self, messages: Sequence[Message]) -> Tensor:
        """What an attack on another secret finds: a label, an attribute's value or a score for each row uploaded."""
        raise NotImplementedError

    def remarks(self) -> dict[str, object]:
        """What a reader of the table should know of this run, e.g. which reader won."""
        return {}


@dataclass(frozen=True, repr=False)
class Attack(Spec):
    """The description of an attack. `needs` is the list of what its attacker is told.

    One that needs "private" says in a field `private_share` how much of the victim's data that is.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    # What is at stake: "images", "labels", "membership", or "attribute" (then the spec has a field `attribute`).
    secret: ClassVar[str] = "images"
    # The kinds of input it is for (`Task.kind`): of others `why_not` says so.
    inputs: ClassVar[tuple[str, ...]] = ("images",)
    # It answers the client instead of watching: it must be there while the client trains, and changes how it does.
    active: ClassVar[bool] = False
    # It is active by the weights it hands on between clients (`Attacker.handed_on`), not by its answers.
    hands_on: ClassVar[bool] = False
    # Forms of knowledge about the guard this attack comes in (then the spec has a field `knows`, EVERY by default);
    # () where it has only one.
    forms: ClassVar[tuple[str, ...]] = ()
    # Of these forms, those of a quick audit: that of the papers and the strongest, or what may be it by the guard.
    # None named: the first and the last.
    quick_forms: ClassVar[tuple[str, ...]] = ()
    # It sorts samples into groups and cannot know what the groups are called: the judge names them as fits best.
    clusters: ClassVar[bool] = False
    # It was told which samples stand behind every row, and answers for each of them where they share one.
    each_sample: ClassVar[bool] = False
    # It rebuilds inputs from the gradients that go back as well: it is shown whole training steps.
    whole_steps: ClassVar[bool] = False
    # Images it is judged on, at most: a field where each of them is dear. None: all there are.
    most_images: ClassVar[int | None] = None

    @classmethod
    def sized(cls, budget: str) -> Self:
        """The setting for a budget: "quick" (two cores), "standard" or "paper" (published sizes, for a GPU)."""
        return cls()

    @classmethod
    def suite(cls, budget: str, task: Task, labels_stay_home: bool) -> "list[Attack]":
        """What of this attack belongs into an audit at this budget; nothing, where it has nothing to find.

        A quick one has no active attacks and few forms of knowledge: that of the papers, and the strongest that the
        guard leaves room for. Forms that come to the same behind a guard are run once. Where inputs are of another
        kind nobody misses an attack on texts; those on images are named there, with the reason.
        """
        if task.kind not in cls.inputs and "images" not in cls.inputs:
            return []
        sized = cls.sized(budget)
        if budget != "quick":
            return [sized]
        if cls.active:
            return []
        quick = cls.quick_forms or dict.fromkeys(cls.forms[:1] + cls.forms[-1:])
        return [replace(sized, **{"knows": form}) for form in quick] or [sized]

    def attacker(self, knowledge: Knowledge, seed: int) -> Attacker:
        """Prepare the attack from what it knows. Runs under its own seed."""
        raise NotImplementedError

    @property
    def reads_classes(self) -> bool:
        """Whether it goes by the class of each sample: labels of pixels leave it nothing to find."""
        return self.secret in ("labels", "membership")

    @property
    def of_training(self) -> bool:
        """Whether it reads what training alone has (answers, labels, one sample again and again), and nothing of a
        client in service."""
        return self.secret == "labels" or self.whole_steps or not {"turns", "passes", "order"}.isdisjoint(self.needs)

    @property
    def white_box(self) -> bool:
        """Whether it is told the client's own head and guard: if it finds little, it is not for want of knowing."""
        return "encode" in self.needs

    def below_default(self) -> list[str]:
        """Where it works less than by default, in words: what it then fails to find says little."""
        found = []
        for field in fields(self):
            if field.name in EFFORT and field.default is not MISSING:
                own, usual = (
                    one if isinstance(one, int) else len(one) for one in (getattr(self, field.name), field.default)
                )
                if own < usual:
                    found.append(f"{field.name} {own} of {usual}")
        return found

    def least_steps(self) -> int:
        """The fewest training steps of the clients that an active attack needs."""
        return 0

    def bar(self, data: str, net: str) -> tuple[str, float] | None:
        """(metric, least value) this attack must reach on the unguarded cut of a known setting, if one is known."""
        return None

    def why_not(self, task: Task, labels_stay_home: bool) -> str | None:
        """Why there is nothing it could find in such a task, as one sentence; None: there is."""
        if task.kind not in self.inputs:
            readers = "Decoder and Dictionary" if task.kind == "texts" else "Decoder and FORA"
            return (
                f"{self} is for {' and '.join(self.inputs)}, and the inputs here are {task.kind} of shape "
                f"{tuple(task.shape)}: leave it out, {readers} read these"
            )
        if self.secret == "labels" and not labels_stay_home:
            return (
                f"{self} infers labels, and here they travel to the server: leave it out, or take UShaped or Bypass"
            )
        return None

    def against(self, guard: Guard, shape: Shape) -> "list[Attack]":
        """This attack in the form that was asked for, else in every one that makes a difference against `guard`, the
        weakest first. Where none does, there is only the plain attack.

        Asked for both a copy and a lift it has what there is of the two; asked for a lift that there is none of, it
        knows nothing.
        """
        useful = [form for form in self.forms if form != "oblivious" and _differs(form, guard, shape)]
        if not useful:
            return [self._knowing_nothing()]
        asked = getattr(self, "knows", EVERY)
        if asked == EVERY:
            return [replace(self, **{"knows": form}) for form in ("oblivious", *useful)]
        if asked not in useful:
            asked = useful[-1] if asked == FORMS[-1] else "oblivious"
        return [replace(self, **{"knows": asked})]

    def base(self) -> Self:
        """The plain attack, as it meets the unguarded cut: the control of all its forms."""
        return self._knowing_nothing()

    def _knowing_nothing(self) -> Self:
        return replace(self, **{"knows": EVERY}) if self.forms else self

    def honest_steps(self) -> int:
        """Of an active attack: how many steps it answers honestly before it begins."""
        return 0

    def evasions(self) -> "tuple[Attack, ...]":
        """Forms that hide from clients that watch: who attacks such clients would not come undisguised."""
        return ()

    def ceiling(self, guard: Guard) -> bool:
        """Whether it is told what no server has, such as a secret key: then its row is a limit, not a threat."""
        return False

    def in_words(self) -> list[str]:
        receives = "what the server receives" + (", and it chooses what the server answers" if self.active else "")
        return [receives, *(IN_WORDS[name] for name in self.needs)]


def _differs(form: str, guard: Guard, shape: Shape) -> bool:
    public = guard.public_part()
    # A guard that only adds a penalty leaves nothing an attacker could put into its own network.
    copied = not guard.client_only and repr(public) != "NoGuard()"
    lifted = "lift" not in form or public.undo(shape, 0) is not None
    return lifted and (copied or "matched" not in form)


def smashed(messages: Sequence[Message]) -> Tensor:
    """What the server saw, one row each."""
    return torch.cat([message["z"] for message in messages if message.kind is not Kind.BACKWARD])
