"""The command `generate`: text by split inference."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ..training.device import prepare
from .deploy import Certs, Insecure, identity_of
from .options import AsJson, DataDir, Device, Threads
from .terminal import say


def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder of `cutlayer train`, or of `cutlayer join`.")],
    prompt: Annotated[str, typer.Argument(help="The words to go on from.")],
    tokens: Annotated[int, typer.Option(help="How many tokens to write, at most.")] = 20,
    temperature: Annotated[
        float, typer.Option(help="0: the likeliest token; 1: drawn by the network's probabilities.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    server: Annotated[str | None, typer.Option(help="HOST:PORT of the server that has the body.")] = None,
    name: Annotated[str, typer.Option("--as", help="With --server: this client's name.")] = "",
    certs: Certs = None,
    insecure: Insecure = False,
    device: Device = "cpu",
    threads: Threads = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write text with a network that has learnt next tokens: words stay here, the body is on a server or here.

    [bold]cutlayer generate runs/train-a "this film" --tokens 20 --temperature 0.8[/bold]
    The client computes each token once and sends what is new; the server keeps the activations of the text so far.
    """
    prepare(threads, device)
    from ..engines.generate import Writing, generate
    from ..engines.grpc.native_lines import quiet_lines
    from ..engines.predict import Over

    if server is not None and not name:
        raise ValueError("--server needs --as NAME: who this client is")
    over = Over(server, name, identity_of(certs, insecure)) if server else None
    with quiet_lines():
        found = generate(run, prompt, Writing(tokens, temperature, seed), over, data_dir=data_dir, device=device)
    told = found.summary()
    if as_json:
        print(json.dumps(told))
        return
    print(found.text)
    say(
        f"{told['tokens']} tokens, {told['tokens_per_second']:.1f} a second; bytes a token: {told['bytes_up']:.0f} "
        f"up, {told['bytes_down']:.0f} down"
    )
    if found.ended:
        say("the network ended the text")
    if found.full:
        say("the text is as long as the network reads: no more can be written")


def register(app: typer.Typer) -> None:
    app.command()(generate)
