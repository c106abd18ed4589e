"""`flowfabric webhooks …`"""

import pytest

from tests.cli.terminal import Cli

URL = "https://example.org/hook"
SECRET = "a secret of the receiver"


@pytest.fixture
def made(cli: Cli) -> None:
    cli("migrate")
    cli("webhooks", "create", "orders", URL, "--secret", SECRET, "--namespace", "shop")


def test_a_webhook_is_created_and_its_secret_printed_once(cli: Cli) -> None:
    cli("migrate")
    printed = cli("webhooks", "create", "orders", URL, "--family", "completion").stdout.strip()
    assert len(printed) >= 32
    again = cli("webhooks", "create", "orders", URL, "--family", "completion").stdout.strip()
    assert again == printed, "creating it again changes nothing"
    assert printed not in cli("webhooks", "list").stdout
    assert printed not in cli("webhooks", "list", "--json").stdout


@pytest.mark.usefixtures("made")
def test_webhooks_are_listed(cli: Cli) -> None:
    cli("webhooks", "create", "all", URL, "--tag", "app.tenant=acme", "--family", "lease")
    header, first, second = cli("webhooks", "list").stdout.splitlines()
    assert header.split()[:5] == ["name", "url", "namespace", "families", "tag"]
    assert first.split()[:5] == ["all", URL, "all", "lease", "app.tenant=acme"]
    assert second.split()[:4] == ["orders", URL, "shop", "all"]
    assert [each["name"] for each in cli.lines("webhooks", "list", "--namespace", "shop")] == [
        "orders"
    ]


def test_a_store_without_webhooks_says_so(cli: Cli) -> None:
    cli("migrate")
    assert cli("webhooks", "list").stderr.startswith("no webhooks")


@pytest.mark.usefixtures("made")
def test_a_webhook_is_paused_and_resumed(cli: Cli) -> None:
    paused = cli.json("webhooks", "pause", "orders", "--reason", "maintenance")
    assert (paused["paused"], paused["reason"]) == (True, "maintenance")
    assert "paused" in cli("webhooks", "list").stdout
    assert cli("webhooks", "resume", "orders").stdout.strip() == "resumed orders"
    assert "active" in cli("webhooks", "list").stdout


@pytest.mark.usefixtures("made")
def test_a_test_event_is_submitted(cli: Cli) -> None:
    id = cli("webhooks", "test", "orders").stdout.strip()
    assert cli.json("run", "show", id)["kind"] == "flowfabric.webhook"


@pytest.mark.usefixtures("made")
def test_a_webhook_is_deleted(cli: Cli) -> None:
    assert cli("webhooks", "delete", "orders").stdout.strip() == "deleted orders"
    for command in ("delete", "pause", "resume", "test"):
        assert "orders" in cli("webhooks", command, "orders", code=3).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("ftp://example.org",),
        (URL, "--family", "nonsense"),
        (URL, "--tag", "nonsense"),
        (URL, "--secret", "short"),
    ],
)
def test_a_webhook_that_makes_no_sense_is_refused(cli: Cli, arguments: tuple[str, ...]) -> None:
    cli("migrate")
    cli("webhooks", "create", "orders", *arguments, code=2)
    assert cli.lines("webhooks", "list") == []
