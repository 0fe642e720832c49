"""LightSplit: what a random projection costs, and what attackers read behind it."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, median
from typing import Any

from .base import (
    DOES_NOT,
    HOLDS,
    NOT_MEASURED,
    PARTLY,
    Data,
    Earlier,
    Experiment,
    Figure,
    Finding,
    accuracies,
    guard_accuracy,
    lost,
    over_seeds,
    read_by,
    surely,
)

PAPER = "LightSplit"
RATIOS = (8, 16, 32)
FEW, LEARNT = 5.0, 30.0  # points; percent that an open cut has to reach on ten classes, three times chance
_GUARDS = " ".join(
    f"--with 'guard=LightSplit(ratio={ratio}, projection=Dense())' "
    f"--with 'guard=LightSplit(ratio={ratio}, hidden={{hidden}}, projection=Dense())'"
    for ratio in RATIOS
)


def _compared(plan: str, hidden: int, more: str = "") -> str:
    return f"compare {plan} --with plan {_GUARDS.format(hidden=hidden)} --seeds 3 --no-alone{more}"


def _f(ratio: int, hidden: int = 0) -> str:
    lift = f"hidden={hidden}, " if hidden else ""
    return f"guard=LightSplit(ratio={ratio}, {lift}projection=Dense())"


# For two cores: the clothes of every installation, nothing set aside for an attacker.
_SMALL = "--aux-samples 0 --epochs 6 --seeds 3 --no-alone"
_SMALL_GUARDS = " ".join(f"--with '{guard}'" for guard in (_f(8), _f(32), _f(8, 128)))


def _utility(results: Mapping[str, Data]) -> Finding:
    """Table IX, L2H-SCH, IID, F and L at every ratio. Judged at 8, by the rule of `_few_points`, of each data set."""
    clothes = (0.56, 0.46)  # of all of Fashion-MNIST, of which `Fashion` is a part
    paper = {"cifar10": (3.74, 3.82), "fashion_mnist": clothes, "fashion": clothes}
    judged, figures = [], []
    for name, data in results.items():
        bare = over_seeds(f"no guard, {name}, %", accuracies(data, "plan"), points=True)
        if bare.ours < LEARNT:
            return Finding(NOT_MEASURED, f"The open cut of {name} itself reaches {bare.ours:.0f} %.", (bare,))
        figures.append(bare)
        for ratio in RATIOS:
            for place, (kind, variant) in enumerate(_methods(data, ratio)):
                told = paper.get(name, (None, None))[place] if ratio == 8 else None
                figures.append(lost(data, "plan", variant, f"points lost by {kind} at {ratio}x, {name}", told))
                judged += [figures[-1]] if ratio == 8 else []
    verdict = (
        HOLDS
        if all(surely(one, FEW) for one in judged)
        else PARTLY
        if all(one.ours <= FEW for one in judged)
        else DOES_NOT
    )
    told_all = ", ".join(
        f"{one.what.partition('lost by ')[2]} {one.ours:.1f}"
        + (f" where the paper loses {one.paper:.1f}" if one.paper else "")
        for one in judged
    )
    narrow = max(one.ours for one in figures if " at 32x" in one.what)
    return Finding(
        verdict,
        f"Points lost: {told_all}; {FEW:g} would be few. At a thirty-second of the width up to {narrow:.1f}.",
        tuple(figures),
    )


def _methods(data: Data, ratio: int) -> list[tuple[str, str]]:
    """F and L: the fixed projection, and the one with a learned lift."""
    lifted = f"guard=LightSplit(ratio={ratio}, hidden="
    return [
        ("F", _f(ratio)),
        ("L", next(row["variant"] for row in data["rows"] if row["variant"].startswith(lifted))),
    ]


def _few_points(results: Mapping[str, Data]) -> Finding:
    """Skewed or own heads: few are five points. It holds where the whole interval is below that; a network that has
    learnt next to nothing has nothing to lose, and is no measurement."""
    ((name, data),) = results.items()
    bare = over_seeds(f"no guard, {name}, %", accuracies(data, "plan"), points=True)
    figures = [lost(data, "plan", _f(ratio), f"points lost at {ratio}x") for ratio in (8, 32)]
    lifts = [row["variant"] for row in data["rows"] if row["variant"].startswith("guard=LightSplit(ratio=8, hidden=")]
    figures += [lost(data, "plan", lift, "points lost at 8x with a learned lift") for lift in lifts[:1]]
    if bare.ours < LEARNT:
        return Finding(
            NOT_MEASURED, f"The open cut itself reaches {bare.ours:.0f} %: too little to lose.", (bare, *figures)
        )
    fixed = figures[0]
    verdict = HOLDS if surely(fixed, FEW) else PARTLY if fixed.ours <= FEW else DOES_NOT
    high = fixed.ours if fixed.high is None else fixed.high
    why = (
        f"At an eighth of the width {fixed.ours:.1f} points of {bare.ours:.1f} are lost, {high:.1f} at worst, where {FEW:g} would "
        f"be few; at a thirty-second {figures[1].ours:.1f}."
    )
    return Finding(verdict, why, (bare, *figures))


def _utility_before(data: Any) -> Finding:
    """One seed of a short training can say no more than partly."""
    before = mean(guard_accuracy(data, "none"))
    guards = {
        "F at 8x": "LightSplit(ratio=8)",
        "L at 8x": "LightSplit(ratio=8, hidden=512)",
        "F at 32x": "LightSplit(ratio=32)",
    }
    paper = {"F at 8x": 3.74, "L at 8x": 3.82}
    figures = [
        over_seeds(f"points lost by {what}, cifar10", [before - mean(guard_accuracy(data, guard))], paper.get(what), points=True)
        for what, guard in guards.items()
    ]  # fmt: skip
    fixed, learnt, narrow = (one.ours for one in figures)
    verdict = PARTLY if max(fixed, learnt) <= FEW else DOES_NOT
    why = (
        f"One seed of a short training: {fixed:.1f} points are lost by F and {learnt:.1f} by L, where the paper loses 3.7 and "
        f"3.8; the learned lift buys nothing here, and a thirty-second of the width costs {narrow:.1f}."
    )
    return Finding(verdict, why, tuple(figures))


def _against(*attacks: str) -> Any:
    """The paper's attacker does not know the projection, which is public. What it reads against one that does."""

    def judge(results: Mapping[str, Data]) -> Finding:
        (data,) = results.values()
        return _forms(data, attacks)

    return judge


