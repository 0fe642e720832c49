"""Where and when a result was made: date, machine, versions. No name of a person, a host or a folder."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

import numpy
import torch

from ... import __version__


class Made(TypedDict):
    date: str  # UTC, to the minute
    machine: str
    versions: dict[str, str]
    seconds: float | None  # what training and attacking took, on however many processors at once


def made(seconds: float | None = None) -> Made:
    versions = {
        "cutlayer": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "Python": platform.python_version(),
    }
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "versions": versions,
        "seconds": seconds,
    }


def machine() -> str:
    """Processor, threads and accelerator, as a person would tell them."""
    parts = [processor(), f"{torch.get_num_threads()} of {os.cpu_count()} threads", platform.system()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        parts.insert(1, torch.cuda.get_device_name())
    return ", ".join(part for part in parts if part)


def processor() -> str:
    """The name the maker gave it where the system tells, else its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
