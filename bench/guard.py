"""Compares ratios with recorded ones: a loss of more than a fifth is a failure. Rates depend on the
machine and on the hour, ratios within one run hardly."""

import math
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from bench.record import Record, Row
from bench.scenario import RAW, RAW_LIMIT

TOLERANCE = 0.2


class Verdict(StrEnum):
    OK = "ok"
    GAIN = "gain"
    LOSS = "LOSS"
    MISSING = "NOT MEASURED"
    NEW = "not recorded"
    UNUSABLE = "RECORDED RATIO UNUSABLE"


FAILURES = frozenset({Verdict.LOSS, Verdict.MISSING, Verdict.UNUSABLE})


class Compared(Struct):
    scenario: str
    system: str
    recorded: float | None
    now: float | None
    verdict: Verdict


def compare(recorded: Record, now: Record, tolerance: float = TOLERANCE) -> list[Compared]:
    """Every ratio of either record; rows without a ratio do not count."""
    before, after = _ratios(recorded), _ratios(now)
    found = []
    for key in before | after:
        old, new = before.get(key), after.get(key)
        verdict = Verdict.NEW if old is None else _judge(old, new, tolerance)
        recorded_ratio, ratio = (row.ratio if row else None for row in (old, new))
        found.append(Compared(*key, recorded_ratio, ratio, verdict))
    return found


def failed(compared: list[Compared]) -> bool:
    """Also if there was nothing to compare: then the guard guards nothing."""
    return not compared or any(each.verdict in FAILURES for each in compared)


def table(compared: list[Compared]) -> str:
    lines = [f"{'scenario':<28}{'system':<24}{'recorded':>9}{'now':>9}{'change':>9}  verdict"]
    for each in compared:
        old, new = _share(each.recorded), _share(each.now)
        change = f"{each.now / each.recorded - 1:+.0%}" if each.recorded and each.now else ""
        lines.append(
            f"{each.scenario:<28}{each.system:<24}{old:>9}{new:>9}{change:>9}  {each.verdict}"
        )
    return "\n".join(lines)


def _ratios(record: Record) -> dict[tuple[str, str], Row]:
    """Also of CPU to that of the raw limit loop, which repeats best."""
    limits = [row for row in record.rows if row.scenario == RAW_LIMIT]
    raw = {row.system.removeprefix(RAW): row.cpu_us for row in limits}
    ours = [row for row in record.rows if not row.system.startswith(RAW)]
    found = {(row.scenario, row.system): row for row in ours if row.ratio is not None}
    for row in list(found.values()):
        reference = raw.get(row.system.rpartition("-")[2])
        if reference and row.cpu_us is not None:
            cpu = replace(row, ratio=row.cpu_us / reference, smaller_is_better=True)
            found[f"{row.scenario} CPU", row.system] = cpu
    return found


def _judge(old: Row, new: Row | None, tolerance: float) -> Verdict:
    if not _usable(old.ratio):
        return Verdict.UNUSABLE
    if new is None:
        return Verdict.MISSING
    if not _usable(new.ratio):
        return Verdict.LOSS
    assert old.ratio is not None
    assert new.ratio is not None
    change = new.ratio / old.ratio - 1
    if old.smaller_is_better:
        change = -change
    if change < -tolerance:
        return Verdict.LOSS
    return Verdict.GAIN if change > tolerance else Verdict.OK


def _usable(ratio: float | None) -> bool:
    return ratio is not None and math.isfinite(ratio) and ratio > 0


def _share(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1%}"