def _forms(data: Data, attacks: Sequence[str]) -> Finding:
    guard = next(row["guard"] for row in data["rows"] if row["guard"].startswith("LightSplit"))
    bare = read_by(data, "none", *attacks)
    blind = read_by(data, guard, *attacks, form="oblivious")
    knowing = read_by(data, guard, *attacks, form="matched") or read_by(data, guard, *attacks, form="matched+lift")
    best = read_by(data, guard, ceiling=False)
    if bare is None or blind is None or knowing is None or best is None:
        return Finding(NOT_MEASURED, f"no row of {' or '.join(attacks)} in each form of knowledge")
    figures = (
        bare._replace(what=f"SSIM of {attacks[0]} on the open cut"),
        blind._replace(what="not knowing the projection"),
        knowing._replace(what="knowing it"),
        best._replace(what=f"strongest: {best.what}"),
        *_narrower(data, attacks, guard),
    )
    stops = blind.ours < 0.5 * bare.ours
    returns = knowing.ours - blind.ours > 0.1
    why = (
        f"{attacks[0]} falls from {bare.ours:.2f} to {blind.ours:.2f} while it does not know the public projection, and "
        f"reads {knowing.ours:.2f} once it does; the strongest attacker reads {best.ours:.2f}."
    )
    if not stops:
        return Finding(DOES_NOT, why, figures)
    return Finding(DOES_NOT if returns or best.ours > 0.7 * bare.ours else HOLDS, why, figures)


