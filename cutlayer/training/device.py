"""What the machine may use: threads and device."""

import os


def threads_here(threads: int | None) -> int:
    """As many as were asked for; else as $OMP_NUM_THREADS says; else one for each core this process may use."""
    if threads is not None:
        if threads < 1:
            raise ValueError(f"--threads is a whole number from 1 up; got {threads}")
        return threads
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # a list is for nested regions
    if wanted.isdigit() and int(wanted):
        return int(wanted)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def prepare(threads: int | None, device: str) -> None:
    """Threads and device for torch, before anything is built."""
    count = threads_here(threads)
    # Read when torch loads its OpenMP: idle clients that spin for long starve whoever shares the cores.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    import torch

    torch.set_num_threads(count)
    keep_pages()
    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device is cpu or cuda; got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no GPU here; leave the option out to use the CPU")


def keep_pages() -> None:
    """Once so much was freed, the allocator keeps what it gets: tensors of a megabyte would else be given back and
    asked for again, page by page, at every step, which takes a small network a quarter of its time."""
    import torch

    torch.empty(30 << 18)
