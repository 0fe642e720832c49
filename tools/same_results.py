"""Do two checkouts compute the same? Runs both on this machine, one thread each, and compares what they leave behind.

    python tools/same_results.py OLD NEW [--only plans] [--only frames/Grid] [--python .venv/bin/python]

OLD and NEW are folders with a `cutlayer` package in them, before and after a refactor. One line an item, `same` or
`DIFFERS` with the first places; the exit code is 1 on any difference, and where an item cannot be made. Items, by the
names that --only takes (a part of a name is enough, and it may be repeated):

    plans/...   trained by `cutlayer train` with fixed private seeds: networks and kept state bit for bit, history,
                result and ledger, and the frames that the server received
    deploy      one `serve` and two `join` over loopback: the weights of all three, their results and ledgers
    frames/...  wire version 1, byte for byte: every kind and dtype, every codec, chosen, asked for and prepared
    audit       the numbers of a small `audit.json`, and how it judges

Tensors are hashed by dtype, shape and bytes. Where both checkouts use the same names they are compared by name;
otherwise without names, as the same tensors in any order (files do not keep the order of parameters). Times,
versions, paths and the plan's text are left out; sentences may be worded differently (it says how many are). Hashes
differ between processors: none is worth keeping.

Needs what the extras `deploy` and `entropy` install. Commands and files on disk are all that is looked at, but for
frames; whatever a checkout calls by another name is in the section "names", and nowhere else.
"""

import argparse
import ast
import base64
import contextlib
import dataclasses
import hashlib
import importlib
import io
import json
import os
import pkgutil
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Facts = dict[str, Any]  # of one item: what is compared, by what it is

# ------------------------------------------------------------------------------------------------------------ names
# Words of the plans below -> what a checkout may call them, the newest first. The first that is a field of its Plan
# is taken; `rounds` comes before `schedule`, which in older checkouts is that of the learning rate.
FIELDS = {
    "rounds": ("rounds", "schedule"),
    "lr_schedule": ("lr_schedule", "schedule"),
    "local_steps": ("local_steps", "turn"),
    "clients_per_round": ("clients_per_round", "take"),
    "frozen_parts": ("frozen_parts", "frozen"),
    "shared_client_network": ("shared_client_network", "shared"),
    "batch_size": ("batch_size", "batch"),
    "val_share": ("val_share", "val"),
    "aux_samples": ("aux_samples", "aux"),
    "guarded_clients": ("guarded_clients", "guarded"),
    "client_detectors": ("client_detectors", "watch"),
    "server_detectors": ("server_detectors", "server_watch"),
    "micro_batches": ("micro_batches", "pieces"),
}
# A spec with arguments that used to be fields beside it: word -> (of the spec, of the plan).
SPREAD = {
    "protocol": {"home": "home", "fusion": "fusion"},
    "compression": {"answers": "down", "gradients": "back"},
    "start": {"path": "weights", "skip_tail": "skip_tail"},
}
# Keys of result.json, history.jsonl and audit.json that were renamed.
KEYS = {"watch": "detectors_honest", "watched": "detectors_attacked", "server_watch": "server_detectors"}
# What is no result: times, texts of the plan, where and with what it was made.
LEFT_OUT = re.compile(r"seconds$|^(plan|version|command|date|time|out|fingerprint|schema|lpips_missing|digest)$")
# Where modules and packages may be, the newest first.
MODULES = {
    "message": ("cutlayer.core.message", "cutlayer.message"),
    "frames": ("cutlayer.wire.frames", "cutlayer.wire"),
    "main": ("cutlayer.cli.app", "cutlayer.cli"),
    "codecs": ("cutlayer.wire.codecs", "cutlayer.codecs"),
}
# A package that is installed for editing also offers its files to another checkout that has none of that name.
ALONE = """
import sys
sys.meta_path[:] = [one for one in sys.meta_path if not getattr(one, "__module__", "").startswith("__editable__")]
"""
# A command of a checkout, as its console script runs it.
COMMAND = (
    ALONE
    + """
from importlib import import_module
import cutlayer.cli
import_module("cutlayer.cli.app" if hasattr(cutlayer.cli, "__path__") else "cutlayer.cli").main()
"""
)


