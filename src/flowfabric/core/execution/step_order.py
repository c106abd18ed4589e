"""The order of recorded steps, and how people name one of them.

Steps come in the order in which the code calls them. What runs side by side counts as if it ran
one after the other, in the order in which it was given to `gather`:

    await ctx.step(load)                      load            position 0
    await ctx.gather(pack(), bill())          0/box           branch 0, opened after 1 call
                                              0/label
                                              1/invoice       branch 1, opened after 1 call
    await ctx.step(send)                      send            position 1

Before `0/label` come `load` and `0/box`; before `1/invoice` all of branch 0 as well; before `send`
everything else.
"""

import re
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.base.numbers import check_whole
from flowfabric.core.base.text import MAX_STEP_NAME, check_text
from flowfabric.core.execution.step import Recorded, Step

LOOSE = "~"
"""Begins the name of a branch that the handler made itself and that may be left unfinished."""
CLEANUP = f"{LOOSE}{LOOSE}"
"""The branch of the calls that a handler makes while it cleans up."""
UNDO = f"{CLEANUP}.{CLEANUP}"
"""The branch that compensations are recorded in."""
NO_CALL = f"{LOOSE}/"
"""Begins the name of what is recorded beside the calls of a handler."""
PATCHED = f"{LOOSE}patched/"
"""Ends the branch of a patch, before its name."""
SKIPPED = f"{NO_CALL}skipped/"
"""Begins the name of a call for which an operator has supplied the result."""

REPLACED = "replaced"
"""Names what is recorded beside a call that another run or generation has recorded, if something
else takes its place: `~replaced/0`, later ones with higher numbers."""

_BRANCH = "~.0123456789"
_BRANCH_NAME = re.compile(r"(~+|~?[0-9]+(\.~?[0-9]+)*)/")
_SHOWN = 20
_AFTER_ALL = 2**62
"""Above the position of every call."""

Order = tuple[tuple[int, int, int], ...]


class StepRow(Struct, frozen=True):
    """A recorded step and its content. `order` sorts steps as the code calls them."""

    step: Step
    record: Recorded
    order: Order

    @property
    def branch(self) -> str:
        """The branch of the call that it belongs to."""
        return call_branch(self.record.branch)

    @property
    def name(self) -> str:
        """The name of the call, also of one that an operator has skipped."""
        return self.step.name.removeprefix(SKIPPED)

    @property
    def is_call(self) -> bool:
        return self.record.skipped or not self.step.name.startswith(NO_CALL)

    @property
    def is_cleanup(self) -> bool:
        """Whether it was recorded while the run cleaned up, or undid what it had done."""
        return self.record.branch.startswith(CLEANUP)

    @property
    def is_patch(self) -> bool:
        return PATCHED in self.record.branch

    @property
    def reference(self) -> str:
        """How people name the call."""
        return reference(self.name, self.step.occurrence)


def reference(name: str, occurrence: int) -> str:
    """`charge` for the first call of a name, `charge#2` for the second."""
    return name if not occurrence else f"{name}#{occurrence + 1}"


def call_branch(path: str) -> str:
    """The branch of the call that a step belongs to, also of one beside the order of calls."""
    if path.startswith(UNDO):
        return UNDO
    if path.startswith(CLEANUP):
        return CLEANUP + call_branch(path.removeprefix(CLEANUP))
    before, slash, _ = path.partition("/")
    if slash:
        return before.rpartition(LOOSE)[0]
    return path.removesuffix(LOOSE)


def plain_name(name: str) -> str:
    """The name of a step without the branch it was made in."""
    branch, slash, rest = name.partition("/")
    return rest if slash and branch.strip(_BRANCH) == "" else name


def is_named(name: str, wanted: str) -> bool:
    """Whether a recorded name is the wanted one, with or without the branch it was made in and the
    path of its function: `0/Shop.charge` is also named `0/charge`, `Shop.charge` and `charge`."""
    plain, short = plain_name(name), plain_name(wanted)
    branch = wanted.removesuffix(short)
    if branch and branch != name.removesuffix(plain):
        return False
    return plain == short or plain.endswith(f".{short}")


def in_order(steps: Iterable[Step]) -> list[StepRow]:
    """Recorded steps in the order in which the code calls them."""
    read = [(step, msgspec.json.decode(step.doc, type=Recorded)) for step in steps]
    guessed = _guess_openings(read)
    rows = [StepRow(step, record, _order(step, record, guessed)) for step, record in read]
    return sorted(rows, key=lambda row: (row.order, row.step.name))


def check_step_name(name: object) -> str:
    """The name of a step. It does not look like that of a branch."""
    text = check_text(name, "step name", limit=200)
    if not text or _BRANCH_NAME.match(text):
        raise Invalid(f"{text!r} cannot name a step")
    return text


def check_reference(wanted: object) -> str | int:
    """The name of a step as an operator gives it, or the position of a call of the handler."""
    if isinstance(wanted, int):
        return check_whole(wanted, "step")
    text = check_text(wanted, "step", limit=MAX_STEP_NAME + 12)
    if not text:
        raise Invalid("a step has a name")
    return text


