"""LFQ (Madill's thesis, ch. 2): a code of a few bits a sample, beside compressors whose settings were looked for."""

import shlex
from collections.abc import Mapping
from statistics import mean
from typing import Any

from .base import DOES_NOT, HOLDS, NOT_MEASURED, PARTLY, Data, Earlier, Experiment, Finding, accuracies, over_seeds

PAPER = "Thesis ch. 2 (LFQ)"
LFQ = "guard=LFQ(bits=8, decoder='client', freq=240)"
# Of 1,152 numbers LFQ sends 76 to 81 bits and a header: rivals at its rate have up to 0.09 bits a number.
SPLITFC = "guard=SplitFC(ratio={4,8,16,32,64}, budget={0.05,0.07,0.09}, ends={4,8})"
RIVALS = {"SplitFC": 96.0, "TopK": None, "FedLite": None}  # the thesis' accuracy at a like rate
UNTOUCHED = 3  # seeds that no setting was chosen by
LEARNT = 20.0  # points of mIoU that an open cut has to reach; naming the background everywhere is 9
MOST_LOST = 4.0  # points
SLACK = 1.15  # times LFQ's bytes that another compressor may take: settings do not meet a rate exactly


def tuned(data: Data, kind: str, most: float) -> str | None:
    """Of a kind of guard, the variant with the best mean validation accuracy among those of no more bytes."""
    rows: dict[str, list[Any]] = {}
    for row in data["rows"]:
        if row["variant"].startswith(f"guard={kind}(") and row["bytes_up"] <= most:
            rows.setdefault(row["variant"], []).append(row["val"] if row["val"] is not None else 0.0)
    return max(rows, key=lambda name: mean(rows[name]), default=None)


def _bytes(data: Data, variant: str) -> float:
    return mean(row["bytes_up"] for row in data["rows"] if row["variant"] == variant)


def _chosen(grid: Data) -> dict[str, str]:
    """Of each rival the setting that validation chose among those of no more bytes than LFQ takes."""
    most = SLACK * _bytes(grid, _code(grid))
    return {kind: best for kind in RIVALS if (best := tuned(grid, kind, most)) is not None}


def _code(data: Data) -> str:
    return next(row["variant"] for row in data["rows"] if row["variant"].startswith("guard=LFQ("))


def _untouched(results: Mapping[str, Data], budget: str) -> dict[str, str]:
    ((name, grid),) = results.items()
    wanted = " ".join(f"--with {shlex.quote(one)}" for one in ("plan", _code(grid), *_chosen(grid).values()))
    plan, more = _PLANS[budget]
    return {f"{name} untouched": f"compare {plan} {wanted} --seed 100 --seeds {UNTOUCHED} --no-alone{more}"}


def _rates(results: Mapping[str, Data]) -> Finding:
    """Each rival at the setting that was chosen, all under seeds that nothing was chosen by."""
    (grid,) = (data for name, data in results.items() if not name.endswith("untouched"))
    (data,) = (data for name, data in results.items() if name.endswith("untouched"))
    code, chosen = _code(data), _chosen(grid)
    figures = [
        over_seeds(_at("LFQ", data, code), accuracies(data, code), 96.05, points=True),
        over_seeds(_at("no guard", data, "plan"), accuracies(data, "plan"), 98.93, points=True),
    ]
    leads = {}
    for kind, best in chosen.items():
        what = _at(f"{best.removeprefix('guard=')}, tuned", data, best)
        figures.append(over_seeds(what, accuracies(data, best), RIVALS[kind], points=True))
        leads[kind] = figures[0].ours - figures[-1].ours
    if "SplitFC" not in leads:
        return Finding(NOT_MEASURED, "SplitFC was not tried at LFQ's rate", tuple(figures))
    cost = figures[1].ours - figures[0].ours
    ahead = [kind for kind, lead in leads.items() if lead > 1]
    verdict = (
        HOLDS
        if cost <= MOST_LOST and len(ahead) == len(RIVALS)
        else PARTLY
        if cost <= MOST_LOST or ahead
        else DOES_NOT
    )
    fewer = _bytes(data, "plan") / _bytes(data, code)
    told = [f"{kind} is {abs(lead):.1f} points {'behind' if lead > 0 else 'ahead'}" for kind, lead in leads.items()]
    why = (
        f"LFQ loses {cost:.1f} points at {fewer:.0f} times fewer bytes up than the open cut, whose zeros are packed "
        f"(labels and headers counted), and {MOST_LOST:g} would hold; tuned to the same rate by their own settings, not by how fast "
        f"clients learn, {', '.join(told)}."
    )
    return Finding(verdict, why, tuple(figures))