def module(name: str) -> Any:
    """A module of the checkout, wherever it is."""
    for place in MODULES[name]:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(place)
    raise ModuleNotFoundError(f"none of {', '.join(MODULES[name])} is there")


def codec_thing(name: str) -> Any:
    """A class of some file of the codecs, whichever has it."""
    home = module("codecs")
    for found in [home, *_inside(home)]:
        if hasattr(found, name):
            return getattr(found, name)
    raise AttributeError(f"no codec's file has {name}")


def _inside(package: Any) -> Iterator[Any]:
    for one in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        yield importlib.import_module(one.name)


def plan_text(words: dict[str, str]) -> str:
    """A plan of this file as the checkout spells it."""
    from cutlayer import Plan

    known = {field.name for field in dataclasses.fields(Plan)}
    spelled: dict[str, str] = {}
    for word, value in words.items():
        for name, text in _spread(word, value, known):
            field = next((one for one in FIELDS.get(name, (name,)) if one in known), None)
            if field is None:
                raise ValueError(f"Plan has no field for {name!r}: add its new name to FIELDS or SPREAD")
            spelled[field] = text
    return f"Plan({', '.join(f'{name}={text}' for name, text in spelled.items())})"


def _spread(word: str, value: str, known: set[str]) -> list[tuple[str, str]]:
    """A spec whose arguments are fields of the checkout's plan, as these fields."""
    fields = SPREAD.get(word, {})
    call = ast.parse(value, mode="eval").body
    if not isinstance(call, ast.Call) or not known & set(fields.values()):
        return [(word, value)]
    apart = [(fields[str(one.arg)], ast.unparse(one.value)) for one in call.keywords]
    return apart + ([(word, ast.unparse(call.func))] if word in known else [])


