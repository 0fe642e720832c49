"""deploy/ without a container runtime: files parse, their commands can be typed, ports and exit codes agree."""

import configparser
import json
import re
import shlex

import pytest
import yaml
from pages import ROOT
from typer.main import get_command

from cutlayer.cli import app as cli
from cutlayer.core.errors import BUDGET_NOT_KEPT, DiskFull, Halt, Interrupted, OffPlan
from cutlayer.engines.grpc.channel import GaveUp
from cutlayer.engines.grpc.prometheus import exposition
from cutlayer.engines.grpc.session import Refused

DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
MANIFESTS = {path.stem: list(yaml.safe_load_all(path.read_text())) for path in DEPLOY.glob("kubernetes/*.yaml")}
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
WORTH_A_RESTART = {4, 8}  # no server for too long: it may be back; a full disk: there may be room again


def unit(path):
    parsed = configparser.ConfigParser(interpolation=None, strict=True)
    parsed.optionxform = str
    parsed.read_string(path.read_text())
    return parsed


def pod(kind):
    """The manifest of that side which runs something."""
    (found,) = [one for one in MANIFESTS[kind] if one["kind"] in ("StatefulSet", "Job")]
    return found["spec"]["template"]["spec"], found


def container(kind):
    (found,) = pod(kind)[0]["containers"]
    return found


def all_commands():
    found = {f"compose {name}": one["command"] for name, one in COMPOSE["services"].items()}
    for path in UNITS:
        program, *words = shlex.split(unit(path)["Service"]["ExecStart"].replace("%i", "hospital-a"))
        assert program.endswith("/bin/cutlayer")
        found[path.name] = words
    return found | {f"kubernetes {kind}": container(kind)["args"] for kind in MANIFESTS}


def typed(words):
    name, *rest = words
    return get_command(cli.app).commands[name].make_context(name, [str(word) for word in rest]).params


@pytest.mark.parametrize("where", all_commands())
def test_a_command_can_be_typed(where):
    words = all_commands()[where]
    given = typed(words)
    assert given["plan"] == "plan.py:plan" and (DEPLOY / "plan.py").exists() and not given["insecure"]
    assert given["log"] == "json" and given["metrics"]
    if words[0] == "serve":
        assert given["client"] == ["hospital-a", "hospital-b"] and str(given["certs"]) == "certs/server"
    else:
        assert str(given["certs"]) == f"certs/{given['name']}" and given["name"] in ("hospital-a", "hospital-b")


def test_there_is_a_server_and_two_clients_and_units_for_both_sides():
    assert [one["command"][0] for one in COMPOSE["services"].values()] == ["serve", "join", "join"]
    assert sorted(MANIFESTS) == ["client", "server"] and len(UNITS) == 2


def test_ports_agree():
    exposed = set(re.search(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE)[1].split())
    listened, metrics = set(), set()
    for words in all_commands().values():
        given = typed(words)
        listened.add((given["listen"] if words[0] == "serve" else given["server"]).rpartition(":")[2])
        if "%i" not in " ".join(map(str, words)):
            metrics.add(given["metrics"].rpartition(":")[2])
    assert listened == {"7443"} and exposed == {"7443", "9100"}
    assert metrics == {"9100", "9101"}, "two parties on one host have two ports for metrics"
    assert COMPOSE["services"]["server"]["ports"] == ["7443:7443", "127.0.0.1:9100:9100"]
    for one in COMPOSE["services"].values():
        port = typed(one["command"])["metrics"].rpartition(":")[2]
        assert f"127.0.0.1:{port}/healthz" in one["healthcheck"]["test"][-1]
    for kind in MANIFESTS:
        named = {one["name"]: one["containerPort"] for one in container(kind)["ports"]}
        assert named["metrics"] == int(typed(container(kind)["args"])["metrics"].rpartition(":")[2])
        for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
            assert container(kind)[probe]["httpGet"] == {"path": path, "port": "metrics"}
    (service,) = [one for one in MANIFESTS["server"] if one["kind"] == "Service"]
    assert service["spec"]["ports"] == [{"name": "cut", "port": 7443, "targetPort": "cut"}]
    assert service["spec"]["publishNotReadyAddresses"], "a server is ready once clients are there, who must reach it"
    assert service["spec"]["selector"].items() <= pod("server")[1]["spec"]["template"]["metadata"]["labels"].items()


def test_nobody_is_root():
    *_, last = re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)
    assert last == "10001:10001" and DOCKERFILE.rindex("FROM") < DOCKERFILE.rindex("USER")
    for one in COMPOSE["services"].values():
        assert one["user"] == last and one["cap_drop"] == ["ALL"] and one["read_only"]
    for kind in MANIFESTS:
        whole, own = pod(kind)[0]["securityContext"], container(kind)["securityContext"]
        assert whole["runAsNonRoot"] and f"{whole['runAsUser']}:{whole['runAsGroup']}" == last
        assert not own["allowPrivilegeEscalation"] and own["readOnlyRootFilesystem"]
    for path in UNITS:
        assert unit(path)["Service"]["User"] == "cutlayer" and unit(path)["Service"]["NoNewPrivileges"] == "yes"


