"""Where the cells of a table are made beside this process: on a Ray cluster, or in processes of this machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..data.base import Loaded
from ..engines import cluster
from ..engines.parcel import parcel
from ..training.device import threads_here
from .jobs import Shown, Workers, run
from .processes import processes
from .spec import AuditSpec, Resources

PROCESSES = "processes"


@dataclass(frozen=True)
class Where:
    """`cluster`: local, auto or an address of Ray; processes: of this machine, without Ray; None: local where Ray is
    installed, else processes. `jobs`: how many at once. A job takes `cpus` and `gpus`."""

    cluster: str | None = None
    jobs: int | None = None
    threads: int | None = None
    cpus: float | None = None
    gpus: float | None = None

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(f"--jobs is at least 1; got {self.jobs}")
        if self.cpus is None and self.gpus is None:
            return
        if not self.apart or self.kind == PROCESSES:
            raise ValueError(
                "--cpus-each and --gpus-each are what a job takes of a Ray cluster: give --cluster local, auto or "
                "its address, or leave them out"
            )
        if (self.cpus is not None and self.cpus <= 0) or (self.gpus is not None and self.gpus < 0):
            raise ValueError("--cpus-each is above 0, --gpus-each 0 or more")

    @property
    def apart(self) -> bool:
        """Whether cells are made elsewhere than in this process."""
        return self.cluster is not None or (self.jobs or 1) > 1

    @property
    def kind(self) -> str:
        return self.cluster or (cluster.LOCAL if cluster.is_there() else PROCESSES)


@contextmanager
def workers(where: Where, shared: Any, what: str, device: str = "cpu") -> Iterator[Workers]:
    """Whoever computes jobs that share `shared`, which messages call `what`."""
    parts, kind = parcel(shared, what), where.kind
    if kind == PROCESSES:
        jobs = where.jobs or threads_here(where.threads)
        with processes(parts, jobs, threads_each(where.threads, jobs)) as found:
            yield found
        return
    from .on_ray import on_ray

    here = kind == cluster.LOCAL
    jobs_here = (where.jobs or threads_here(where.threads)) if here else where.jobs
    with cluster.connected(kind, jobs_here) as ray:
        cpus = where.cpus or 1.0
        threads = threads_each(where.threads, jobs_here) if here and jobs_here else max(1, int(cpus))
        gpus = where.gpus if where.gpus is not None else _gpus(ray, device, jobs_here)
        with on_ray(ray, parts, threads, cpus, gpus, where.jobs) as placed:
            yield placed


def _gpus(ray: Any, device: str, jobs: int | None) -> float:
    """A GPU a job; on this machine all of its jobs share those that are there."""
    if device != "cuda":
        return 0.0
    there = ray.cluster_resources().get("GPU", 0.0)
    if not there:
        raise ValueError("--device cuda: no node of the cluster has a GPU; leave the option out to use CPUs")
    return 1.0 if jobs is None or there >= jobs else int(1000 * there / jobs) / 1000


def spread(
    spec: AuditSpec, loaded: Loaded, resources: Resources, where: Where, show: Callable[[Shown], None]
) -> None:
    """Fill the store of `audit(spec, loaded, resources)`."""
    from .stages import AuditWork, Stages

    stages = Stages(spec, loaded, resources)
    shared = AuditWork(spec, loaded, resources.device, resources.lpips)
    if jobs := stages.jobs():
        with workers(where, shared, "audit", resources.device) as there:
            for job, made in run(jobs, there, show):
                stages.take(job, made)


def threads_each(threads: int | None, jobs: int) -> int:
    """Each process's part of the cores."""
    return max(1, threads_here(threads) // jobs)