# ------------------------------------------------------------------------------------------------------------ plans
USUAL = {"data": "Digits(limit=240)", "batch_size": "32", "epochs": "1", "seed": "3"}
PLANS: dict[str, dict[str, str]] = {
    "vanilla-relay": {
        "protocol": "Vanilla", "clients": "2", "local_steps": "2", "epochs": "2", "lr_schedule": "Cosine()",
        "client_optimizer": "SGD(lr=0.05, momentum=0.9)", "server_optimizer": "SGD(lr=0.05, momentum=0.9)",
    },
    "ushaped-relay-lightsplit": {
        "protocol": "UShaped", "guard": "LightSplit(ratio=8)", "clients": "2", "epochs": "2", "val_share": "0.2",
    },
    "ushaped-wave-wcc": {
        "protocol": "UShaped", "rounds": "Wave()", "guard": "Chain(LightSplit(ratio=8), WCC(weight=0.1))",
        "clients": "3", "partition": "Dirichlet(alpha=0.5)",
    },
    "ushaped-fused-wave": {
        "protocol": "UShaped", "rounds": "Wave(weights='even', fused=True)", "guard": "TopK(share=0.1)",
        "clients": "3", "partition": "Dirichlet(alpha=0.5)",
    },
    "vanilla-wave-nopeek": {
        "protocol": "Vanilla", "rounds": "Wave()", "rule": "FedAvgM()", "guard": "NoPeek(alpha=0.5)", "clients": "2",
    },
    "bypass-splitfed1-gaussian": {
        "protocol": "Bypass(home=0.4, fusion='hybrid')", "rounds": "SplitFed(version=1)", "clients": "3",
        "clients_per_round": "2", "guard": "Chain(Clip(norm=2.0), Gaussian(scale=0.3))", "local_steps": "2",
    },
    "bypass-relay-prism": {
        "protocol": "Bypass(home=0.5, fusion='residual')", "guard": "Prism(keep=0.2, privacy='adversary')",
        "clients": "2",
    },
    "vanilla-splitfed2-seal": {
        "protocol": "Vanilla", "rounds": "SplitFed(version=2, fresh=True)", "rule": "FedAdam()", "guard": "SEAL()",
        "clients": "3", "local_steps": "0",
    },
    "batchnorm-splitfed1": {
        "net": "ResNet20(level=3)", "data": "Digits(limit=100)", "rounds": "SplitFed(version=1)", "rule": "FedProx()",
        "clients": "2", "batch_size": "16",
    },
    "federated-scaffold": {
        "protocol": "Federated", "rounds": "SplitFed(version=1)", "rule": "Scaffold()", "clients": "3",
        "local_steps": "0", "client_optimizer": "SGD(lr=0.05, momentum=0.0)", "epochs": "2",
    },
    "own-heads-lfq": {
        "shared_client_network": "False", "guard": "LFQ(groups=2, bits=6)", "clients": "2", "epochs": "2",
    },
    "lfq-replaced-lift": {
        "guard": "LFQ(groups=1, bits=6, decoder='client', freq=2)", "clients": "2",
    },
    "frozen-roles-kanonymous": {
        "roles": "Frozen(share=0.5, inherit=2)", "guard": "KAnonymous(k=4)", "clients": "4", "batch_size": "16",
    },
    "frozen-wave-c3": {
        "roles": "Frozen(share=0.5, rotate=1)", "rounds": "Wave()", "guard": "C3(ratio=2)", "clients": "4",
        "batch_size": "16",
    },
    "compressed-both-ways": {
        "guard": "Quantize(bits=4, rounding='stochastic')", "clients": "2",
        "compression": "Compression(answers=Quantize(bits=6), gradients=Quantize(bits=8, rounding='stochastic'))",
    },
    "micro-batches-entropy": {
        "guard": "Quantize(bits=3, entropy=True)", "micro_batches": "2", "clients": "2", "frozen_parts": "('tail',)",
    },
    "rate-bottleneck": {"protocol": "Vanilla", "guard": "RateBottleneck(channels=4, width=8)"},
    "splitfc-both-ways": {
        "guard": "SplitFC(ratio=4.0)", "compression": "Compression(gradients=SplitFC(ratio=4.0))", "clients": "2",
    },
    "fedlite-relay": {"guard": "FedLite(parts=288, centroids=4)", "clients": "2", "local_steps": "0"},
    "some-guarded-dpsgd": {
        "guard": "DPSGD(clip=1.0, noise=0.5)", "guarded_clients": "1", "shared_client_network": "False",
        "clients": "2", "batch_size": "16",
    },
    "from-a-file": {
        "start": "Pretrained(path='FINISHED', skip_tail=True)", "frozen_parts": "('head',)", "clients": "2",
    },
    "detectors-and-poison": {
        "client_detectors": "(GradientScrutinizer(warm=3, threshold=0.001), LeakMeter(every=4, samples=64, steps=5))",
        "server_detectors": "(ConsensusCosine(shuffles=49),)", "poison": "BadNets(clients=1, share=0.5)",
        "rounds": "Wave()", "clients": "4", "data": "Digits(limit=320)",
    },
}  # fmt: skip
DEPLOYED = USUAL | {
    "guard": "Chain(LightSplit(ratio=8), WCC(weight=0.1))", "rounds": "SplitFed(version=1)", "clients": "2",
    "compression": "Compression(answers=Quantize(bits=8), gradients=Quantize(bits=8))", "local_steps": "2",
}  # fmt: skip
AUDITED = USUAL | {"data": "Digits(limit=200)", "aux_samples": "40"}
AUDIT = [
    "--guard", "LightSplit(ratio=8)", "--guard", "Chain(Clip(norm=2.0), Gaussian(scale=0.3))", "--images", "16",
    "--attack", "Decoder(steps=4, width=4, hidden=16)",
]  # fmt: skip
SECRET = ["--private-seed", "11", "--threads", "1"]


def train(name: str, folder: Path) -> Facts:
    out = folder / name.replace("/", "-")
    text = plan_text(USUAL | PLANS[name.removeprefix("plans/")])
    if "FINISHED" in text:  # the network of an earlier run
        _in_process(["train", plan_text(USUAL), *SECRET, "--out", str(folder / "first"), "--json"])
        text = text.replace("FINISHED", str(folder / "first" / "model.safetensors"))
    _in_process(["train", text, *SECRET, "--record", "64", "--out", str(out), "--json"])
    networks, kept = _networks(out, "model", "last")
    return {
        "networks": networks,
        "kept state": kept,
        "history": plain([json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]),
        "result": plain(json.loads((out / "result.json").read_text())),
        "recorded frames": _recorded(out / "transcript.bin"),
    }


