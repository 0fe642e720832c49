"""A Ray cluster: reached, or started on this machine alone; what is wrong with it is said before any work begins."""

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LOCAL, AUTO = "local", "auto"
REACH = 5.0  # seconds for a first connection to an address
RETRIES = 3  # of what was lost with a worker or a node


def is_there() -> bool:
    """Whether Ray is installed."""
    return find_spec("ray") is not None


@contextmanager
def connected(where: str, cpus: int | None = None) -> Iterator[Any]:
    """The module `ray`, connected: `local` starts one here with so many CPUs, `auto` finds the one that runs on this
    machine, anything else is an address. One that this process is connected to already is used, and stays."""
    ray = _imported(where)
    if ray.is_initialized():
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if where == LOCAL:
            _start_here(ray, num_cpus=cpus, **quiet)
        else:
            _reach(where)
            ray.init(address=where, **quiet)
            refuse_other_versions(ray)
        yield ray
    finally:
        ray.shutdown()


def _start_here(ray: Any, **options: Any) -> None:
    """A node of our own. Ray gives it half a minute to start; on a machine that is busy just then it gets another."""
    # By its word: without an address Ray would join whatever else runs on this machine.
    start = partial(ray.init, LOCAL, include_dashboard=False, _node_ip_address="127.0.0.1", **options)
    try:
        start()
    except Exception as error:  # Ray has no name for it
        if "timed out during startup" not in str(error):
            raise
        ray.shutdown()
        start()


def _imported(where: str) -> Any:
    if not is_there():
        raise ValueError("a cluster needs Ray: pip install 'cutlayer[ray]'")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is told to anybody
    if where == LOCAL:
        # Nobody else is to connect: loopback alone, which Ray has for systems whose firewalls would ask.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_task_oom_retries", str(RETRIES))  # without it, for ever
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if where == LOCAL and hasattr(constants := ray._private.ray_constants, "ENABLE_RAY_CLUSTER"):
        constants.ENABLE_RAY_CLUSTER = False  # the same, where somebody has imported it before
    return ray


def _reach(where: str) -> None:
    """Ray itself would wait for long, and then tell a story."""
    if where == AUTO:
        if not (os.environ.get("RAY_ADDRESS") or Path("/tmp/ray/ray_current_cluster").exists()):
            raise ValueError(
                "no Ray runs on this machine: start one with `ray start --head`, or take --cluster local"
            )
        return
    host, _, port = where.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"a cluster is local, auto, or an address such as 10.0.0.1:6379; got {where!r}")
    try:
        socket.create_connection((host, int(port)), REACH).close()
    except OSError as error:
        raise ValueError(f"no cluster answers at {where} ({error}): is it running, and is the port open?") from error


# ------------------------------------------------------------------------------ what is asked of it
def refuse_too_much(ray: Any, cpus: float, gpus: float) -> None:
    """One task, or one actor, must fit on some node."""
    if cpus <= 0 or gpus < 0:
        raise ValueError(f"a task takes more than 0 CPUs and at least 0 GPUs; got {cpus} and {gpus}")
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for name, asked in (("GPU", gpus), ("CPU", cpus)):
        most = max((node.get(name, 0.0) for node in nodes), default=0.0)
        if asked > most:
            raise ValueError(f"{asked:g} {name}s were asked for, and no node of the cluster has more than {most:g}")


def side_by_side(ray: Any, cpus: float, gpus: float) -> int:
    """How many tasks of this size the cluster computes at once."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    each = [int(min(node.get("CPU", 0.0) / cpus, node.get("GPU", 0.0) / gpus if gpus else 1e9)) for node in nodes]
    return max(1, sum(each))


def refuse_other_versions(ray: Any) -> None:
    """Rows made by other code, or by another torch, would not be comparable."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    mine, asked = versions(), {}
    for node in ray.nodes():
        if node["Alive"]:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(_versions_there).options(num_cpus=0, scheduling_strategy=there)
            asked[node["NodeManagerAddress"]] = task.remote()
    for address, found in asked.items():
        try:
            theirs = ray.get(found)
        except Exception as error:
            raise ValueError(
                f"the node {address} cannot import cutlayer: install the version that is here on every node "
                f"({_last_line(error)})"
            ) from error
        for name, version in mine.items():
            if theirs[name] != version:
                raise ValueError(
                    f"the node {address} has {name} {theirs[name]}, and here it is {version}: install the same"
                )


def _last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1][:200]


def _versions_there() -> dict[str, str]:
    return versions()


@cache
def versions() -> dict[str, str]:
    """What figures hang on, of this process."""
    import torch

    from .. import __version__

    root = Path(__file__).parents[1]
    texts = b"".join(path.read_bytes() for path in sorted(root.rglob("*.py")))
    return {
        "Python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "torch": torch.__version__.partition("+")[0],
        "cutlayer": f"{__version__} ({sha256(texts).hexdigest()[:8]})",
    }
