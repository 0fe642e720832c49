"""Madill's thesis, ch. 4 and 5: clients that only run forward (SL-FC), and a server that orthogonalises (FedMuon)."""

from collections.abc import Mapping
from statistics import mean
from typing import Any

from .base import (
    DOES_NOT,
    HOLDS,
    PARTLY,
    Data,
    Earlier,
    Experiment,
    Finding,
    accuracies,
    lost,
    over_seeds,
)

SL_FC, FED_MUON = "Thesis ch. 4 (SL-FC)", "Thesis ch. 5 (FedMuon)"

# ------------------------------------------------------------------ SL-FC
FROZEN, ALL = "roles=Frozen(share=0.5)", "roles=AllActive"
OUT = "roles=Frozen(share=0.5, discard=True)"
GAINS = {1.0: 28.12, 0.3: 31.36}  # points over leaving clients out, Table 4.1, K = 1


def _arms(epochs: int) -> str:
    """All active, SL-FC, the others left out; these for as many steps of the server; and each client's own head, so that
    heads that never learnt are scored as well."""
    return (
        f"--with {ALL} --with '{FROZEN}' --with '{OUT}' --with '{OUT}; epochs={2 * epochs}' "
        f"--with '{OUT}; shared_client_network=False'"
    )


def _sl_fc(results: Mapping[str, Data]) -> Finding:
    figures, gains, fair = [], [], []
    for name, data in results.items():
        alpha = 1.0 if "even" not in name and "1.0" in name else 0.3
        longer = next(row["variant"] for row in data["rows"] if row["variant"].startswith(f"{OUT}; epochs="))
        own = f"{OUT}; shared_client_network=False"
        gain = lost(data, FROZEN, OUT, f"gain at equal epochs, {name}", GAINS.get(alpha))
        steps = lost(data, FROZEN, longer, f"gain at equal steps, {name}")
        unused = lost(data, FROZEN, own, f"gain where unused heads are scored, {name}")
        figures += [gain, steps, unused, lost(data, ALL, FROZEN, f"behind all active, {name}")]
        gains.append(gain.ours)
        fair.append(steps.ours)
    return _gain(gains, fair, figures)


def _gain(gains: list[float], fair: list[float], figures: list[Any]) -> Finding:
    found, steps = mean(gains), mean(fair) if fair else None
    why = f"SL-FC gains {found:.1f} points over leaving clients out, where the thesis gains 20 to 31" + (
        f"; at equal steps of the server {steps:.1f}." if steps is not None else "."
    )
    sure = [
        one
        for one in figures
        if one.what.startswith(("gain at equal epochs", "gain, alpha")) and (one.low or 0.0) > 0
    ]
    verdict = HOLDS if min(gains) >= 15 and (steps is None or steps >= 15) else PARTLY if sure else DOES_NOT
    return Finding(verdict, why, tuple(figures))


def _sl_fc_before(data: Any) -> Finding:
    """By alpha, at the rate of the best validation accuracy over seeds."""
    runs = [run for run in data["runs"] if run["failed"] is None]
    figures, gains = [], []
    for alpha in dict.fromkeys(run["alpha"] for run in runs):
        best = {}
        for who in ("SL-FC", "discarded"):
            own = [run for run in runs if run["alpha"] == alpha and run["clients"] == who]
            rates = {
                rate: mean(run["val"] for run in own if run["lr"] == rate) for rate in {run["lr"] for run in own}
            }
            rate = max(rates, key=lambda one: rates[one])
            best[who] = {run["seed"]: 100 * run["test"] for run in own if run["lr"] == rate}
        seeds = sorted(set(best["SL-FC"]) & set(best["discarded"]))
        told = GAINS.get(alpha, 20.37)
        gain = over_seeds(
            f"gain, alpha {alpha:g}",
            [best["SL-FC"][one] - best["discarded"][one] for one in seeds],
            told,
            points=True,
        )
        figures.append(gain)
        gains.append(gain.ours)
    return _gain(gains, [], figures)


# ------------------------------------------------------------------ FedMuon
RULES = {
    "FedAvg": "lr={0.1,0.3,1.0,3.0,10.0,30.0}",
    "FedAvgM": "lr={0.03,0.1,0.3,1.0,3.0,10.0}",
    "FedAdagrad": "lr={0.001,0.003,0.01,0.03,0.1,0.3}",
    "FedAdam": "lr={0.0003,0.001,0.003,0.01,0.03,0.1}",
    "FedYogi": "lr={0.0003,0.001,0.003,0.01,0.03,0.1}",
    "DiLoCo": "lr={0.03,0.1,0.3,0.7,2.0,6.0}",
    "FedMuon": "lr={0.005,0.015,0.05,0.15,0.5,1.5}",
}
UNTOUCHED = 5  # seeds that no rate was chosen by