def audit(name: str, folder: Path) -> Facts:
    _in_process(["audit", plan_text(AUDITED), *AUDIT, "--threads", "1", "--out", str(folder / "audit"), "--json"])
    return {"audit.json": plain(json.loads((folder / "audit" / "audit.json").read_text()))}


def deploy(name: str, folder: Path) -> Facts:
    """Three processes: a server on a free port of loopback, and two clients that try until it is there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    text, names = plan_text(DEPLOYED), ("ann", "bob")
    common = ["--insecure", "--threads", "1", "--log", "json", "--out"]
    clients = [word for one in names for word in ("--client", one)]
    typed = {"server": ["serve", text, "--listen", address, *clients, *common, str(folder / "server")]}
    for number, one in enumerate(names):
        secret = ["--private-seed", str(21 + number), "--give-up", "100"]
        typed[one] = ["join", text, address, "--as", one, *secret, *common, str(folder / one)]
    logs = {one: (folder / f"{one}.log").open("w+") for one in typed}
    running = {
        one: subprocess.Popen([sys.executable, "-c", COMMAND, *words], stdout=logs[one], stderr=logs[one])
        for one, words in typed.items()
    }
    try:
        until = time.monotonic() + 150
        for one, process in running.items():
            if process.wait(max(1.0, until - time.monotonic())):
                logs[one].seek(0)
                raise RuntimeError(f"{one} ended with {process.returncode}: {logs[one].read()[-2000:]}")
    finally:
        for one, process in running.items():
            if process.poll() is None:
                process.kill()
                process.wait()
            logs[one].close()
    facts: Facts = {}
    for one in typed:
        facts[f"{one}: networks"], facts[f"{one}: kept state"] = _networks(
            folder / one, "server" if one == "server" else "client"
        )
        result = json.loads((folder / one / "result.json").read_text())
        if "ended" in result:
            result["ended"] = sorted(result["ended"])  # who was told first is chance
        facts[f"{one}: result"] = plain(result)
        history = (folder / one / "history.jsonl").read_text().splitlines()
        facts[f"{one}: history"] = plain([json.loads(line) for line in history])
    return facts


def _in_process(words: list[str]) -> None:
    """A command as it is typed; torch is loaded once for all of them."""
    main = module("main").main
    told, sys.argv = io.StringIO(), ["cutlayer", *words]
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            main()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"exit code {end.code}: {told.getvalue()[-2000:]}") from None


def _networks(folder: Path, *files: str) -> tuple[dict[str, str], dict[str, str]]:
    """Hashes of the tensors in some files of a run: networks, and what else is kept (optimizers, memories)."""
    from safetensors import safe_open

    networks, kept = {}, {}
    for file in files:
        path = folder / f"{file}.safetensors"
        if not path.exists():  # heads of their own make no one model
            networks[f"{file} is not there"] = ""
            continue
        with safe_open(path, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                is_kept = re.search(r"(^|/)(optimizer|memory|watch)[./]", name)
                (kept if is_kept else networks)[f"{file}: {name}"] = _hash(opened.get_tensor(name))
    return {"tensors": networks}, {"tensors": kept}


def _hash(tensor: Any) -> str:
    import torch

    flat = tensor.contiguous().reshape(-1)
    sha = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    sha.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return sha.hexdigest()[:24]


def _recorded(path: Path) -> Facts:
    """A hash for each frame of a recording, and how long it is."""
    if not path.exists():
        return {"there": "False"}
    data, at, found = path.read_bytes(), 4, {}
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        frame = data[at + 4 : at + 4 + length]
        found[f"[{len(found)}]"] = f"{length} bytes, {hashlib.sha256(frame).hexdigest()[:16]}"
        at += 4 + length
    return found


def plain(found: Any, at: str = "") -> dict[str, str]:
    """Plain data, flat: the way to each number or word in it -> its text."""
    if isinstance(found, dict):
        pairs = [(KEYS.get(key, key), value) for key, value in found.items() if not LEFT_OUT.search(key)]
        inside = [(f"{at}.{key}" if at else key, value) for key, value in pairs]
    elif isinstance(found, list):
        inside = [(f"{at}[{place}]", value) for place, value in enumerate(found)]
    else:
        return {at: repr(found)}
    return {key: text for way, value in inside for key, text in plain(value, way).items()} or {at: repr(found)}


# ----------------------------------------------------------------------------------------------------------- frames
def frames(name: str, folder: Path) -> Facts:
    """The frames of one group of messages, whole, and what is said of their sizes without encoding them."""
    room, found = module("frames"), {}
    for what, (message, codec) in GROUPS[name.removeprefix("frames/")]().items():
        frame = bytes(room.encode(message, codec))
        found[what] = FRAME + base64.b64encode(frame).decode()
        found[f"size of {what}"] = str(room.size(message, codec))
    return {"bytes": found}


FRAME = "frame "
Letters = dict[str, tuple[Any, Any]]  # what it is -> message, and the codec that is asked for


def _letter(kind: str = "FORWARD", packed: Any = None, /, **tensors: Any) -> Any:
    room = module("message")
    return room.Message(room.Kind[kind], 3, 1 << 33, tensors, packed or {})


def _floats(*shape: int) -> Any:
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def _kinds() -> Letters:
    names = [kind.name for kind in sorted(module("message").Kind)]
    return {
        **{name: (_letter(name, None, z=_floats(3, 2)), None) for name in names},
        **{f"{name}, empty": (_letter(name), None) for name in names},
    }


def _dtypes() -> Letters:
    import torch

    names = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
    return {name: (_letter(z=(9 * _floats(5, 30)).to(getattr(torch, name))), None) for name in names}


def _shapes() -> Letters:
    import torch

    found = {"scalar": _floats(), "none": _floats(0, 4), "one": _floats(7), "six": _floats(1, 2, 1, 3, 1, 2)}
    found["channels last"] = _floats(2, 3, 4, 5).to(memory_format=torch.channels_last)
    found["not in one piece"] = _floats(6, 8).T
    several = {f"täg{number}": _floats(number, 3) for number in range(1, 5)}
    return {**{name: (_letter(z=one), None) for name, one in found.items()}, "several": (_letter(**several), None)}


def _zeros() -> dict[str, Any]:
    import torch

    dense, dice = _floats(12, 10), torch.rand(12, 10, generator=torch.Generator().manual_seed(6))
    ends = torch.where(torch.arange(10) < torch.arange(12)[:, None] % 7, dense, 0.0)
    return {
        "dense": dense,
        "pruned": torch.where(dice < 0.4, dense, 0.0),
        "few": torch.where(dice < 0.04, dense, 0.0),
        "ends": ends,
        "as bfloat16": dense.bfloat16().float(),
        "as float16": dense.half().double(),
        "nothing": torch.zeros(12, 10),
    }


def _chosen() -> Letters:
    found: Letters = {name: (_letter(z=one), None) for name, one in _zeros().items()}
    return found | {f"{name}, weights": (_letter("WEIGHTS", None, z=one), None) for name, one in _zeros().items()}


def _asked() -> Letters:
    codecs = {name: codec_thing(name)() for name in ("Raw", "Sparse", "Prefix", "Half")}
    return {f"{c} of {name}": (_letter(z=t), codec) for c, codec in codecs.items() for name, t in _zeros().items()}


def _drawn(most: int, *shape: int) -> Any:
    import torch

    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(7))


def _ready(of: Any, *shape: int) -> tuple[Any, Any]:
    return _letter("FORWARD", {"z": of}, z=_floats(*shape)), None


def _gridded(bits: int, grids: int) -> Any:
    return codec_thing("Gridded")(_drawn(1 << bits, 8, 40), _floats(grids), _floats(grids).abs(), bits)


def _grids() -> Letters:
    return {f"{b} bits, {grids} grids": _ready(_gridded(b, grids), 8, 40) for b in (1, 3, 8) for grids in (1, 8)}


def _entropies() -> Letters:
    coded = codec_thing("Coded")
    return {f"{b} bits, {grids} grids": _ready(coded(_gridded(b, grids)), 8, 40) for b in (1, 3) for grids in (1, 8)}


def _columns() -> Letters:
    import torch

    def made(length: int) -> Any:
        at, widths = torch.arange(0, 20, 3), torch.tensor([0, 1, 3, 15, 0, 2, 8])
        codes = torch.stack([_drawn(1 << int(width), 6) for width in widths if width])
        return codec_thing("Columned")(
            at=at, widths=widths, means=_drawn(64, 2), low=_drawn(30, 5), high=30 + _drawn(30, 5), codes=codes,
            grids=_floats(4).abs(), ends=6, rows=6, length=length, dtype=torch.float32,
        )  # fmt: skip

    return {f"of {length}": _ready(made(length), 6, length) for length in (24, 300)}


def _codebooks() -> Letters:
    import torch

    made = codec_thing("Worded")
    return {
        f"{books} books": _ready(made(_floats(books, 5, 4), _drawn(5, 30, 6), 23, torch.float32), 30, 23)
        for books in (1, 3)
    }


def _latents() -> Letters:
    import numpy as np

    spreads = codec_thing("Spreads")(
        np.array([20, 30], np.uint8),
        np.array([5, 25, 45], np.uint8),
        np.arange(-3, 3).astype(np.int8).reshape(3, 2),
        2,
    )
    numbers, hyper = _drawn(9, 5, 3, 6, 5) - 4, _drawn(5, 5, 2, 3, 3) - 2
    return {"of whole numbers": _ready(codec_thing("Latent")(numbers.int(), hyper, spreads), 5, 3, 6, 5)}


def _pictures() -> Letters:
    files = tuple(b"what all begin with " + bytes(range(10 * one)) for one in range(1, 4))
    return {f"format {form}": _ready(codec_thing("Album")(files, form), 3, 1, 16, 16) for form in (0, 1)}


GROUPS: dict[str, Callable[[], Letters]] = {
    "kinds": _kinds,
    "dtypes": _dtypes,
    "shapes": _shapes,
    "chosen codec": _chosen,
    "Raw Sparse Prefix Half": _asked,
    "Grid": _grids,
    "Columns": _columns,
    "Codebook": _codebooks,
    "Entropy": _entropies,
    "Latents": _latents,
    "Pictures": _pictures,
}


# ------------------------------------------------------------------------------------------------------- one checkout
def items() -> dict[str, Callable[[str, Path], Facts]]:
    """Everything that is compared, the fastest first."""
    return {
        **{f"frames/{name}": frames for name in GROUPS},
        **{f"plans/{name}": train for name in PLANS},
        "audit": audit,
        "deploy": deploy,
    }


def collect(checkout: Path, chosen: list[str], out: Path) -> None:
    """In a process of its own, with the checkout's package: the facts of all items, as JSON."""
    exec(ALONE)
    import torch

    torch.set_num_threads(1)
    known, found = items(), {}
    for name in chosen:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                found[name] = known[name](name, Path(folder))
            except Exception as error:  # one item that cannot be made leaves the others their comparison
                found[name] = {"error": f"{type(error).__name__}: {error}"}
                if not isinstance(error, RuntimeError):
                    traceback.print_exc()
        found[name]["seconds"] = time.monotonic() - began
    for name, one in sys.modules.items():
        came = getattr(one, "__file__", None)
        if name.partition(".")[0] == "cutlayer" and came and checkout not in Path(came).resolve().parents:
            sys.exit(f"{name} came from {came}, not from {checkout}")
    out.write_text(json.dumps(found))


