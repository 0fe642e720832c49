"""What came of a run: the dict of result.json, which shows itself in a notebook."""

from typing import Any

from ..core.html import table

_SHOWN = {
    "accuracy": "test accuracy",
    "mean_iou": "mean IoU",
    "perplexity": "perplexity",
    "epochs": "epochs",
    "steps": "steps",
    "seconds": "seconds",
    "bytes_up": "bytes up, a sample",
    "bytes_down": "bytes down, a sample",
    "bytes_weights": "bytes of weights, a sample",
}


class Result(dict[str, Any]):
    def _repr_html_(self) -> str:
        rows = [(told, self[name]) for name, told in _SHOWN.items() if name in self]
        return table(("figure", "value"), rows, title=str(self.get("plan", "")))
