"""The commands, put together. A group of commands is one file and one `add_typer` line here."""

import typer

from flowfabric.cli import (
    budgets,
    flows,
    grants,
    keys,
    lanes,
    leases,
    operator,
    quotas,
    runs,
    schedules,
    steps,
    streams,
    tokens,
    waitpoints,
    webhooks,
    workers,
)
from flowfabric.cli.approvals import approve, reject, signal
from flowfabric.cli.audit import audit
from flowfabric.cli.backup import backup_store
from flowfabric.cli.command import command, help_of
from flowfabric.cli.demo import demo
from flowfabric.cli.doctor import doctor
from flowfabric.cli.errors import EPILOG, Root
from flowfabric.cli.promote import promote_store
from flowfabric.cli.prove import prove_store
from flowfabric.cli.server import server
from flowfabric.cli.store import ShowVersion, migrate, version
from flowfabric.cli.submit import submit
from flowfabric.cli.top import top
from flowfabric.cli.why import why
from flowfabric.cli.worker import worker
from flowfabric.cli.working import new_event_loop

app = typer.Typer(
    cls=Root,
    help="Durable execution for Python: run workers, submit runs, inspect and control them.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(show_version: ShowVersion = False) -> None:
    """Durable execution for Python: run workers, submit runs, inspect and control them."""


app.command(help=help_of(demo))(demo)
command(app, loop_factory=new_event_loop)(worker)
app.command(help=help_of(server))(server)
command(app)(submit)
app.add_typer(runs.app, name="run")
runs.app.add_typer(steps.app, name="step")
command(runs.app)(operator.priority)
command(runs.app)(operator.revoke)
command(runs.app)(streams.stream)
command(runs.app)(streams.summary)
command(app)(why)
app.add_typer(flows.app, name="flow")
command(app)(signal)
command(app)(approve)
command(app)(reject)
command(app)(runs.resume)
app.add_typer(waitpoints.app, name="waitpoints")
app.add_typer(keys.app, name="keys")
app.add_typer(tokens.app, name="tokens")
command(app)(audit)
app.add_typer(lanes.app, name="lanes")
app.add_typer(quotas.app, name="quotas")
app.add_typer(budgets.app, name="budgets")
app.add_typer(schedules.app, name="schedules")
app.add_typer(workers.app, name="workers")
app.add_typer(webhooks.app, name="webhooks")
app.add_typer(grants.app, name="grants")
app.add_typer(leases.app, name="lease")
app.command()(migrate)
command(app, "promote")(promote_store)
command(app)(doctor)
command(app, "prove")(prove_store)
command(app)(top)
command(app, "backup")(backup_store)
app.command()(version)