def _grid() -> str:
    return " ".join(f"--with 'rule={rule}({rates})'" for rule, rates in RULES.items())


def _muon_plan(recipe: str, more: str, steps: int) -> str:
    return f"compare recipes/fedmuon.py:{recipe} --local-steps {steps} --val-share 0.1 --no-alone{more}"


# As many samples for each of ten clients, so that all are in every round, as in the thesis.
_PLANS = {
    "full": ("cifar10", " --partition 'Dirichlet(alpha=0.1, minimum=4500, refill=True)' --device cuda"),
    "quick": ("digits", " --data Digits --batch-size 32 --epochs 6 --partition 'Dirichlet(alpha=0.1, minimum=400, refill=True)'"),
}  # fmt: skip


def chosen_rates(data: Data) -> dict[str, str]:
    """Of each rule the variant whose mean validation accuracy is highest."""
    scores: dict[str, list[float]] = {}
    for row in data["rows"]:
        scores.setdefault(row["variant"], []).append(row["val"] or 0.0)
    best: dict[str, str] = {}
    for variant, values in scores.items():
        rule = variant.removeprefix("rule=").partition("(")[0]
        if rule not in best or mean(values) > mean(scores[best[rule]]):
            best[rule] = variant
    return best


def _untouched(results: Mapping[str, Data], budget: str) -> dict[str, str]:
    found = {}
    for name, data in results.items():
        chosen = " ".join(f"--with '{variant}'" for variant in chosen_rates(data).values())
        plan = _muon_plan(*_PLANS[budget], int(name[1:]))
        found[f"{name} untouched"] = f"{plan} {chosen} --seed 100 --seeds {UNTOUCHED}"
    return found


def rounds_to(data: Data, variant: str, target: float) -> float | None:
    """Epochs until a validation accuracy is reached, the mean over seeds; None: not in all of them."""
    found = []
    for row in data["rows"]:
        if row["variant"] == variant:
            reached = [place + 1 for place, one in enumerate(row["by_epoch"]) if one is not None and one >= target]
            if not reached:
                return None
            found.append(reached[0])
    return mean(found) if found else None


def _muon(results: Mapping[str, Data]) -> Finding:
    """Ahead of every other rule at K = 1 and 5, level at 25 (Table 5.2): it holds where the lead is sure at both."""
    figures, leads, edges, rates = [], {}, 0, 0
    told = {"K1": 0.9213, "K5": 0.8727, "K25": 0.7753}
    for name in [one for one in results if not one.endswith("untouched")]:
        data, chosen = results[f"{name} untouched"], chosen_rates(results[name])
        edges, rates = edges + sum(_on_edge(variant) for variant in chosen.values()), rates + len(chosen)
        ours = over_seeds(f"FedMuon, {name}, %", accuracies(data, chosen["FedMuon"]), 100 * told[name], points=True)
        others = {rule: mean(accuracies(data, variant)) for rule, variant in chosen.items() if rule != "FedMuon"}
        rival = max(others, key=lambda one: others[one])
        leads[name] = lost(data, chosen["FedMuon"], chosen[rival], f"ahead of {rival}, {name}")
        figures += [ours, leads[name], *_epochs(data, chosen, rival, name)]
    sure = [name for name, lead in leads.items() if lead.low is not None and lead.low > 0]
    ahead = [name for name, lead in leads.items() if lead.ours > 0]
    verdict = HOLDS if {"K1", "K5"} & set(leads) <= set(sure) else PARTLY if ahead else DOES_NOT
    why = (
        f"FedMuon leads the best of the others at {', '.join(ahead) or 'no K'}, surely at {', '.join(sure) or 'none'}; "
        f"{edges} of {rates} chosen rates lie on the edge of their grid."
    )
    return Finding(verdict, why, tuple(figures))


def _epochs(data: Data, chosen: Mapping[str, str], rival: str, name: str) -> list[Any]:
    """How fast: epochs until nine tenths of the best validation accuracy, where all seeds come so far."""
    target = 0.9 * max(max(one or 0.0 for one in row["by_epoch"]) for row in data["rows"])
    needed = {rule: rounds_to(data, chosen[rule], target) for rule in ("FedMuon", rival)}
    return [
        over_seeds(f"epochs to {100 * target:.0f} % by {rule}, {name}", [one], points=True)
        for rule, one in needed.items()
        if one is not None
    ]


