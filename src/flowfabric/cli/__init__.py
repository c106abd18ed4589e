"""The command line: runs workers, submits runs, inspects and controls them. It decides
nothing; every command is a call of `Fabric` or of the engine."""

import sys


def main() -> None:
    """What the `flowfabric` script runs. Without the extra it says how to get it."""
    try:
        from flowfabric.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("rich", "typer"):
            raise
        sys.exit("flowfabric: the command line needs an extra: pip install 'flowfabric[cli]'")
    app(prog_name="flowfabric")
