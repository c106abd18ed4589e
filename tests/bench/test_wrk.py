"""What the load tool says is read strictly: a rate of refused requests means nothing."""

import pytest

from bench import cost, wrk
from bench.wrk import WrkError

FINE = 'result {"requests":300,"seconds":2.0,"refused":0,"broken":0,"p50":1.5,"p99":9.0}'


def test_the_result_is_read_from_among_other_lines() -> None:
    found = wrk.read(f"Running 1s test\n{FINE}\nRequests/sec: 150\n")
    assert (found.rate, found.p50, found.p99) == (150.0, 1.5, 9.0)


@pytest.mark.parametrize(
    "output",
    [
        "",
        "unable to connect to 127.0.0.1:1 Connection refused",
        FINE.replace('"refused":0', '"refused":1'),
        FINE.replace('"broken":0', '"broken":2'),
        FINE.replace('"requests":300', '"requests":0'),
    ],
)
def test_what_is_not_a_success_is_no_figure(output: str) -> None:
    with pytest.raises(WrkError):
        wrk.read(output)


async def test_a_missing_tool_is_named_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wrk, "has_wrk", lambda: False)
    with pytest.raises(WrkError, match="apt-get install wrk"):
        await wrk.load("http://127.0.0.1:1", "GET", "/", seconds=1)


def test_the_parts_of_a_cost_are_the_whole() -> None:
    spent = cost.Cost(client=3.0, server=1.0)
    parts = spent.parts_us(1_000, server=2.0)
    assert parts == {"server": 2_000.0, "client": 1_000.0, "database": 1_000.0}
    assert sum(parts.values()) == spent.cpu_us(1_000)
