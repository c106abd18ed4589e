"""A run passes the stops of the tour in their order."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from flowfabric import testing
from tests.docs.pages import ROOT, blocks_of, run_block

PAGE = ROOT / "docs" / "design" / "tour.md"
SOURCE = ROOT / "src" / "flowfabric"
MOST_STOPS = 12

_NAMED = re.compile(r"`([\w/]+\.py)::([\w.]+)`")
_STOP = re.compile(r"^\*\*(\d+)\. `([\w/]+\.py)::([\w.]+)`\*\*", re.MULTILINE)

TEXT = PAGE.read_text("utf-8")
NAMED = _NAMED.findall(TEXT)
STOPS = [(file, name) for _, file, name in _STOP.findall(TEXT)]

Place = tuple[str, str]


def test_the_stops_are_numbered_and_few() -> None:
    numbers = [int(number) for number, _, _ in _STOP.findall(TEXT)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 0 < len(numbers) <= MOST_STOPS


async def test_a_run_passes_the_stops_in_this_order() -> None:
    (program,) = blocks_of(PAGE)
    names: dict[str, Any] = {}
    source, declaring = program.source.split("async with fabric.flow", 1)
    await run_block(program._replace(source=source), names)
    async with testing.harness(names["fabric"]) as harness:
        with calls() as called:
            await run_block(program._replace(source=f"async with fabric.flow{declaring}"), names)
            await harness.run_until(waits_for="paid")
            await names["fabric"].signal(names["shipped"].run, "paid", "ada")
            assert await names["flow"].result() == "thanks: shelf 7 to ada"
    missed = [place for place in NAMED if place not in called]
    assert not missed, f"docs/design/tour.md names what the run does not call: {missed}"
    order = sorted(STOPS, key=called.index)
    assert order == STOPS, f"the run passes the stops of docs/design/tour.md in this order: {order}"


@contextmanager
def calls() -> Iterator[list[Place]]:
    """The functions of the package that are called, in the order of their first call."""
    found: dict[Place, None] = {}
    called: list[Place] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(SOURCE)):
            found.setdefault((file[len(str(SOURCE)) + 1 :], frame.f_code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(before)
        called += found
