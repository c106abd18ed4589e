"""`flowfabric flow create`, `add`, `edge`, `seal`: a flow grown piece by piece."""

from tests.cli.terminal import Cli, Work

NO_FLOW = "01a1e105-5216-7000-b234-22890e43ab8b"


def finish(work: Work) -> int:
    done = 0
    while count := work():
        done += count
    return done


def add(cli: Cli, flow: str, name: str) -> str:
    return cli("flow", "add", flow, "greet", "--args", f'{{"name": "{name}"}}').stdout.strip()


def test_a_flow_grows_piece_by_piece_and_runs_once_it_is_sealed(cli: Cli, work: Work) -> None:
    """C-T1: created, members, an edge with its input, sealed, run in order."""
    cli("migrate")
    flow = cli("flow", "create", "trip", "--tag", "app.team=blue").stdout.strip()
    first = add(cli, flow, "Ada")
    second = cli("flow", "add", flow, "greet").stdout.strip()
    edge = ("flow", "edge", flow, first, second, "--input", "name")
    assert cli(*edge).stdout.startswith("added: the graph is at revision ")
    assert cli(*edge).stdout.startswith("known: the graph is at revision ")
    assert work() == 0
    assert cli("flow", "seal", flow).stdout == "sealed\n"
    assert cli.json("flow", "seal", flow) == {"id": flow, "sealed": False}
    assert finish(work) == 2
    assert cli.json("run", "result", second)["result"] == "hello hello Ada"
    assert cli.json("flow", "show", flow)["state"] == "completed"


def test_a_member_needs_some_of_its_upstreams(cli: Cli, work: Work) -> None:
    """C-T15"""
    cli("migrate")
    flow = cli("flow", "create", "race").stdout.strip()
    ups, last = [add(cli, flow, name) for name in "ab"], add(cli, flow, "z")
    needs = ("flow", "needs", flow, last, "--quorum", "1", "--let-run")
    assert cli(*needs).stdout == "set\n"
    assert cli(*needs).stdout == "was set before\n"
    for up in ups:
        cli("flow", "edge", flow, up, last, "--on", "on_any_end")
    other = add(cli, flow, "y")
    both = cli.complaint("flow", "needs", flow, other, "--any", "--quorum", "2", code=2)
    assert both == "give --any or --quorum, not both"
    assert cli.json("flow", "needs", flow, other, "--any")["changed"] is True
    cli("flow", "edge", flow, ups[0], other)
    cli("flow", "seal", flow)
    assert finish(work) == 4


def test_a_member_has_the_namespace_of_its_flow(cli: Cli) -> None:
    """Or no worker of that namespace would ever run it."""
    cli("migrate")
    flow = cli("flow", "create", "trip", "--namespace", "acme").stdout.strip()
    run = add(cli, flow, "Ada")
    assert cli.json("run", "show", run)["namespace"] == "acme"
    other = cli("flow", "add", flow, "greet", "--namespace", "beta").stdout.strip()
    assert cli.json("run", "show", other)["namespace"] == "beta"


def test_what_is_said_twice_changes_nothing(cli: Cli) -> None:
    cli("migrate")
    words = ("flow", "create", "trip", "--id", NO_FLOW)
    assert cli.json(*words) == {"id": NO_FLOW, "created": True}
    assert cli.json(*words) == {"id": NO_FLOW, "created": False}
    one = ("flow", "add", NO_FLOW, "greet", "--key", "k")
    added = cli.json(*one)
    assert added["added"] is True
    again = cli.json(*one)
    assert (again["id"], again["added"]) == (added["id"], False)
    assert cli("flow", "join", NO_FLOW, added["id"]).stdout == "is a member already\n"


def test_what_cannot_be_added_says_why(cli: Cli) -> None:
    cli("migrate")
    assert cli.complaint("flow", "add", NO_FLOW, "greet", code=3) == f"no flow {NO_FLOW}"
    assert "is not JSON" in cli.complaint("flow", "add", NO_FLOW, "greet", "--args", "{", code=2)
    flow = cli("flow", "create", "trip").stdout.strip()
    no_object = cli.complaint("flow", "add", flow, "greet", "--args", "[1]", code=2)
    assert no_object == "--args is not a JSON object"
    assert cli.complaint("flow", "join", flow, NO_FLOW, code=3) == f"no run {NO_FLOW}"
    a, b = add(cli, flow, "a"), add(cli, flow, "b")
    cli("flow", "edge", flow, a, b)
    assert "depends on" in cli.complaint("flow", "edge", flow, b, a, code=2)
    stale = ("flow", "edge", flow, a, b, "--on", "on_failure", "--revision", "0")
    assert "is at revision" in cli.complaint(*stale, code=1)