# --------------------------------------------------------------------------------------------------------- comparison
def run(python: str, checkout: Path, chosen: list[str]) -> dict[str, Facts]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = {**os.environ, **threads, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        asked = [python, str(Path(__file__).resolve()), "--collect", str(checkout), str(out), json.dumps(chosen)]
        if code := subprocess.run(asked, env=environment, cwd=folder).returncode:
            sys.exit(f"{checkout}: the comparison's own process ended with {code}")
        return dict(json.loads(out.read_text()))


def differences(old: Facts, new: Facts) -> tuple[list[str], int]:
    """Where two items differ, and how many sentences do: those do not count."""
    errors = [f"{side} failed: {facts['error']}" for side, facts in (("OLD", old), ("NEW", new)) if "error" in facts]
    if errors:
        return errors, 0
    found, reworded = [], 0
    for part in [part for part in {**old, **new} if part != "seconds"]:
        before, after = old.get(part, {}), new.get(part, {})
        if "tensors" in before and "tensors" in after:
            found += [f"{part}: {where}" for where in _other_tensors(before["tensors"], after["tensors"])]
            continue
        for way in sorted(set(before) | set(after), key=_natural):
            one, other = before.get(way, "not there"), after.get(way, "not there")
            if one == other:
                continue
            if _is_sentence(one) and _is_sentence(other):
                reworded += 1
            else:
                found.append(f"{part}: {way}: {_told(one, other)}")
    return found, reworded


def _other_tensors(before: dict[str, str], after: dict[str, str]) -> list[str]:
    if set(before) == set(after):
        return [name for name in sorted(before, key=_natural) if before[name] != after[name]]
    gone, came = (
        Counter(before.values()) - Counter(after.values()),
        Counter(after.values()) - Counter(before.values()),
    )
    lost = [f"{name} of OLD is not in NEW" for name, value in before.items() if value in gone]
    return lost + [f"{name} of NEW is not in OLD" for name, value in after.items() if value in came]


def _is_sentence(text: str) -> bool:
    """Words for a person, neither a number nor a spec nor the name of something."""
    return text[:1] in "'\"" and " " in text and not re.match(r"['\"]\w+\(.*\)['\"]$", text)


def _told(one: str, other: str) -> str:
    if not (one.startswith(FRAME) and other.startswith(FRAME)):
        return f"{one[:60]} -> {other[:60]}"
    first, second = (base64.b64decode(text.removeprefix(FRAME)) for text in (one, other))
    at = next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    return f"from byte {at} on; {len(first)} -> {len(second)} bytes"


def _first_of_each(places: list[str]) -> list[str]:
    """Two places of each part, and how many more there are."""
    parts: dict[str, list[str]] = {}
    for place in places:
        parts.setdefault(place.partition(":")[0], []).append(place)
    return [
        line
        for part, own in parts.items()
        for line in own[:2] + ([f"{part}: and {len(own) - 2} more (--all)"] if len(own) > 2 else [])
    ]


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def main() -> int:
    if sys.argv[1:2] == ["--collect"]:
        collect(Path(sys.argv[2]), json.loads(sys.argv[4]), Path(sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--python", default=sys.executable, help="which runs both; it has what cutlayer needs")
    parser.add_argument("--only", action="append", metavar="NAME", help="items with this in their name; repeatable")
    parser.add_argument("--all", action="store_true", help="every place that differs, not the first few")
    given = parser.parse_args()
    chosen = [name for name in items() if not given.only or any(part in name for part in given.only)]
    if not chosen:
        parser.error(f"nothing is called that; there is {', '.join(items())}")
    for checkout in (given.old, given.new):
        if not (checkout / "cutlayer" / "__init__.py").is_file():
            parser.error(f"{checkout} has no package cutlayer in it")
    old, new = (run(given.python, checkout.resolve(), chosen) for checkout in (given.old, given.new))
    bad, wide = 0, max(map(len, chosen))
    for name in chosen:
        places, reworded = differences(old[name], new[name])
        seconds = f"({old[name]['seconds']:.1f} s, {new[name]['seconds']:.1f} s)"
        if not places:
            words = f"; {reworded} sentences are worded differently" if reworded else ""
            print(f"{name:{wide}}  same  {seconds}{words}")
            continue
        bad += 1
        where = "is not made" if "error" in old[name] or "error" in new[name] else f"in {len(places)} places"
        print(f"{name:{wide}}  DIFFERS  {where} {seconds}")
        for place in places if given.all else _first_of_each(places):
            print(f"{'':{wide}}    {place.strip()}")
    print(f"{len(chosen) - bad} of {len(chosen)} items are the same")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
