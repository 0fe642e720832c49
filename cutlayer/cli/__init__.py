"""The command line: one file a group of commands; heavy imports stay inside the commands."""


def main() -> None:
    """The command `cutlayer`. Imported late: what else is here works without typer."""
    from .app import main as run

    run()
