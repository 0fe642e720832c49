"""Commands of a deployment: certs, serve, join, status, predict. Heavy imports happen inside."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..training.device import prepare
from .options import AsJson, Code, DataDir, Device, LinkOption, OneGuard, PrivateSeed, Recipe, Threads, plan_options
from .terminal import Bar, OrderlyStop, end_if_not_kept, figures, halt_told, say

if TYPE_CHECKING:
    from ..training.plan.plan import Plan

_NET = "The network"
LONGEST = 10_000_000  # seconds that a clock waits for; whoever means "for ever" types as many
Server = Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the server listens.")]
Certs = Annotated[
    Path | None,
    typer.Option(help="This party's own folder from `cutlayer certs`.", rich_help_panel=_NET),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No certificates; on loopback only, to try things.", rich_help_panel=_NET)
]
Message = Annotated[int, typer.Option("--max-message", help="MiB of one message at most.", rich_help_panel=_NET)]
As = Annotated[str, typer.Option("--as", help="This client's name, as in its certificate.")]
State = Annotated[
    Path | None,
    typer.Option("--out", help="Folder for state and results; the same command goes on in it after a crash."),
]
Metrics = Annotated[
    str | None,
    typer.Option(help="HOST:PORT for /healthz, /readyz and /metrics, over plain HTTP.", rich_help_panel=_NET),
]
StalledAfter = Annotated[
    float, typer.Option(help="Not ready after so many times as long as most steps take.", rich_help_panel=_NET)
]
Logs = Annotated[str, typer.Option("--log", help="text or json: what is said while it runs.")]


def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the authority and the parties' folders lie.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address by which clients reach the server. May be repeated.")
    ] = None,
    client: Annotated[list[str] | None, typer.Option(help="Name of a client. May be repeated.")] = None,
    operator: Annotated[
        list[str] | None, typer.Option(help="Name of somebody who may ask for the status alone. May be repeated.")
    ] = None,
    days: Annotated[int | None, typer.Option(help="How long new certificates are valid. Default: 825.")] = None,
    renew: Annotated[bool, typer.Option("--renew", help="Replace what is named, and revoke the old.")] = False,
    revoke: Annotated[list[str] | None, typer.Option(help="Shut this client out. May be repeated.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Who has one, until when, and who is revoked.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make the certificates by which server and clients know each other, one folder for each of them.

    [bold]cutlayer certs certs --host server.example.org --client hospital-a --client hospital-b[/bold]
    A second run adds who is new, with the same authority, and leaves what is there as it is.
    """
    from dataclasses import asdict

    from ..engines.grpc import certs as room

    if (show or revoke) and (host or client or operator or days is not None or renew or (show and revoke)):
        raise ValueError("--show and --revoke go alone: make or renew certificates in a command of its own")
    if revoke:
        notes = room.revoke(folder, revoke)
    else:
        notes = [] if show else room.make(folder, host or [], client or [], days, renew, operator or [])
    for note in notes:
        say(note)
    rows = room.show(folder) if show or as_json else []
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
    elif show:
        print("\n".join(room.table(rows)))


