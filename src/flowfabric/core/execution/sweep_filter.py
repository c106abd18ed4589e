"""Whose runs a sweep looks after, so that several processes can each serve one tenant."""

from collections.abc import Mapping

from msgspec import Struct


class SweepFilter(Struct, frozen=True, kw_only=True):
    """All that is set must match. A run or flow without the tag never matches it."""

    namespace: str | None = None
    tag: tuple[str, str] | None = None

    @property
    def is_open(self) -> bool:
        """Whether everything matches, so that nothing has to be read to know it."""
        return self.namespace is None and self.tag is None

    @property
    def values(self) -> tuple[str | None, str | None, str | None]:
        """The namespace, the key and the value of the tag."""
        key, value = self.tag or (None, None)
        return self.namespace, key, value

    def has(self, namespace: str, tags: Mapping[str, str]) -> bool:
        key, value = self.tag or ("", None)
        return self.namespace in (None, namespace) and (self.tag is None or tags.get(key) == value)


EVERY_RUN = SweepFilter()
