"""A client with a leak budget stops by itself and says why; the server and the other clients go on."""

import json
from dataclasses import replace

from rehearsal import NAMES, Rehearsal, open_site
from toys import tiny_parts, tiny_plan

from cutlayer.core.errors import Halt
from cutlayer.detectors import LeakMeter, leak_meter
from cutlayer.engines.grpc.admission import Limits

METER = LeakMeter(budget="ncc<=0.2", policy="stop", every=4, samples=64, steps=8)


def test_one_stops_and_the_others_go_on(tmp_path, monkeypatch, patient_with):
    patient_with(NAMES[0], NAMES[2])
    # Toy images are noise, which no mean image resembles: a budget that is exceeded at once would be refused.
    monkeypatch.setattr(leak_meter, "floors", lambda *known: {"ssim": 0.0, "ncc": 0.0})
    plan, careful, parts = tiny_plan(epochs=2, batch_size=16, clients=3), NAMES[1], tiny_parts(240)
    run = Rehearsal(plan, tmp_path, limits=Limits(every=3, deadline=1.5, quiet=0.5), quiet=0.5, parts=parts)
    halts = []

    def work():
        own = replace(plan, client_detectors=(METER,))  # nobody else is told of it
        site = open_site(own, careful, run.address(careful), tmp_path / careful, parts)
        try:
            site.run()
        except Halt as halt:
            halts.append((halt, site))

    run._start(work)
    for name in NAMES:
        if name != careful:
            run.join(name)
    run.serve()
    result = run.end()
    ((halt, site),) = halts
    assert "LeakMeter: after step 3 a reader" in str(halt) and "the budget is 0.2" in str(halt)
    assert site.party.network.steps == 4
    told = json.loads((tmp_path / careful / "halted.json").read_text())
    assert told["why"] in str(halt) and told["detectors"][0]["leak_so_far"]["ncc"] > 0.2
    assert result["epochs"] == 2 and all(run.results[name]["steps"] == 10 for name in NAMES if name != careful)
