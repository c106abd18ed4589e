from pathlib import Path

import pytest

from bench.record import Record, RecordError, load, machine_facts, row, save


def test_a_row_has_the_median_and_the_spread_of_its_samples() -> None:
    found = row("drain", "flowfabric-sqlite", "/s", [30.0, 10.0, 20.0], goal="fast")
    assert (found.median, found.low, found.high, found.goal) == (20.0, 10.0, 30.0, "fast")


def test_a_row_needs_samples() -> None:
    with pytest.raises(RecordError, match="drain of raw-sqlite has no samples"):
        row("drain", "raw-sqlite", "/s", [])


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    rows = [row("drain", "raw-sqlite", "/s", [1.0, 2.0], ratio=0.5, ratio_of="raw limit")]
    record = Record(machine=machine_facts(postgres="18"), rows=rows)
    save(record, tmp_path / "new" / "record.json")
    assert load(tmp_path / "new" / "record.json") == record


def test_the_machine_is_described_and_not_named() -> None:
    facts = machine_facts(postgres="18")
    assert {"cores", "memory", "python", "sqlite", "postgres"} <= set(facts)
    assert "node" not in facts


@pytest.mark.parametrize("text", ["", "[]", '{"rows": [{"scenario": 1}]}', "\xff"])
def test_a_malformed_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(RecordError, match=r"record\.json is not a record"):
        load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="there is no record at"):
        load(tmp_path / "absent.json")
