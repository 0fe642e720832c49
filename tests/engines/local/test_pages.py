"""A run asks the system for memory once, and not at every step anew."""

import platform
import subprocess
import sys

import pytest

STEPS = 40
CODE = f"""
import resource, torch
torch.set_num_threads(1)
from cutlayer import LocalRun, Plan
from cutlayer.data.base import Parts, Samples
from cutlayer.nets.lenet import LeNet

def some(count):
    return Samples(torch.rand(count, 1, 28, 28), torch.arange(count) % 10)

plan = Plan(net=LeNet(), batch_size=64, epochs=1, private_seed=1, val_share=0.0)
run = LocalRun(plan, Parts(some(64 * {STEPS}), some(2), some(2), some(2)), classes=10)
rounds = run.timetable.rounds(0)
for turns in rounds[:10]:
    run.take(turns)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for turns in rounds[10:]:
    run.take(turns)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / len(rounds[10:]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator has other habits")
def test_steps_of_a_run_from_python_fault_few_pages():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 300, "of 4 KiB; 1,000 to 2,000 where the allocator gives back what was freed"
