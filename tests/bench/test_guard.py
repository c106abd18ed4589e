import math

import pytest

from bench.guard import Verdict, compare, failed, table
from bench.record import Record, Row, row


def one(ratio: float | None, name: str = "drain", *, smaller: bool = False) -> Row:
    return row(
        name, "flowfabric-sqlite", "/s", [1.0],
        ratio=ratio, ratio_of="raw limit", smaller_is_better=smaller,
    )  # fmt: skip


def record(*rows: Row) -> Record:
    return Record({}, list(rows))


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        (0.50, 0.50, Verdict.OK),
        (0.50, 0.41, Verdict.OK),
        (0.50, 0.39, Verdict.LOSS),
        (0.50, 0.59, Verdict.OK),
        (0.50, 0.61, Verdict.GAIN),
        (0.50, 0.0, Verdict.LOSS),
        (0.50, math.nan, Verdict.LOSS),
        (math.nan, 0.50, Verdict.UNUSABLE),
        (0.0, 0.50, Verdict.UNUSABLE),
        (-1.0, 0.50, Verdict.UNUSABLE),
        (math.inf, 0.50, Verdict.UNUSABLE),
    ],
)
def test_a_ratio_is_judged_by_the_recorded_one(before: float, now: float, verdict: Verdict) -> None:
    (found,) = compare(record(one(before)), record(one(now)))
    assert found.verdict is verdict
    assert failed([found]) is (verdict not in (Verdict.OK, Verdict.GAIN))


@pytest.mark.parametrize(
    ("now", "verdict"), [(1.3, Verdict.LOSS), (1.1, Verdict.OK), (0.7, Verdict.GAIN)]
)
def test_growing_is_a_loss_where_smaller_is_better(now: float, verdict: Verdict) -> None:
    (found,) = compare(record(one(1.0, smaller=True)), record(one(now, smaller=True)))
    assert found.verdict is verdict


def test_a_recorded_scenario_that_was_not_measured_is_a_failure() -> None:
    found = compare(record(one(0.5), one(0.5, "steps")), record(one(0.5)))
    assert [each.verdict for each in found] == [Verdict.OK, Verdict.MISSING]
    assert failed(found)


def test_a_scenario_that_lost_its_ratio_was_not_measured() -> None:
    (found,) = compare(record(one(0.5)), record(one(None)))
    assert found.verdict is Verdict.MISSING


def test_a_new_scenario_is_no_failure() -> None:
    found = compare(record(one(0.5)), record(one(0.5), one(0.1, "steps")))
    assert [each.verdict for each in found] == [Verdict.OK, Verdict.NEW]
    assert not failed(found)


def test_nothing_to_compare_is_a_failure() -> None:
    assert failed(compare(record(), record(one(None))))


def test_the_table_names_the_loss() -> None:
    text = table(compare(record(one(0.5), one(0.0, "steps")), record(one(0.25))))
    assert "drain" in text
    assert "-50%" in text
    assert "LOSS" in text
    assert "RECORDED RATIO UNUSABLE" in text


def test_cpu_is_compared_with_that_of_the_raw_limit_loop() -> None:
    def measured(raw: float, cpu: float) -> Record:
        limit = row("raw limit", "raw-sqlite", "/s", [1.0], cpu_us=raw)
        drain = one(0.5)
        drain.cpu_us = cpu
        return record(limit, drain)

    found = compare(measured(50.0, 100.0), measured(60.0, 150.0))
    assert [(each.scenario, each.verdict) for each in found] == [
        ("drain", Verdict.OK),
        ("drain CPU", Verdict.LOSS),
    ]
    assert (found[1].recorded, found[1].now) == (2.0, 2.5)
