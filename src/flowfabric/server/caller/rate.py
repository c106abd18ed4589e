"""How many requests a caller may make: a token bucket for each identity, or for each address while
the caller is unknown.

A bucket holds as many requests as the rate allows in its period and is refilled evenly, so a burst
is served as long as the average is kept; a rate that is `smooth` has no bursts. Pure: the caller
gives the time, in seconds of a clock that never goes back.
"""

from collections import OrderedDict
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from msgspec import Struct

from flowfabric.core.access.token import ANONYMOUS, Identity
from flowfabric.core.limit.quota import Rate

MAX_CALLERS = 10_000
"""So many buckets are kept; the one that was used longest ago gives way. It is the fullest of all,
so little is lost with it."""
IPV6_PREFIX = 64
"""A subscriber has a whole network of addresses, so they share a bucket."""

ROUNDING = 1e-6
"""A caller that comes back exactly when it was asked to is not refused for the last digit."""


class Bucket(Struct):
    """What is left, and when that was counted."""

    left: float
    at: float


class RateLimiter:
    """One for all callers of a process."""

    def __init__(self, rate: Rate, most: int = MAX_CALLERS) -> None:
        self._size = float(rate.at_once if rate.smooth else rate.count)
        self._per_second = rate.count * 1000 / rate.window
        self._most = most
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def __len__(self) -> int:
        """How many callers are remembered."""
        return len(self._buckets)

    def take(self, caller: str, now: float) -> float:
        """0.0 if the request may go on, otherwise the seconds after which it may (`Retry-After`).
        A refused request costs nothing."""
        bucket = self._bucket(caller, now)
        if bucket.left >= 1 - ROUNDING:
            bucket.left = max(0.0, bucket.left - 1)
            return 0.0
        return (1 - bucket.left) / self._per_second

    def _bucket(self, caller: str, now: float) -> Bucket:
        bucket = self._buckets.get(caller)
        if bucket is None:
            bucket = self._buckets[caller] = Bucket(self._size, now)
            if len(self._buckets) > self._most:
                self._buckets.popitem(last=False)
            return bucket
        self._buckets.move_to_end(caller)
        # A clock that went back all the same refills nothing, and is followed.
        elapsed = max(0.0, now - bucket.at)
        bucket.left = min(self._size, bucket.left + elapsed * self._per_second)
        bucket.at = now
        return bucket


def caller_key(identity: Identity | None, address: str | None) -> str:
    """What a caller is counted by: its token, or its address if it has presented none."""
    if identity is not None and identity != ANONYMOUS:
        return f"token {identity.name}"
    return f"address {_network(address or '')}"


def _network(address: str) -> str:
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:  # such as the path of a socket
        return address[:256]
    match found:
        case IPv6Address(ipv4_mapped=IPv4Address() as plain):
            return str(plain)
        case IPv6Address():
            return str(IPv6Network((found, IPV6_PREFIX), strict=False))
        case _:
            return str(found)