@plan_options
def serve(
    changes: dict[str, Any],
    plan: Recipe = None,
    listen: Annotated[str, typer.Option(help="HOST:PORT to listen on; port 0: any free one.")] = "127.0.0.1:7443",
    client: Annotated[
        list[str] | None,
        typer.Option("--client", help="Name of a client, in the order of their numbers. Repeatable."),
    ] = None,
    certs: Certs = None,
    insecure: Insecure = False,
    deadline: Annotated[
        float, typer.Option(help="Seconds to wait for a client that is away before its turn is skipped.")
    ] = 300.0,
    every: Annotated[int, typer.Option(help="Steps between two snapshots.")] = 50,
    max_message: Message = 256,
    max_batches: Annotated[int, typer.Option(help="Batches a client may have in an epoch.", rich_help_panel=_NET)] = 1
    << 16,
    visitors: Annotated[int, typer.Option(help="Connections that only predict, at most.", rich_help_panel=_NET)] = 16,
    connections: Annotated[
        int, typer.Option(help="Times a client may connect within ten seconds.", rich_help_panel=_NET)
    ] = 30,
    metrics: Metrics = None,
    stalled_after: StalledAfter = 20.0,
    versions: Annotated[
        list[str] | None,
        typer.Option(
            help="How far a client's torch or cutlayer may differ: torch=same, patch, minor or any. Repeatable. "
            "Default: torch=patch, cutlayer=same.",
            rich_help_panel=_NET,
        ),
    ] = None,
    stay: Annotated[bool, typer.Option("--stay", help="When training is over, go on answering predictions.")] = False,
    guard: OneGuard = None,
    device: Device = "cpu",
    threads: Threads = None,
    out: State = None,
    log: Logs = "text",
    as_json: AsJson = False,
) -> None:
    """Run the server of a plan: the body, and whose turn it is. It never builds a head, a tail or a client's secrets.

    [bold]cutlayer serve plan.py:plan --listen 0.0.0.0:7443 --certs certs/server --client ward-a --client b[/bold]
    After a crash the same command goes on. Ctrl-C or SIGTERM ends after the current turn, with a snapshot.
    """
    import threading

    prepare(threads, device)
    from ..engines.grpc.admission import Limits
    from ..engines.grpc.certs.base import party_names
    from ..engines.grpc.deploy import Service
    from ..engines.grpc.health import refuse_no_place, start_health
    from ..engines.grpc.logs import start_logs
    from ..engines.grpc.native_lines import native_lines, quiet_lines
    from ..engines.grpc.pulse import Pulse
    from ..engines.grpc.versions import VersionPolicy

    chosen = _plan(plan, changes, guard)
    identity = identity_of(certs, insecure)
    policy, pulse = VersionPolicy.parse(versions or []), Pulse(stalled_after)
    refuse_no_place(metrics)
    start_logs(log)
    names = client or [f"client{number}" for number in range(chosen.clients)]
    party_names(names)  # what no certificate could bear is no name without one either
    if not 0 < deadline <= LONGEST:
        raise ValueError(f"--deadline is above 0 and at most {LONGEST} seconds; got {deadline:g}")
    if min(every, max_message, max_batches, connections) < 1 or visitors < 0:
        raise ValueError(
            "--visitors is 0 or more, --every, --max-message, --max-batches and --connections at least 1"
        )
    with quiet_lines():
        service = Service(
            chosen, names, out or Path("runs") / f"serve-{chosen.fingerprint()}", listen=listen, identity=identity,
            limits=Limits(
                message=max_message << 20, deadline=deadline, every=every, visitors=visitors, connections=connections,
                batches=max_batches, versions=policy,
            ),
            pulse=pulse,
        )  # fmt: skip
    if metrics is not None:
        try:
            start_health(metrics, service.status)
        except (OSError, ValueError):
            service.close()
            raise
    say(f"listening on {listen.rsplit(':', 1)[0]}:{service.network.port}, plan {chosen.fingerprint()}")
    shown: list[list[str]] = []

    def waiting(missing: list[str]) -> None:
        if not shown or shown[-1] != missing:
            shown.append(missing)
            say(f"waiting for {', '.join(missing)}")

    found: list[Any] = []

    def work() -> None:
        try:
            with Bar(estimates=True) as bar:
                found.append(
                    service.run(
                        on_wait=waiting,
                        on_step=lambda p: bar.show(f"epoch {p.epoch + 1}, step {p.step}", p.step / max(1, p.steps)),
                        on_epoch=bar.note,
                        stay=stay,
                        device=device,
                    )
                )
        except BaseException as error:
            found.append(error)

    # Signals reach the first thread only, and only between two of its own steps or while it waits.
    thread = threading.Thread(target=work)
    with native_lines(), OrderlyStop(service.stop):
        thread.start()
        thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    result = found[0]
    if as_json:
        print(json.dumps({**result, "out": str(service.folder)}))
        return
    from ..engines.grpc.deploy import summary

    say(summary(result))
    if not result["exact"]:
        say(f"not the run an undisturbed one would have been: {len(result['skipped'])} turns were skipped")
    say(f"results in {service.folder}")


