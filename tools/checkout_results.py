"""What one checkout computes: plans, an audit, a deployed run and frames, as facts that can be compared.

    python tools/checkout_results.py CHECKOUT OUT.json '["plans/..."]'

`same_results.py` starts it once for each checkout, with the package of that one in PYTHONPATH.
"""

import contextlib
import hashlib
import io
import json
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkout_frames import GROUPS, frames
from checkout_names import KEYS, LEFT_OUT, module, plan_text

Facts = dict[str, Any]  # of one item: what is compared, by what it is

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


if __name__ == "__main__":
    collect(Path(sys.argv[1]), json.loads(sys.argv[3]), Path(sys.argv[2]))
