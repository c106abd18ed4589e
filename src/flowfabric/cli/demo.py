"""`flowfabric demo`"""

import typer

from flowfabric.cli.command import AsJson, Debug
from flowfabric.demo.play import main


def demo(as_json: AsJson = False, debug: Debug = False) -> None:
    """Watch runs survive a crash: a short tour on an embedded SQLite store."""
    raise typer.Exit(main(as_json=as_json))