def _narrower(data: Data, attacks: Sequence[str], guard: str) -> tuple[Figure, ...]:
    """At other ratios: what is read without and with knowing the projection, and by the strongest."""
    others = dict.fromkeys(row["guard"] for row in data["rows"] if row["guard"] not in ("none", guard))
    found = []
    for other in others:
        blind, best = read_by(data, other, *attacks, form="oblivious"), read_by(data, other, ceiling=False)
        knowing = read_by(data, other, *attacks, form="matched")
        found += [] if blind is None else [blind._replace(what=f"not knowing {other}")]
        found += [] if knowing is None else [knowing._replace(what="knowing it")]
        found += [] if best is None else [best._replace(what=f"strongest: {best.what}")]
    return tuple(found)


def _bars(*attacks: str) -> Any:
    return lambda data: _forms({"rows": [_formed(row) for row in data["rows"]]}, attacks)


def _formed(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of before forms had a column: it is in the attack's text."""
    _, _, known = row["attack"].partition("knows='")
    return {"value": row["ssim"], "form": known.partition("'")[0], "ceiling": False, **row}


def _quick(*attacks: str) -> Any:
    return lambda data: _forms(
        {"rows": [row for row in data["rows"] if row["guard"] in ("none", "LightSplit(ratio=8)")]}, attacks
    )


def _backdoor(results: Mapping[str, Data]) -> Finding:
    """F1 of the three-sigma rule on the server's outputs, over rounds; and how often it cries in honest rounds."""
    (data,) = results.values()
    told = [
        (one["f1"], one["false_alarms"], one.get("rounds"))
        for row in data["poisoned"]
        for one in row["detectors_attacked"]
        if one.get("f1") is not None and "threshold=3.0" in one["detector"]
    ]
    honest = [
        (one["false_alarms"], one["rounds"])
        for row in data["rows"]
        for one in row.get("server_detectors", ())
        if "threshold=3.0" in one["detector"]
    ]
    if not told:
        return Finding(NOT_MEASURED, "no detector was tried on a training with a backdoor")
    f1 = _f1(one[0] for one in told)
    alarmed = sum(one[0] for one in honest) / max(1, sum(one[1] or 0 for one in honest))
    share = over_seeds("share of honest rounds with an alarm", [alarmed])
    verdict = HOLDS if f1.ours >= 0.8 and alarmed <= 0.05 else PARTLY if f1.ours >= 0.8 else DOES_NOT
    return Finding(
        verdict, f"F1 {f1.ours:.2f}, and {100 * alarmed:.0f} % of honest rounds raise an alarm.", (f1, share)
    )


def _f1(values: Iterable[float]) -> Figure:
    """Its interval ends at 1, as F1 does."""
    found = over_seeds("F1 of 3 sigma", values, 0.89)
    return found if found.high is None else found._replace(high=min(1.0, found.high))


def _at_defaults(data: Any) -> Any:
    """The runs at the paper's setting, poisoned and honest."""
    wanted = ("defaults", "malicious=0.0")
    runs = [one for one in data["runs"] if one["setting"] in wanted and one["guard"].startswith("LightSplit")]
    return {"runs": runs}


def _backdoor_before(data: Any) -> Finding:
    rows, honest = ([one for one in data["runs"] if one["setting"] == name] for name in ("defaults", "malicious=0.0"))
    f1 = _f1(one["watch"]["output, 3 sigma"]["f1"] for one in rows)
    works = median(one["poison"]["success_rate"] for one in rows)
    alarms = [one["honest"]["output, 3 sigma"] for one in honest if "output, 3 sigma" in one.get("honest", {})]
    false, rounds = (sum(one.get(name, 0) for one in alarms) for name in ("alarms", "rounds"))
    share = Figure("share of honest rounds with an alarm", false / rounds) if rounds else None
    cries = share is not None and share.ours > 0.05
    verdict = DOES_NOT if f1.ours < 0.8 else PARTLY if cries or share is None else HOLDS
    said = f"; {100 * share.ours:.0f} % of honest rounds raise an alarm too" if share is not None else ""
    why = f"The client that poisons is found (F1 {f1.ours:.2f}, backdoor works on {100 * works:.0f} %){said}."
    return Finding(verdict, why, (f1,) if share is None else (f1, share))


def _clients(results: Mapping[str, Data]) -> Finding:
    """What ten times the clients cost with the projection, and what they cost without it: only the first is judged."""
    (data,) = results.values()
    few, many = ("clients=10; guard=LightSplit(ratio=8)", "clients=100; guard=LightSplit(ratio=8)")
    fall = lost(data, few, many, "points lost from 10 to 100 clients with the projection")
    bare = lost(
        data, few.replace("LightSplit(ratio=8)", "none"), many.replace("LightSplit(ratio=8)", "none"), "without it"
    )
    verdict = HOLDS if surely(fall, 2) else PARTLY if fall.ours <= 5 else DOES_NOT
    said = [f"{abs(one.ours):.1f} points {'lower' if one.ours > 0 else 'higher'}" for one in (fall, bare)]
    why = f"With ten times the clients accuracy is {said[0]} behind the projection and {said[1]} without it" + (
        "."
        if verdict == HOLDS or fall.high is None
        else f"; {fall.high:.1f} may be lost at worst, where two would hold."
    )
    return Finding(verdict, why, (fall, bare))


_ATTACK = "--guard 'LightSplit(ratio=8)' --seeds 3 --no-alone"
EXPERIMENTS = (
    Experiment(
        "lightsplit-utility", PAPER,
        "A fixed random projection to an eighth of the width (F), or with a learned lift (L), costs few points.",
        "Table IX (L2H-SCH, IID), CIFAR-10: raw 87.24, F 83.50, L 83.42 %; Fashion-MNIST: 91.64, 91.08, 91.18 %",
        {
            "cifar10": _compared("recipes/lightsplit.py:cifar10", 512, " --epochs 60 --device cuda"),
            "fashion_mnist": _compared("recipes/lightsplit.py:fashion_mnist", 128, " --epochs 60 --device cuda"),
        },
        _utility,
        {"fashion": _compared("recipes/fashion.py:demo", 128, " --epochs 4")},
        (Earlier("cifar10-resnet18-l2h.json", _utility_before),),
    ),
    Experiment(
        "lightsplit-skewed", PAPER, "The same with clients of skewed labels.", "Table IX, Dirichlet columns",
        {"cifar10": _compared("recipes/lightsplit.py:cifar10", 512, " --partition 'Dirichlet(alpha=0.5)' --epochs 60 --device cuda")},
        _few_points,
        {"fashion": f"compare recipes/fashion.py:relay --with plan {_SMALL_GUARDS} {_SMALL}"},
    ),
    Experiment(
        "lightsplit-own-heads", PAPER, "The same with a head and tail of each client's own (PCH).", "Table IX, PCH columns",
        {"cifar10": _compared("recipes/lightsplit.py:cifar10", 512, " --own-client-network --epochs 60 --device cuda")},
        _few_points,
        {"fashion": f"compare recipes/fashion.py:own_heads --with plan {_SMALL_GUARDS} {_SMALL}"},
    ),
    Experiment(
        "lightsplit-fora", PAPER, "FORA cannot read behind the projection.", "Table V: SSIM of the pseudo-client near or below 0",
        {"audit": f"audit --net 'MobileNet(level=2)' --data CIFAR10 --epochs 20 --batch-size 64 --aux-samples 5000 --attack 'FORA(steps=10000)' --attack 'Decoder(steps=1500, width=128)' {_ATTACK} --device cuda"},
        _against("FORA"),
        {"audit": f"audit recipes/fashion.py:demo --net MnistNet --attack 'FORA(steps=300, reader_steps=300)' --attack 'Decoder(steps=150)' --images 64 {_ATTACK}".replace("--seeds 3", "--seeds 1")},
        (Earlier("attacks-bars.json", _bars("FORA"), lambda data: data["fora_lightsplit"]), Earlier("attacks-quick.json", _quick("FORA"))),
    ),
    Experiment(
        "lightsplit-sdar", PAPER, "SDAR is blunted by the projection.", "Table IV, level 4: SSIM 0.832 raw, 0.524 behind it",
        {"audit": f"audit --net ResNet20 --data CIFAR10 --protocol Vanilla --epochs 30 --batch-size 128 --aux-samples 25000 --attack 'SDAR(steps=20000)' --attack 'Decoder(steps=1500, width=128)' {_ATTACK} --device cuda"},
        _against("SDAR"),
        {"audit": f"audit recipes/fashion.py:demo --net MnistNet --attack 'SDAR(steps=300)' --attack 'Decoder(steps=150)' --images 64 {_ATTACK}".replace("--seeds 3", "--seeds 1")},
        (Earlier("attacks-quick.json", _quick("SDAR")),),
    ),
    Experiment(
        "lightsplit-unsplit", PAPER, "UnSplit's pictures behind the projection are black at every ratio.",
        "Table VI: MSE 0.132 raw, 0.166 behind it, the same to four digits at every ratio",
        {"audit": "audit recipes/lightsplit.py:unsplit_cut2 --aux-samples 5000 --attack UnSplit --attack 'Decoder(steps=1500, width=128)' --images 16 --guard 'LightSplit(ratio={8,16,32})' --seeds 3 --no-alone --device cuda"},
        _against("UnSplit"),
        {"audit": "audit recipes/fashion.py:demo --net MnistNet --epochs 4 --guard 'LightSplit(ratio={8,16,32})' --attack 'UnSplit(most_images=8, rounds=20)' --attack 'Decoder(steps=150)' --images 16 --no-alone"},
        (Earlier("attacks-quick.json", _quick("UnSplit")),),
    ),
    Experiment(
        "lightsplit-backdoor", PAPER, "A client that poisons is found by the cosine of its outputs to the consensus, three sigma.",
        "Fig. 7, 9, Table X: F1 0.89 at its defaults",
        {"audit": "audit --net 'ResNet18(depth=2)' --data CIFAR10 --clients 10 --guard 'LightSplit(ratio=16)' --epochs 60 --batch-size 64 --poison 'BadNets(clients=1)' --server-detectors 'ConsensusCosine()' --server-detectors 'ConsensusCosine(leave_one_out=False, sides=2, threshold=3.0)' --attack 'Decoder(steps=100)' --seeds 3 --no-alone --device cuda"},
        _backdoor,
        {"audit": "audit --net LeNet --data 'Digits(limit=1000)' --clients 10 --guard 'LightSplit(ratio=16)' --epochs 10 --batch-size 32 --poison 'BadNets(clients=1)' --server-detectors 'ConsensusCosine(leave_one_out=False, sides=2, threshold=3.0)' --attack \"Decoder(readers=('ridge',))\" --no-alone"},
        (Earlier("backdoor-cifar10.json", _backdoor_before, _at_defaults), Earlier("backdoor.json", _backdoor_before, _at_defaults)),
    ),
    Experiment(
        "lightsplit-clients", PAPER, "The projection scales from ten clients to a hundred.", "Table VIII, n = 10 to 100",
        {"cifar10": "compare recipes/lightsplit.py:cifar10 --epochs 60 --with 'clients={10,50,100}; guard={none,LightSplit(ratio=8)}' --seeds 3 --no-alone --device cuda"},
        _clients,
        {"fashion": f"compare recipes/fashion.py:demo --with 'clients={{10,100}}; guard={{none,LightSplit(ratio=8)}}' --batch-size 16 {_SMALL}"},
    ),
)  # fmt: skip
