"""Whoever computes in a thread of its own computes with as many helpers as everybody else."""

import subprocess
import sys

# In a process of its own, which begins with two: here somebody has set their number in many threads already.
WORK = """
import ctypes, sys, threading
import torch
from cutlayer import Batch, Kind, Message, Remote, Server, UShapedNetwork
torch.set_num_threads(1)
[omp] = {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line}
there = ctypes.CDLL(omp).omp_get_max_threads
found = {}

class Counting(torch.nn.Linear):
    def forward(self, x):
        found[threading.current_thread().name] = there()
        return super().forward(x)

server = Server(Counting(4, 4))
client = UShapedNetwork(Counting(4, 4), torch.nn.Linear(4, 2))
batch = Batch(torch.ones(3, 4), torch.tensor([0, 1, 0]), seed=0)

def body():
    found["new"] = there()
    server.handle(Message(Kind.FORWARD, 0, 0, {"z": torch.ones(3, 4)}))

for name, work in (("body", body), ("head", lambda: client.guarded(batch))):
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()
print(found["new"], found["body"], found["head"])
"""


def test_a_new_thread_computes_with_the_number_that_was_set():
    done = subprocess.run(
        [sys.executable, "-c", WORK], capture_output=True, text=True, check=True, env={"OMP_NUM_THREADS": "2"}
    )
    assert done.stdout.split() == ["2", "1", "1"]