@plan_options
def join(
    changes: dict[str, Any],
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="This client's own copy of the plan, as for train.")],
    server: Server,
    name: As,
    certs: Certs = None,
    insecure: Insecure = False,
    give_up: Annotated[float, typer.Option(help="Seconds without a server before it ends.")] = 3600.0,
    silence: Annotated[
        float, typer.Option(help="Seconds without a word of a server that is there, before it ends.")
    ] = 86400.0,
    max_message: Message = 256,
    metrics: Metrics = None,
    guard: OneGuard = None,
    private_seed: PrivateSeed = None,
    device: Device = "cpu",
    threads: Threads = None,
    data_dir: DataDir = None,
    out: State = None,
    log: Logs = "text",
    as_json: AsJson = False,
) -> None:
    """Take part in a run as one of its clients, with this client's own data. The server's body stays with the server.

    [bold]cutlayer join plan.py:plan HOST:7443 --as ward-a --certs certs/ward-a --data 'Npz(path="a.npz")'[/bold]
    Without --data it takes its share of the plan's data set: a rehearsal. After a crash the same command goes on.
    """
    prepare(threads, device)
    from ..core.spec import spec
    from ..engines.folder import known_scale, scale_in_words
    from ..engines.grpc import certs as room
    from ..engines.grpc import deploy
    from ..engines.grpc.channel import Address
    from ..engines.grpc.client import DeployedClient
    from ..engines.grpc.health import refuse_no_place, start_health
    from ..engines.grpc.logs import start_logs
    from ..engines.grpc.native_lines import native_lines

    if not give_up >= 0 or not silence > 0 or max_message < 1:
        raise ValueError("--give-up is 0 or more, --silence above 0, --max-message at least 1")
    own = changes.pop("data", None)
    if private_seed is not None:
        changes["private_seed"] = private_seed
    chosen = _plan(plan, changes, guard)
    start_logs(log)
    refuse_no_place(metrics)
    folder = out or Path("runs") / f"join-{name}-{chosen.fingerprint()}"
    stop = OrderlyStop()
    with native_lines(), stop, Bar(estimates=True) as bar, halt_told(as_json, folder):
        identity = identity_of(certs, insecure)
        known = room.read_identity(identity, "client") if identity else None
        address = Address(server, known, give_up=give_up, silence=silence, message=max_message << 20)

        def opened(site: DeployedClient) -> None:
            if metrics is not None:
                start_health(metrics, site.status)

        site = deploy.join(
            chosen, name, folder, address=address, data=spec(own, "data") if own else None, data_dir=data_dir,
            device=device, on_open=opened,
        )  # fmt: skip
        stop.ask = site.stop
        for line in scale_in_words(known_scale(folder)):
            say(line)
        total = chosen.epochs * site.batches
        result = site.run(
            lambda epoch, steps, terms: bar.show(f"epoch {epoch + 1} " + figures(terms), steps / max(1, total))
        )
    if as_json:
        print(json.dumps({**result, "out": str(folder)}))
    else:
        say(deploy.summary(result))
        say(f"bytes a sample: {result['bytes_up']:.0f} up, {result['bytes_down']:.0f} down (all messages of a step)")
        if not result["exact"]:
            say("not the run an undisturbed one would have been: turns were left out, or a state was lost")
        say(f"results in {folder}")
    end_if_not_kept(result.get("detectors", ()))


