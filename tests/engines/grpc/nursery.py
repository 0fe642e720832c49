"""Parties of a deployment as processes that may be killed at any moment.

Importing torch takes seconds, so one process imports it, does nothing else, and forks a party whenever it is told to:
a restart costs a tenth of a second. It reads orders from standard input, one JSON object a line, and says on standard
output who has started and who has ended. When its input ends it ends every party, and itself.

A party may be doomed: it then kills itself with SIGKILL the n-th time it passes a certain point. Points are chosen to
be the worst moments: half a snapshot written, an update made and not answered, an answer given and not kept. Or its
disk is full from the n-th operation on, and it ends by itself.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

POINTS = {
    "server": ("before update", "after update", "half a file", "before rename", "after rename", "orders", "result"),
    "client": ("after step", "half a file", "before rename", "after rename", "orders", "answers"),
}
FULL = "full disk"
LEARNT = ("LOSS", "BACKWARD")  # the messages that a body may step at: who is frozen sends no gradient


class Nursery:
    """The test's side."""

    def __init__(self) -> None:
        here, named = (
            Path(__file__),
            filter(None, [os.environ.get("PYTHONPATH")]),
        )  # a checkout that was named is used
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(map(str, [*named, here.parent, here.parents[2], here.parents[3]])),
        }
        self._process = subprocess.Popen(
            [sys.executable, str(here)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.alive: dict[str, int] = {}
        self.ended: list[tuple[str, int]] = []  # who, and how: negative numbers are signals
        self._news = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, name: str, alias: str = "", **facts: Any) -> None:
        """A party; another process of one that is there already goes by an `alias`."""
        with self._news:
            self._tell({"start": name, "alias": alias or name, **facts})
            assert self._news.wait_for(lambda: (alias or name) in self.alive, 300), f"{name} did not start"

    def signal(self, name: str, number: int) -> None:
        self._tell({"signal": number, "name": name})

    def wait(self, seconds: float) -> list[tuple[str, int]]:
        """Who has ended since the last call, as soon as somebody has or the time is over."""
        with self._news:
            self._news.wait_for(lambda: self.ended, seconds)
            found, self.ended = self.ended, []
            return found

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait(120)

    def _tell(self, order: dict[str, Any]) -> None:
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
        for line in self._process.stdout:
            said = json.loads(line)
            with self._news:
                if "pid" in said:
                    self.alive[said["name"]] = said["pid"]
                else:
                    del self.alive[said["name"]]
                    self.ended.append((said["name"], said["ended"]))
                self._news.notify_all()


# ------------------------------------------------------------------------- the process that forks
def main() -> None:
    import torch
    import torch._dynamo  # optimizers import it at their first step, which takes longer than a run
    from rehearsal import open_site  # noqa: F401 - and all that parties need

    torch.set_num_threads(1)
    parties: dict[int, str] = {}
    waiting = b""
    while True:
        readable, _, _ = select.select([0], [], [], 0.01)
        while parties:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            say({"name": parties.pop(pid), "ended": os.waitstatus_to_exitcode(status)})
        if not readable:
            continue
        data = os.read(0, 1 << 16)
        if not data:
            break
        *lines, waiting = (waiting + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if "signal" in order:
                for pid, name in parties.items():
                    if name == order["name"]:
                        os.kill(pid, order["signal"])
                continue
            pid = os.fork()
            if not pid:
                be(order)
            parties[pid] = order["alias"]
            say({"name": order["alias"], "pid": pid})
    for pid in parties:
        os.kill(pid, signal.SIGKILL)


def say(fact: dict[str, Any]) -> None:
    os.write(1, json.dumps(fact).encode() + b"\n")


# ---------------------------------------------------------------------------------------- a party
def be(order: dict[str, Any]) -> None:
    """Play one party to its end; never returns."""
    code = 1
    try:
        folder = Path(order["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        log = os.open(folder / f"{order['alias']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = (serve if order["start"] == "server" else join)(order, folder)
    except BaseException as error:
        import traceback

        traceback.print_exc()
        code = code_of(error)
    finally:
        sys.stdout.flush()
        os._exit(code)


def code_of(error: BaseException) -> int:
    """The exit code that the command would end with."""
    from cutlayer.core.errors import DiskFull
    from cutlayer.core.files import is_full

    return DiskFull.exit_code if is_full(error) else getattr(error, "exit_code", 1)


class Doom:
    """Death at the n-th passing of a point."""

    def __init__(self, point: str | None, count: int = 0):
        self.point, self.left = point, count

    def at(self, point: str, first: Callable[[], object] = lambda: None) -> None:
        if point != self.point:
            return
        self.left -= 1
        if self.left < 0:
            first()
            os.kill(os.getpid(), signal.SIGKILL)


class Table:
    """Every update a party makes and every return to a snapshot, in a file that survives the party."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, *facts: Any) -> None:
        os.write(self._file, json.dumps(facts).encode() + b"\n")


def audited(path: Path, clients: int) -> tuple[list[list[int]], Counter[str]]:
    """The steps of each client whose updates are in the last weights, in their order, and what else was counted."""
    steps: list[list[int]] = [[] for _ in range(clients)]
    counts: Counter[str] = Counter()
    for line in path.read_text().splitlines():
        kind, *facts = json.loads(line)
        counts[kind] += 1
        if kind == "update":
            client, step = facts
            steps[client].append(step)
        else:  # a return: later updates are gone, with the weights that had them
            steps = [[step for step in one if step < kept] for one, kept in zip(steps, facts[0], strict=True)]
    return steps, counts


def _mortal_files(doom: Doom) -> None:
    """Checkpoints whose writer may die half-way, on a disk that may be full."""
    from full_disk import FullDisk, use

    from cutlayer.core import files

    if doom.point == FULL:
        disk = FullDisk(doom.left)
        use(disk, disk.save_file)
        return
    replace = os.replace

    def renamed(beside: Any, path: Any) -> None:
        if Path(path).suffix == ".safetensors":
            doom.at("half a file", first=lambda: os.truncate(beside, Path(beside).stat().st_size // 2))
            doom.at("before rename")
        replace(beside, path)
        if Path(path).suffix == ".safetensors":
            doom.at("after rename")

    class Os:
        def __getattr__(self, name: str) -> Any:
            return renamed if name == "replace" else getattr(os, name)

    files.os = Os()  # type: ignore[attr-defined]


def serve(order: dict[str, Any], folder: Path) -> int:
    from rehearsal import NAMES

    from cutlayer.core.errors import Interrupted
    from cutlayer.engines.grpc.admission import Limits
    from cutlayer.engines.grpc.carrier import GrpcCarrier
    from cutlayer.engines.grpc.deploy import Service
    from cutlayer.engines.grpc.logs import start_logs
    from cutlayer.engines.grpc.recovery import Recovery
    from cutlayer.engines.grpc.server import GrpcServer

    start_logs("text")
    plan, doom, table = _plan(order), Doom(*order.get("doom", (None,))), Table(folder / "server.table")
    _mortal_files(doom)

    def watcher(message: Any, handle: Any) -> Any:
        time.sleep(order.get("pace", 0.0))
        if message.kind.name not in LEARNT:
            return handle(message)
        doom.at("before update")
        answer = handle(message)
        table.add("update", message.client, message.step)
        doom.at("after update")
        return answer

    go_to, ask = Recovery._go_to, GrpcCarrier.ask

    def returned(recovery: Recovery, number: int) -> None:
        go_to(recovery, number)
        table.add("return", recovery.progress.taken)

    def ordered(carrier: GrpcCarrier, client: int, message: Any) -> Any:
        doom.at("orders")
        return ask(carrier, client, message)

    Recovery._go_to, GrpcCarrier.ask = returned, ordered  # type: ignore[method-assign]
    identity = Path(order["identities"]) / "server" if "identities" in order else None
    service = Service(
        plan, NAMES[: plan.clients], folder / "server", listen="127.0.0.1:0", identity=identity,
        limits=Limits(**order.get("limits", {})), at_server=() if plan.rounds.fused else [watcher],
    )  # fmt: skip
    result_of = service._result

    def result(host: GrpcServer) -> dict[str, Any]:
        found = result_of(host)
        doom.at("result")
        return found

    service._result = result  # type: ignore[method-assign]
    signal.signal(signal.SIGTERM, lambda *_: service.stop())
    beside = folder / "port.writing"
    beside.write_text(str(service.network.port))
    os.replace(beside, folder / "port")
    ended: list[int] = []

    def work() -> None:
        try:
            service.run()
            ended.append(0)
        except Interrupted as error:
            print(error)
            ended.append(130)
        except BaseException as error:
            import traceback

            traceback.print_exc()
            ended.append(code_of(error))

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        thread.join(0.05)
    return ended[0]


def join(order: dict[str, Any], folder: Path) -> int:
    from rehearsal import open_site, parts_of

    from cutlayer.engines.grpc import certs, deploy
    from cutlayer.engines.grpc.channel import Address
    from cutlayer.engines.grpc.client import DeployedClient
    from cutlayer.engines.grpc.logs import start_logs

    start_logs("text")
    name = order["start"]
    plan, doom, table = _plan(order), Doom(*order.get("doom", (None,))), Table(folder / f"{name}.table")
    if (folder / name / "result.json").exists():
        return 0
    go_to, follow = DeployedClient._go_to, DeployedClient._follow

    def returned(site: DeployedClient, number: int) -> None:
        go_to(site, number)
        if number >= 0:
            table.add("return", [site.party.network.steps])

    def followed(site: DeployedClient, message: Any) -> Any:
        doom.at("orders")
        answer = follow(site, message)
        doom.at("answers")
        return answer

    DeployedClient._go_to, DeployedClient._follow = returned, followed  # type: ignore[method-assign]
    identity = certs.read_identity(Path(order["identities"]) / name, "client") if "identities" in order else None
    address = Address(f"localhost:{order['port']}", identity, quiet=order.get("quiet", 20.0))
    _mortal_files(doom)
    lock = deploy._begin(folder / name, plan)  # as `deploy.join` does
    site = open_site(plan, name, address, folder / name, parts_of(plan), give_up=order.get("give_up", 300.0))
    site.lock = lock

    def stepped(epoch: int, steps: int, terms: Any) -> None:
        table.add("update", 0, steps - 1)
        doom.at("after step")

    site.run(stepped)
    return 0


def _plan(order: dict[str, Any]) -> Any:
    from rehearsal import FAULTED

    return FAULTED[order["plan"]]


if __name__ == "__main__":
    main()