def _at(what: str, data: Data, variant: str) -> str:
    return f"{what}, {_bytes(data, variant):,.0f} bytes up a sample, %"


def _rates_before(data: Any) -> Finding:
    rows = {row["recipe"]: row for row in data["rows"]}
    bare, code = rows["digits"], rows["digits_lfq"]
    others = [rows[name] for name in ("digits_top_2", "digits_fedlite")]
    figures = [
        over_seeds(
            f"{row['guard']} at {row['ratio']:.0f}x, %", [100 * one for one in row["accuracies"]], told, points=True
        )
        for row, told in [(code, 96.05), (bare, 98.93), *((one, None) for one in others)]
    ]
    cost, lead = figures[1].ours - figures[0].ours, figures[0].ours - max(one.ours for one in figures[2:])
    why = (
        f"On digits LFQ loses {cost:.1f} points at {code['ratio']:.0f}x and is at least {lead:.0f} ahead of Top-S and FedLite; "
        "SplitFC, its strongest rival, was not tuned there."
    )
    return Finding(PARTLY if cost <= MOST_LOST and lead > 1 else DOES_NOT, why, tuple(figures))


def _segmentation(results: Mapping[str, Data]) -> Finding:
    (data,) = results.values()
    bare, code = (
        over_seeds(name, [100 * row["mean_iou"] for row in data["rows"] if row["variant"] == variant and "mean_iou" in row], points=True)
        for name, variant in (("mIoU, no guard", "plan"), ("mIoU, LFQ", "guard=LFQ(bits=13)"))
    )  # fmt: skip
    cost = bare.ours - code.ours
    if bare.ours < LEARNT:
        return Finding(
            NOT_MEASURED, f"The open cut itself reaches a mIoU of {bare.ours:.0f}: too little to lose.", (bare, code)
        )
    verdict = HOLDS if cost <= 3 else PARTLY if cost <= 10 else DOES_NOT
    fewer = _bytes(data, "plan") / _bytes(data, "guard=LFQ(bits=13)")
    why = (
        f"On scenes of digits, not on COCO, LFQ costs {cost:.1f} points of mIoU, where three would hold, and sends {fewer:.1f} times fewer bytes up; the "
        "gradient of the answer goes up uncoded."
    )
    return Finding(verdict, why, (bare, code))


_OTHERS = f"--with '{SPLITFC}' --with 'guard=TopK(share={{0.0009,0.0018,0.0027,0.005}})' --with 'guard=FedLite(parts={{32,64,96}}, centroids={{2,4}})'"
_PLANS = {"full": ("recipes/lfq.py:mnist", " --epochs 60 --device cuda"), "quick": ("recipes/lfq.py:digits", "")}
_DIGITS_LFQ = "guard=LFQ(bits=9, scale='client', recon=0.1)"
EXPERIMENTS = (
    Experiment(
        "lfq-rates", PAPER, "A learned code keeps accuracy at over 400 times fewer bytes up, ahead of SplitFC, Top-S and FedLite.",
        "Table 2.4: none 98.93, LFQ 96.05 % at 439x, SplitFC 96 % at 320x",
        {"mnist": f"compare recipes/lfq.py:mnist --with plan --with \"{LFQ}\" {_OTHERS} --no-alone --epochs 60 --device cuda"},
        _rates,
        {"digits": f"compare recipes/lfq.py:digits --with plan --with \"{_DIGITS_LFQ}\" {_OTHERS} --no-alone"},
        after=_untouched,
        earlier=(Earlier("lfq.json", _rates_before),),
    ),
    Experiment(
        "lfq-segmentation", PAPER, "The same for segmentation.", "Table 2.5: mIoU on COCO at 0.062 bits a pixel",
        {"scenes": "compare recipes/segmentation.py:scenes --with plan --with 'guard=LFQ(bits=13)' --seeds 3 --no-alone --device cuda"},
        _segmentation,
        {"scenes": "compare recipes/segmentation.py:scenes --data 'Scenes(limit=600)' --batch-size 16 --epochs 16 --with plan --with 'guard=LFQ(bits=13)' --no-alone"},
    ),
)  # fmt: skip