def status(
    server: Server,
    certs: Certs = None,
    insecure: Insecure = False,
    as_json: AsJson = False,
) -> None:
    """How a run stands: rounds, clients, bytes, accuracy, and who is late."""
    from ..engines.grpc import certs as room
    from ..engines.grpc.channel import Address
    from ..engines.grpc.channel import status as ask
    from ..engines.grpc.native_lines import quiet_lines

    identity = identity_of(certs, insecure)
    with quiet_lines():
        facts = ask(Address(server, room.read_identity(identity) if identity else None))
    if as_json:
        print(json.dumps(facts))
        return
    for line in status_lines(facts):
        print(line)


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder of `cutlayer train`, or of `cutlayer join`.")],
    server: Annotated[str | None, typer.Option(help="HOST:PORT of the server that has the body.")] = None,
    name: Annotated[str, typer.Option("--as", help="With --server: this client's name.")] = "",
    certs: Certs = None,
    insecure: Insecure = False,
    plan: Annotated[str | None, typer.Option(help="The plan, where a recipe's own network is in it.")] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Predict its test samples, or all rows of data without labels. Default: what it learnt from."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="Only so many samples; 0: all.")] = 0,
    batch_size: Annotated[int | None, typer.Option(help="Samples in one message. Default: 64.")] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="One sample after the other, each when the answer to the last has come.")
    ] = False,
    code: Code = None,
    link: LinkOption = None,
    device: Device = "cpu",
    threads: Threads = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(help="A CSV file for the predictions; row (or file) says which row of one's own data."),
    ] = None,
    masks: Annotated[
        Path | None,
        typer.Option(help="Segmentation: a new folder for the label maps as PNG, or an .npz file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Split inference: the head here, the body on a server (or in this process), guards as in training.

    [bold]cutlayer predict runs/a --server HOST:7443 --as a --certs certs/a --out predictions.csv[/bold]
    [bold]cutlayer predict runs/a --stream[/bold] sends one sample at a time and says how long each takes.
    """
    prepare(threads, device)
    from ..core.outside import load_named
    from ..core.spec import spec
    from ..engines.grpc.native_lines import quiet_lines
    from ..engines.predict import Inputs, Over, predict
    from ..training import checkpoint
    from ..training.facts.link import Link
    from ..training.plan.plan_text import read_plan
    from .predict import refuse_masks, write_masks

    if limit < 0 or (batch_size is not None and batch_size < 1):
        raise ValueError("--limit is 0 or more, --batch-size at least 1")
    if stream and batch_size is not None:
        raise ValueError("--stream sends one sample at a time: leave out --batch-size")
    if link is not None and server is not None:
        raise ValueError("--link imagines a link, and with --server there is a real one: leave one of them out")
    if out is not None and out.is_dir():
        raise ValueError(f"{out} is a folder, and --out is a CSV file: name one, such as {out / 'predictions.csv'}")
    if out is not None and not out.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {out.parent} for {out.name}: make it, or name another --out")
    if masks is not None:
        refuse_masks(masks)
    imagined = Link.parse(link) if link is not None else None
    load_named(code or [])
    if server is not None and not name:
        raise ValueError("--server needs --as NAME: who this client is")
    source = spec(data, "data") if data else None
    inputs = Inputs(source, data_dir, limit, batch_size or 64, stream, masks is not None)
    with quiet_lines(), Bar() as bar:
        found = predict(
            run,
            inputs,
            Over(server, name, identity_of(certs, insecure)) if server else None,
            given=read_plan(plan) if plan else None,
            link=imagined,
            device=device,
            on_batch=lambda done, all: bar.show(f"{done} of {all}", done / all),
        )
    if out is not None:
        checkpoint.write_text(out, found.as_csv())
    if masks is not None:
        write_masks(masks, found)
    told = found.summary()
    if as_json:
        print(json.dumps(told))
        return
    right = f"accuracy {told['accuracy']:.4f}" if found.known else "no labels to compare with"
    if found.maps and found.known:
        right = f"mIoU {told['mean_iou']:.4f}, pixel {right}"
    if "perplexity" in told:
        right = f"perplexity {told['perplexity']:.2f}, next-token {right}"
    say(f"{told['samples']} samples, {right}, {pace(told)}")
    each = "sample" if stream else "batch"
    if found.left:
        say(
            f"{found.left} samples of {data} would train, and were not predicted: a test set is predicted whole, and "
            "so are data without labels"
        )
    say(f"{_latency(told)} a {each}")
    say(f"bytes a sample: {told['bytes_up']:.0f} up, {told['bytes_down']:.0f} down")
    if imagined is not None:
        say(f"over {imagined}: {_latency(told['link'])} a {each}, {pace(told['link'])}")
    for what, where in (("predictions", out), ("label maps", masks)):
        if where is not None:
            say(f"{what} in {where}")


def pace(told: dict[str, Any]) -> str:
    """Samples a second; over a slow link that is less than one."""
    each = told["samples_per_second"]
    return f"{each:.0f} a second" if each >= 10 else f"{each:.2g} a second"


def _latency(told: dict[str, Any]) -> str:
    times = told["latency_ms"]
    return f"{times['median']:.1f} ms (95 %: {times['p95']:.1f} ms, 99 %: {times['p99']:.1f} ms)"


def status_lines(facts: dict[str, Any]) -> list[str]:
    """What `status` prints."""
    lines = [f"{facts['state']}, plan {facts['plan']}"]
    if facts["missing"]:
        lines.append(f"never came: {', '.join(facts['missing'])}")
    if "epoch" in facts:
        accuracy = "" if facts["accuracy"] is None else f", validation accuracy {facts['accuracy']:.4f}"
        lines.append(
            f"epoch {facts['epoch']} of {facts['epochs']}, step {facts['step']} of {facts['steps']}{accuracy}"
        )
        moved = sum(row["bytes"] for row in facts["ledger"]["rows"])
        lines.append(f"{moved / 2**20:.1f} MiB crossed, {facts['rewinds']} rewinds, {facts['skipped']} turns skipped")
        for one in facts["clients"]:
            here = "done" if facts["state"] == "finished" else "connected" if one["connected"] else "AWAY"
            late = " <- the run waits for it" if one.get("waited_for") and not one["connected"] else ""
            silent = "" if one["silent"] is None else f", last heard {one['silent']:.0f} s ago"
            lines.append(f"  {one['name']:20} {here:10} {one['steps']} steps{silent}{late}")
    if facts["refused"]:
        lines.append("refused: " + ", ".join(f"{count} {name}" for name, count in sorted(facts["refused"].items())))
    return lines


def _plan(text: str | None, changes: dict[str, Any], guard: str | None) -> "Plan":
    from ..training.plan.plan_text import change, read_plan

    return change(read_plan(text), changes | ({"guard": guard} if guard is not None else {}))


def identity_of(certs: Path | None, insecure: bool) -> Path | None:
    if (certs is None) != insecure:
        raise ValueError("give --certs FOLDER (make it with `cutlayer certs`), or --insecure on loopback")
    return certs


def register(app: typer.Typer) -> None:
    for command in (certs, serve, join, predict, status):
        app.command()(command)
