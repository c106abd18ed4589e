"""What a process knows of a quota that limits the concurrency of each key and nothing else.

A look counts the slots of a line once. From then on the process keeps the account itself: what it
admits takes room, what it ends gives room back. Only a release takes slots, and every release and
every look moves the version of the quota: so while the version stands, no other process has taken
that room. Other processes may have given slots back: the account can be too low, never too high.
"""

from collections.abc import Collection, Iterable, Mapping

UNKNOWN = 0
"""The version of a quota of which nothing is known yet."""

MANY = 1 << 62
"""So many runs may wait in a line if their number is not known."""


class KnownQuota:
    """`room` are the free slots of each known line. A line with room is empty: no run waits in it
    that could be claimed. In a line without room runs may wait, no more than `_waiting` says; if
    it says none, the line is empty as well. Slots that are given back where runs may wait are kept
    apart, for the next look: a new run must not take them first. Room is negative if more slots
    are held than the limit is now, because it was lowered: so many endings give nothing back.
    `turn` is the latest turn of the quota."""

    def __init__(self, version: int = UNKNOWN, turn: int = 0) -> None:
        self.version = version
        self.turn = turn
        self.room: dict[int, int] = {}
        self._waiting: dict[int, int] = {}
        self._given_back: dict[int, int] = {}
        self._counted_by: dict[int, int] = {}
        self._asked: set[int] = set()

    def give_back(self, queues: Iterable[int], looks: int) -> None:
        """Runs have ended, one for each of these lines, by a statement that was sent after so many
        looks. If a line was counted after that, the count may have seen the slot as free or as
        taken: then the line is counted again.

        A worked example, a key with one slot: the ending of A is on its way, a look counts the
        line, finds A gone, and admits B. Then the answer of the ending arrives. To count its
        slot again would admit C beside B."""
        known, given_back, counted_by = self.room, self._given_back, self._counted_by
        waiting = self._waiting
        for queue in queues:
            room = known.get(queue)
            if room is None or looks < counted_by[queue]:
                self.forget((queue,))
            elif room or queue not in waiting:
                known[queue] = room + 1
            else:
                given_back[queue] = given_back.get(queue, 0) + 1

    def take(self, lines: Mapping[int, int], waiting: Mapping[int, int]) -> None:
        """So many new runs of each line are sent to be admitted, and so many to wait: a slot that
        is given back meanwhile is for these."""
        for queue, count in lines.items():
            self.room[queue] -= count
        for queue, count in waiting.items():
            self._waiting[queue] = self._waiting.get(queue, 0) + count

    def forget(self, queues: Iterable[int]) -> None:
        """The next look counts these lines; the answer of one that is under way is not kept."""
        for queue in queues:
            self.room.pop(queue, None)
            self._waiting.pop(queue, None)
            self._given_back.pop(queue, None)
            self._counted_by.pop(queue, None)
            self._asked.discard(queue)

    def wait(self, queues: Iterable[int]) -> None:
        """Runs have come to wait in these lines: the next look offers them the room there is. One
        that is under way may have missed them."""
        for queue in queues:
            if queue in self._asked:
                self.forget((queue,))
        self.offer(queues)

    def offer(self, queues: Iterable[int]) -> None:
        """The next look at these lines offers the room that is known of them, as if runs waited."""
        for queue in queues:
            room = self.room.get(queue)
            if room is not None:
                self._waiting[queue] = MANY
            if room is not None and room > 0:
                self._given_back[queue] = self._given_back.get(queue, 0) + room
                self.room[queue] = 0

    def ask(self, queues: Iterable[int]) -> dict[int, int | None]:
        """Those of the lines that a look is needed at, if the version stands, each with the slots
        that it can give away; None if they must be counted."""
        asked: dict[int, int | None] = {}
        known, given_back = self.room, self._given_back
        for queue in queues:
            if queue not in known:
                asked[queue] = None
            elif free := given_back.pop(queue, 0):
                asked[queue] = free
        self._asked = set(asked)
        return asked

    def learn(
        self,
        asked: Mapping[int, int | None],
        room: Mapping[int, int],
        left: Collection[int],
        look: int,
    ) -> None:
        """A look, the one with this number, has left this room in the lines that were asked for;
        in those of `left` more runs wait for it."""
        for queue, known in asked.items():
            if queue not in room:  # it has no row, so its slots cannot be counted
                self.forget((queue,))
            elif queue in self._asked:
                if known is None:
                    self._counted_by[queue] = look
                self._learn_line(queue, room[queue], known)
        self._asked = set()
        self.offer(left)

    def _learn_line(self, queue: int, rest: int, known: int | None) -> None:
        """A look has left so much room in a line, of the slots that were known before. With room
        left, none waits. Otherwise no more than did before, less those that were admitted."""
        left = 0
        if rest <= 0:
            left = MANY if known is None else self._waiting.get(queue, 0) - known + rest
        if left > 0:
            self._waiting[queue] = left
            self.room[queue] = rest
        else:
            self._waiting.pop(queue, None)
            self.room[queue] = rest + self._given_back.pop(queue, 0)
