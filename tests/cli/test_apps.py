"""Finding the application a command names."""

from pathlib import Path

import pytest

from tests.cli.terminal import Cli


@pytest.mark.parametrize(
    ("app", "complaint"),
    [
        ("tests.cli.sample", "'tests.cli.sample' does not name a Fabric; write app.module:fabric"),
        ("nowhere.at:all", "there is no module 'nowhere' in "),
        ("tests.cli.nowhere:fabric", "there is no module 'tests.cli.nowhere' in "),
        (
            "tests.cli.sample:fabrik",
            "tests.cli.sample has no Fabric 'fabrik'; did you mean 'fabric'? (known: fabric)",
        ),
        ("tests.cli.sample:greet", "tests.cli.sample has no Fabric 'greet'"),
        ("tests.cli.sample:a.b", "tests.cli.sample has no Fabric 'a.b' (known: fabric)"),
    ],
)
def test_an_application_that_cannot_be_found_is_wrong_usage(
    cli: Cli, app: str, complaint: str
) -> None:
    assert cli.complaint("worker", app, code=2).startswith(complaint)
    assert cli.complaint("submit", app, "greet", code=2).startswith(complaint)


def test_a_module_that_raises_is_told_in_one_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_app.py").write_text("import sys\nraise ValueError('not today')\n")
    (tmp_path / "needy_app.py").write_text("import a_module_nobody_has\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    broken = cli.complaint("worker", "broken_app:fabric", code=2)
    assert broken == "broken_app cannot be imported: ValueError: not today (--debug shows where)"
    needy = cli.complaint("worker", "needy_app:fabric", code=2)
    assert needy == "needy_app cannot be imported: No module named 'a_module_nobody_has'"


def test_a_fabric_without_a_url_takes_the_one_on_the_command_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from flowfabric import Fabric\nfabric = Fabric()\n@fabric.task()\ndef ping(): ...\n"
    (tmp_path / "bare_app.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FLOWFABRIC_URL", "")
    assert cli.json("submit", "bare_app:fabric", "ping", "--url", cli.url)["duplicate"] is False
