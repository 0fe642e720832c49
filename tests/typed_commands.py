"""Commands typed one after the other, as processes of their own: one process imports torch, and forks for each.

Names of hosts that a page makes up are this machine, and ports that may be taken are others; all else is as written.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

PATIENCE = 180.0  # seconds for a command: machines are sometimes busy with other things
HOSTS = ("split.example.org", "new.example.org")


class Shell:
    """The test's side: start a command, wait for it, stop it."""

    def __init__(self, folder: Path):
        self.folder = folder
        root = Path(__file__).parents[1]
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}",
                "NO_COLOR": "1",
            },
        )
        self._ended: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._count = 0
        self._news = threading.Condition()
        self._ports: dict[str, int] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def port(self, written: str) -> int:
        """The one that stands for a written one."""
        if written not in self._ports:
            with socket.socket() as line:
                line.bind(("127.0.0.1", 0))
                self._ports[written] = line.getsockname()[1]
        return self._ports[written]

    def elsewhere(self) -> None:
        """From here on written ports stand for others: what ran before may not have left its own yet."""
        self._ports.clear()

    def start(self, words: list[str], folder: Path | None = None, room: int | None = None) -> "Typed":
        """`room`: so many operations on snapshots find room on its disk, and then no more."""
        assert words[0] == "cutlayer"
        for written in ("7443", "9100", "9101"):
            words = [word.replace(f":{written}", f":{self.port(written)}") for word in words]
        self._count += 1
        typed = Typed(self, self._count, words)
        where = {"folder": str(folder or self.folder), "said": str(typed.path)}
        self._tell({"run": self._count, "words": words[1:], **where, "room": room})
        return typed

    def run(self, words: list[str], seconds: float = PATIENCE, folder: Path | None = None) -> "Typed":
        typed = self.start(words, folder)
        typed.wait(seconds)
        return typed

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)

    def _tell(self, order: dict) -> None:
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
        for line in self._process.stdout:
            said = json.loads(line)
            with self._news:
                if "pid" in said:
                    self._pids[said["run"]] = said["pid"]
                else:
                    self._ended[said["run"]] = said["ended"]
                self._news.notify_all()


class Typed:
    """A command that was started."""

    def __init__(self, shell: Shell, number: int, words: list[str]):
        self.shell, self.number, self.words = shell, number, words
        self.path = shell.folder / f"said-{number}.txt"

    @property
    def code(self) -> int | None:
        return self.shell._ended.get(self.number)

    @property
    def said(self) -> str:
        return self.path.read_text() if self.path.exists() else ""

    def wait(self, seconds: float = PATIENCE) -> int:
        with self.shell._news:
            done = self.shell._news.wait_for(lambda: self.number in self.shell._ended, seconds)
        assert done, f"not over after {seconds} s: {self.words}\n{self.said}"
        return self.code

    def signal(self, number: int = signal.SIGTERM) -> None:
        with self.shell._news:
            assert self.shell._news.wait_for(lambda: self.number in self.shell._pids, 20)
        os.kill(self.shell._pids[self.number], number)


# ------------------------------------------------------------------------- the process that forks
def main() -> None:
    import torch
    import torch._dynamo  # optimizers import it at their first step

    from cutlayer.cli import app  # noqa: F401 - and what its commands import
    from cutlayer.engines import predict  # noqa: F401
    from cutlayer.engines.grpc import deploy, health, native_lines, prometheus  # noqa: F401

    torch.set_num_threads(1)
    running: dict[int, int] = {}
    while True:
        readable, _, _ = select.select([0], [], [], 0.02)
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            print(json.dumps({"run": running.pop(pid), "ended": os.waitstatus_to_exitcode(status)}), flush=True)
        if not readable:
            continue
        line = _line()
        if not line:
            break
        order = json.loads(line)
        pid = os.fork()
        if not pid:
            _be(order)
        running[pid] = order["run"]
        print(json.dumps({"run": order["run"], "pid": pid}), flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def _line() -> bytes:
    found = b""
    while not found.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return b""
        found += byte
    return found


def _be(order: dict) -> None:
    """Never returns."""
    from cutlayer.cli import app

    said = os.open(order["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.chdir(order["folder"])
    _hosts_are_here()
    if order["room"] is not None:
        from full_disk import FullDisk, use

        disk = FullDisk(order["room"], "snapshot-")
        use(disk, disk.save_file)
    sys.argv = ["cutlayer", *order["words"]]
    code: object = 0
    try:
        app.main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 99  # a bug: no exit code of the table
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _hosts_are_here() -> None:
    """As if a name server said so: to gRPC, which has a resolver of its own, and to Python."""
    import grpc

    secure, lookup = grpc.secure_channel, socket.getaddrinfo

    def here(target: str, credentials: object, options: list) -> grpc.Channel:
        host, _, port = target.rpartition(":")
        if host not in HOSTS:
            return secure(target, credentials, options)
        return secure(f"127.0.0.1:{port}", credentials, [*options, ("grpc.ssl_target_name_override", host)])

    grpc.secure_channel = lambda target, credentials, options=(): here(target, credentials, list(options))
    socket.getaddrinfo = lambda host, *rest, **more: lookup("127.0.0.1" if host in HOSTS else host, *rest, **more)


if __name__ == "__main__":
    main()