def find_call(
    rows: Sequence[StepRow], wanted: str | int, raised: Iterable[str] = ()
) -> StepRow | None:
    """The call that a reference names. None for one that has raised and was not recorded: it comes
    after everything that was. Raises NotFound if there is neither."""
    calls = [row for row in rows if row.is_call and not row.is_cleanup]
    found = _matching(calls, wanted)
    if len({row.branch for row in found}) > 1:
        choices = ", ".join(row.reference for row in found[:_SHOWN])
        raise Invalid(f"several branches have a step {wanted!r}; give one of {choices}")
    if found:
        return found[0]
    if isinstance(wanted, str):
        name, _ = split_reference(wanted)
        if any(is_named(each, name) or is_named(each, wanted) for each in raised):
            return None
    recorded = ", ".join(row.reference for row in calls[:_SHOWN]) or "none"
    more = ", …" if len(calls) > _SHOWN else ""
    raise NotFound("step", f"{wanted!r} among the recorded ones ({recorded}{more})")


def calls_named(rows: Sequence[StepRow], wanted: str) -> list[StepRow]:
    """All recorded calls of a name; of `name#2` only that one."""
    taking = [row for row in rows if row.is_call and not row.is_cleanup]
    calls = [row for row in taking if not row.record.skipped]
    exact = [row for row in calls if wanted in (row.name, plain_name(row.name))]
    return exact or [row for row in calls if is_named(row.name, wanted)] or _matching(calls, wanted)


def split_reference(wanted: str) -> tuple[str, int]:
    """The name and the occurrence in `charge#2`."""
    name, mark, number = wanted.rpartition("#")
    if mark and name and number.isdecimal() and int(number) > 0:
        return name, int(number) - 1
    return wanted, 0


def _matching(calls: Sequence[StepRow], wanted: str | int) -> list[StepRow]:
    """The calls that a reference may mean: by its whole text, then as a name and a number, with
    and without the branch and the path of the function, and last as the position of a call of the
    handler itself."""
    if isinstance(wanted, int):
        return [row for row in calls if not row.branch and row.step.position == wanted]
    name, occurrence = split_reference(wanted)
    tries = (
        [row for row in calls if row.name == wanted],
        [row for row in calls if row.name == name and row.step.occurrence == occurrence],
        [row for row in calls if plain_name(row.name) == wanted],
        [row for row in calls if (plain_name(row.name), row.step.occurrence) == (name, occurrence)],
        [row for row in calls if is_named(row.name, wanted)],
        [row for row in calls if is_named(row.name, name) and row.step.occurrence == occurrence],
    )
    found = next((rows for rows in tries if rows), [])
    if not found and wanted.isdecimal():
        return _matching(calls, int(wanted))
    return found


def _order(step: Step, record: Recorded, guessed: dict[str, int]) -> Order:
    """Two kinds of entries, compared from the outermost branch on: a branch that was opened after
    `n` calls comes before the call at position `n`, which comes before a branch opened later."""
    branch = call_branch(record.branch)
    if branch == UNDO:  # the last that was registered is undone first
        return ((_AFTER_ALL, 1, 0), (-step.position, 1, 0))
    if branch.startswith(CLEANUP):
        return ((_AFTER_ALL, 0, 0), *_order_in(branch.removeprefix(CLEANUP), step, record, guessed))
    return _order_in(branch, step, record, guessed)


def _order_in(path: str, step: Step, record: Recorded, guessed: dict[str, int]) -> Order:
    path = path.removeprefix(".")
    numbers = _numbers(path)
    opened = record.opened
    if len(opened) != len(numbers):
        around = _around(path)
        opened = tuple(guessed.get(each, 0) for each in around)
    last = (step.position, 0, -1) if PATCHED in record.branch else (step.position, 1, 0)
    return (*((at, 0, number) for at, number in zip(opened, numbers, strict=True)), last)


def _numbers(path: str) -> list[int]:
    return [int(part.removeprefix(LOOSE)) for part in path.split(".")] if path else []


def _around(path: str) -> list[str]:
    """A branch and those around it, the outermost first: 0, 0.1, 0.1.3."""
    parts = path.split(".") if path else []
    return [".".join(parts[: number + 1]) for number in range(len(parts))]


def _guess_openings(read: Sequence[tuple[Step, Recorded]]) -> dict[str, int]:
    """For branches that an earlier release recorded, which did not record when they were opened:
    after the calls that had ended when the first step of the branch began."""
    began: dict[str, int] = {}
    for _, record in read:
        path = call_branch(record.branch)
        if path.startswith(CLEANUP) or len(record.opened) == len(_numbers(path)):
            continue
        at = record.started_at or record.ended_at or 0
        for branch in _around(path):
            began[branch] = min(at, began.get(branch, at))
    return {branch: _calls_before(read, branch, at) for branch, at in began.items()}


def _calls_before(read: Sequence[tuple[Step, Recorded]], branch: str, at: int) -> int:
    parent = branch.rpartition(".")[0]
    positions = (
        step.position + 1
        for step, record in read
        if record.branch == parent and record.ended_at is not None and record.ended_at <= at
    )
    return max(positions, default=0)
