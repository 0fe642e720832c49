"""A slow line on a fast machine: a relay on loopback that lets bytes through no faster than a link would.

Nothing is dropped. Every buffer leaves when the one before it has left and its own bytes have gone out at the link's
rate; it arrives half a round trip later. Whoever sends faster than that has to wait.
"""

import math
import re
from dataclasses import dataclass

from ...core.spec import Spec

__all__ = ["Link"]

_BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([a-z]+)")
SMALLEST, LARGEST = 1500, 1 << 16  # bytes that are read at once: a millisecond of the link, within these
LONGEST = 60.0  # seconds of a round trip


@dataclass(frozen=True, repr=False)
class Link(Spec):
    """A link between two machines: `rate` in bits a second each way, `rtt` in seconds there and back.

    Where the way down to the client has another rate, it is `down`.
    """

    rate: float = math.inf
    rtt: float = 0.0
    down: float | None = None

    def __post_init__(self) -> None:
        for rate in (self.rate, self.rate if self.down is None else self.down):
            if not _is_number(rate) or not rate > 0:
                raise ValueError(f"the rate of a link is above 0 bits a second; got {rate!r}")
        if not _is_number(self.rtt) or not 0 <= self.rtt <= LONGEST:
            raise ValueError(f"the round trip of a link takes 0 to {LONGEST:.0f} seconds; got {self.rtt!r}")

    @classmethod
    def parse(cls, text: str) -> "Link":
        """`20mbit,40ms`: a rate in bit, kbit, mbit or gbit a second, a round trip in us, ms or s; or one of them.

        `20mbit/100mbit,40ms` has another rate down than up.
        """
        found: dict[str, float] = {}
        for word in text.lower().replace(" ", "").split(","):
            ways = [_NUMBER.fullmatch(way) for way in word.split("/")]
            units = {match[2] if match else "" for match in ways}
            names, sizes = (("rate", "down"), _BITS) if units <= set(_BITS) else (("rtt",), _SECONDS)
            if not units <= set(sizes) or len(ways) > len(names) or names[0] in found:
                raise ValueError(
                    "a link is written like 20mbit,40ms: rate, then round trip; or 20mbit/100mbit,40ms where the way "
                    f"down is another; got {text!r}"
                )
            found |= {name: float(way[1]) * sizes[way[2]] for name, way in zip(names, ways, strict=False) if way}
        return cls(**found)

    def __str__(self) -> str:
        ways = [self.rate] if self.down is None else [self.rate, self.down]
        rate = [] if all(map(math.isinf, ways)) else ["/".join(_with_unit(way, _BITS) for way in ways)]
        return ",".join([*rate, _with_unit(self.rtt, _SECONDS)])

    @property
    def back(self) -> "Link":
        """The same link as the other end has it: what was down is up."""
        return self if self.down is None else Link(self.down, self.rtt, self.rate)

    def seconds(self, count: float) -> float:
        """How long the way up is busy with so many bytes; `back.seconds` is the way down."""
        return 8 * count / self.rate


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _with_unit(value: float, units: dict[str, float]) -> str:
    unit = ([name for name, size in units.items() if value >= size] or list(units))[-1]
    return f"{value / units[unit]:.10g}{unit}"