def _on_edge(variant: str) -> bool:
    rule, _, rate = variant.removeprefix("rule=").removesuffix(")").partition("(lr=")
    rates = RULES[rule].removeprefix("lr={").removesuffix("}").split(",")
    return float(rate) in (float(rates[0]), float(rates[-1]))


def _muon_before(data: Any) -> Finding:
    figures, leads = [], {}
    runs = [run for run in data["runs"] if run["failed"] is None]
    for turn in sorted({run["turn"] for run in runs}):
        own = [run for run in runs if run["turn"] == turn]
        test: dict[str, dict[int, float]] = {}
        for rule in {run["rule"] for run in own}:
            mine = [run for run in own if run["rule"] == rule]
            chosen = [run for run in mine if run["seed"] in (0, 1)]
            rates = {
                rate: mean(run["val"] for run in chosen if run["lr"] == rate)
                for rate in {run["lr"] for run in chosen}
            }
            rate = max(rates, key=lambda one: rates[one])
            test[rule] = {run["seed"]: 100 * run["test"] for run in mine if run["lr"] == rate}
        means = {rule: mean(by_seed.values()) for rule, by_seed in test.items()}
        rival = max((rule for rule in means if rule != "FedMuon"), key=lambda one: means[one])
        seeds = sorted(set(test["FedMuon"]) & set(test[rival]))
        lead = [test["FedMuon"][one] - test[rival][one] for one in seeds]
        figures.append(over_seeds(f"ahead of {rival}, K = {turn}", lead, points=True))
        leads[turn] = figures[-1].ours
    ahead = [turn for turn, lead in leads.items() if lead > 0]
    sure = [one for one in figures if one.low is not None and one.low > 0]
    verdict = HOLDS if len(sure) == len(figures) else PARTLY if {1, 5} <= set(ahead) else DOES_NOT
    why = (
        f"FedMuon is ahead at K = {', '.join(map(str, ahead))}, surely at {len(sure)} of them; trainings are short, and the "
        "thesis' draw at K = 25 is not seen."
    )
    return Finding(verdict, why, tuple(figures))


def _on_clothes(data: Any) -> Any:
    return data["fashion_mnist"]


EXPERIMENTS = (
    Experiment(
        "sl-fc", SL_FC, "Clients that only run forward are worth 20 to 31 points over leaving them out.",
        "Table 4.1, CIFAR-10, all active / SL-FC / left out: 92.26 / 87.06 / 58.94 at alpha 1, 90.14 / 81.92 / 50.56 at 0.3",
        {
            **{f"alpha {alpha}": f"compare recipes/sl_fc.py:cifar10 --partition 'Dirichlet(alpha={alpha})' {_arms(50)} --seeds 3 --no-alone --device cuda" for alpha in (1.0, 0.3)},
            "alpha 0.3, even waves": f"compare recipes/sl_fc.py:cifar10_wave --partition 'Dirichlet(alpha=0.3)' {_arms(50)} --seeds 3 --no-alone --device cuda",
        },
        _sl_fc,
        medium={f"alpha {alpha}": f"compare recipes/sl_fc.py:cifar10 --data 'CIFAR10(batches=(1, 2))' --epochs 12 --partition 'Dirichlet(alpha={alpha})' {_arms(12)} --seeds 3 --no-alone --device cuda" for alpha in (1.0, 0.3)},
        quick={f"alpha {alpha}": f"compare recipes/sl_fc.py:digits --partition 'Dirichlet(alpha={alpha})' {_arms(5)} --seeds 3 --no-alone" for alpha in (1.0, 0.3)},
        earlier=(Earlier("sl-fc.json", _sl_fc_before, _on_clothes),),
    ),
    Experiment(
        "fedmuon", FED_MUON, "FedMuon is ahead of every other server rule where clients hold few classes.",
        "Table 5.2: 0.9213 at K = 1, 0.8727 at 5, 0.7753 at 25 (FedAdagrad 0.7764)",
        {f"K{steps}": f"{_muon_plan(*_PLANS['full'], steps)} {_grid()} --seeds 2" for steps in (1, 5, 25)},
        _muon,
        {f"K{steps}": f"{_muon_plan(*_PLANS['quick'], steps)} {_grid()} --seeds 2" for steps in (1, 5)},
        after=_untouched,
        earlier=(Earlier("fedmuon.json", _muon_before, _on_clothes),),
    ),
)  # fmt: skip
