"""Which tensor of a model's answer is meant: models give tensors, dictionaries or objects of their library."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.fx import Proxy

FIRST_CHOICES = ("logits", "last_hidden_state")


class SeveralAnswers(ValueError):
    """Nothing says which tensor of an answer is meant."""


def only_tensor(answer: Any) -> Any:
    """The answer itself if it is a tensor, else its `logits`, else its `last_hidden_state`, else its only tensor."""
    if isinstance(answer, Tensor | Proxy):
        return answer
    named = _named(answer)
    for name in FIRST_CHOICES:
        if name in named:
            return named[name]
    if len(named) == 1:
        return next(iter(named.values()))
    what = f"tensors by the names {', '.join(map(str, named))}" if named else f"a {type(answer).__name__}"
    raise SeveralAnswers(
        f"the model has to return exactly one tensor, or one called {' or '.join(FIRST_CHOICES)}; "
        f"its forward returns {what}"
    )


def _named(answer: Any) -> dict[Any, Any]:
    if isinstance(answer, Mapping):
        items = dict(answer)
    elif hasattr(answer, "_asdict"):
        items = answer._asdict()
    elif isinstance(answer, Sequence) and not isinstance(answer, str):
        items = dict(enumerate(answer))
    else:
        items = dict(getattr(answer, "__dict__", {}))
    return {name: value for name, value in items.items() if isinstance(value, Tensor | Proxy)}
