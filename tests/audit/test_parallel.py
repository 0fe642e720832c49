"""Several processes share an audit: each cell is made once, and the table is that of one process."""

import threading
from dataclasses import replace

import pytest
from toys import TASK, samples, tiny_plan

from cutlayer.attacks import Decoder
from cutlayer.audit import parallel
from cutlayer.audit.matrix import audit
from cutlayer.audit.parallel import _work, spread
from cutlayer.audit.spec import AuditSpec, Resources
from cutlayer.audit.store import ResultStore
from cutlayer.data.base import Loaded
from cutlayer.guards import WCC, LightSplit


def wanted():
    attacks = [Decoder(steps=3, width=4, hidden=8), Decoder(steps=4, width=4, hidden=8)]
    loaded = Loaded(samples(120, 1), samples(30, 2), tuple(map(str, range(TASK.classes))))
    plan = tiny_plan(epochs=1, batch_size=8, private_seed=None)
    return AuditSpec(plan, [LightSplit(ratio=4)], attacks, images=8), loaded


def kept(folder):
    return Resources(store=ResultStore(folder, wanted()[0].identity))


def without_times(rows):
    return [{name: value for name, value in row.items() if "seconds" not in name} for row in rows]


def test_workers_take_different_cells_and_the_table_is_the_same(tmp_path):
    """Workers run one after the other here: what the first has claimed, the second leaves alone."""
    folder, claims = tmp_path / "cells", tmp_path / "claims"
    made = []
    spec, loaded = wanted()
    for part in (replace(spec, guards=(), alone=False), spec):
        claims.mkdir()
        for _ in range(2):
            before = set(folder.glob("*")) if folder.exists() else set()
            _work(claims, 1, (folder, spec.identity), part, loaded, Resources())
            made.append(len(set(folder.glob("*.safetensors")) - before))
        for path in claims.iterdir():
            path.unlink()
        claims.rmdir()
    # The first worker takes all: floors, truth and two cells; then all of the guard's.
    assert made[0] == 4 and made[1] == 0 and made[2] > 0 and made[3] == 0
    shared = audit(spec, loaded, kept(folder))
    alone = audit(spec, loaded)
    assert without_times(shared.rows) == without_times(alone.rows) and len(alone.rows) > 2
    assert without_times(shared.alone) == without_times(alone.alone) and len(alone.alone) == 2


def test_a_guard_that_a_worker_could_not_train_is_left_out_by_all(tmp_path):
    spec, loaded = wanted()
    spec, folder, claims = replace(spec, guards=[WCC(weight=1e38)], alone=False), tmp_path / "cells", tmp_path / "c"
    claims.mkdir()
    _work(claims, 1, (folder, spec.identity), spec, loaded, Resources())
    told = []
    found = audit(spec, loaded, Resources(store=ResultStore(folder, spec.identity), on_event=told.append))
    assert "did it" in found.left_out["WCC(weight=1e+38)"] and {row["guard"] for row in found.rows} == {"none"}
    assert not any("training" in event.what for event in told), "nobody tries it again"


@pytest.mark.campaign  # tests/outside audits with two processes too, with plug-ins of its own
def test_two_processes_fill_the_cells(tmp_path):
    alone, shared, shown = audit(*wanted()), kept(tmp_path / "cells"), []
    shared.store.put("0 | floors", alone.floors)  # the longest part, and the test above has workers that make them
    spread(*wanted(), shared, 2, 1, shown.append)
    made = set((tmp_path / "cells").iterdir())
    shared = audit(*wanted(), kept(tmp_path / "cells"))
    assert set((tmp_path / "cells").iterdir()) == made  # nothing was left to do
    assert without_times(shared.rows) == without_times(alone.rows)
    assert not (tmp_path / "cells.claims").exists() and shown


@pytest.mark.parametrize(("asked", "started"), [(9, [2, 3]), (2, [2, 2]), (1, [1, 1])])
def test_no_more_processes_are_started_than_there_is_work_for(tmp_path, monkeypatch, asked, started):
    """Two attacks on the open cut; then a guard and two baselines."""
    counts = []
    monkeypatch.setattr(parallel, "share", lambda count, *given: counts.append(count))
    spread(*wanted(), kept(tmp_path / "cells"), asked, 1, print)
    assert counts == started


def test_what_cannot_be_handed_over_is_said(tmp_path):
    with pytest.raises(ValueError, match="cannot be handed to them"):
        spread(*wanted(), replace(kept(tmp_path / "cells"), lpips=threading.Lock()), 2, 1, print)
    assert not (tmp_path / "cells").exists()