def test_the_image_is_built_in_stages_with_a_variant_for_each_device():
    stages = re.findall(r"^FROM (\S+)(?: AS (\w+))?$", DOCKERFILE, re.MULTILINE)
    assert [name for _, name in stages] == ["build", "cpu", "cuda", ""] and stages[-1][0] == "${VARIANT}"
    assert DOCKERFILE.index("ARG VARIANT=cpu") < DOCKERFILE.index("FROM")
    assert 'ENTRYPOINT ["cutlayer"]' in DOCKERFILE and "STOPSIGNAL SIGTERM" in DOCKERFILE
    copied = [
        word for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE) for word in line.split()
    ]
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().split("\n")
    assert copied and all((ROOT / name).exists() and f"!{name}" in ignore for name in copied)
    assert COMPOSE["services"]["server"]["build"] == {
        "context": "..", "dockerfile": "deploy/Dockerfile",
        "args": {"VARIANT": "${VARIANT:-cpu}", "TORCH_INDEX": "${TORCH_INDEX:-}"},
    }  # fmt: skip


def test_what_is_mounted_is_what_the_commands_read():
    for name, one in COMPOSE["services"].items():
        given, inside = typed(one["command"]), [volume.split(":")[1] for volume in one["volumes"]]
        assert f"/srv/{given['certs']}" in inside and "/srv/plan.py" in inside and "/srv/runs" in inside
        kept = [volume.split(":")[0] for volume in one["volumes"] if not volume.startswith(".")]
        assert kept == [name] and name in COMPOSE["volumes"], "every party has a disk of its own that stays"
    for kind in MANIFESTS:
        whole, workload = pod(kind)
        claimed = {one["metadata"]["name"] for one in workload["spec"].get("volumeClaimTemplates", [])}
        mounts = {one["mountPath"]: one["name"] for one in container(kind)["volumeMounts"]}
        assert set(mounts.values()) == {one["name"] for one in whole["volumes"]} | claimed
        assert {"/srv/runs", f"/srv/{typed(container(kind)['args'])['certs']}", "/srv/plan.py"} <= set(mounts)
    assert pod("server")[1]["spec"]["replicas"] == 1, "a run's folder is one process's"


# ------------------------------------------------------------------------- exit codes
def documented():
    table = (ROOT / "docs/deployment.md").read_text().split("| exit code | means |")[1].split("\n\n")[0]
    return {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}


def test_the_table_has_the_exit_codes_that_there_are():
    raised = {error.exit_code for error in (Refused, GaveUp, Halt, OffPlan, DiskFull, Interrupted)}
    assert documented() == {0, 1, 2, BUDGET_NOT_KEPT, *raised}


def test_only_what_is_worth_it_is_started_again():
    given_up = documented() - {0, Interrupted.exit_code} - WORTH_A_RESTART
    for path in UNITS:
        service = unit(path)["Service"]
        assert service["Restart"] == "on-failure" and service["KillSignal"] == "SIGTERM"
        assert set(map(int, service["RestartPreventExitStatus"].split())) == given_up
        assert service["SuccessExitStatus"] == str(Interrupted.exit_code)
    rule, *_ = pod("client")[1]["spec"]["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob" and set(rule["onExitCodes"]["values"]) == given_up
    assert rule["onExitCodes"]["containerName"] == container("client")["name"]
    for one in COMPOSE["services"].values():
        assert re.fullmatch(r"on-failure:\d", one["restart"]), "compose cannot tell exit codes apart"


# ------------------------------------------------------------------------- metrics
FACTS = {
    "version": "1", "plan": "p", "state": "training", "missing": [], "refused": {"plan": 1}, "certificates": {
        "server": "2030-01-01T00:00:00+00:00"}, "ledger": {"rows": [
            {"kind": "FORWARD", "direction": "up", "bytes": 1, "messages": 1}]},
    "clients": [{"name": "a", "connected": True, "silent": 1.0}],
}  # fmt: skip


def exported():
    return set(re.findall(r"^(cutlayer_\w+)", exposition(FACTS)[1].decode(), re.MULTILINE))


def used(path):
    return set(re.findall(r"\bcutlayer_\w+", path.read_text()))


def test_the_dashboard_and_the_alerts_name_metrics_that_there_are():
    assert used(DEPLOY / "grafana.json") == exported(), "every metric is on the dashboard, and no other"
    assert used(DEPLOY / "prometheus/alerts.yaml") <= exported()
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    assert dashboard["panels"] and all(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    labels = set(re.findall(r"\{\{(\w+)\}\}", (DEPLOY / "grafana.json").read_text())) - {"instance"}
    text = exposition(FACTS)[1].decode()
    assert all(f'{label}="' in text for label in labels)


def test_what_is_scraped_is_where_the_server_says_it():
    scraped = yaml.safe_load((DEPLOY / "prometheus/scrape.yaml").read_text())
    (job,) = scraped["scrape_configs"]
    given = unit(DEPLOY / "systemd/cutlayer-server.service")["Service"]["ExecStart"]
    assert job["static_configs"][0]["targets"][0] in given and scraped["rule_files"] == ["alerts.yaml"]
    groups = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"]
    assert all({"alert", "expr", "annotations"} <= set(rule) for group in groups for rule in group["rules"])
