"""What clients of the HTTP routes rely on, recorded: requests with their replies, partitions,
tokens, the spelling of states (server-sdk.md 4). A change here breaks clients."""

import hashlib
import hmac
import json
from typing import Any
from uuid import UUID

import httpx
import pytest

from flowfabric.core.base.ids import ExecutionId, crc16
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Outcome, Source
from flowfabric.core.execution.status import (
    AttemptState,
    Blocking,
    Eligibility,
    Ownership,
    Phase,
    PublicState,
    outcome_word,
)
from flowfabric.core.flow.join import Rest
from flowfabric.core.wait.keyring import Key, Keyring
from flowfabric.core.wait.model import Waitpoint
from flowfabric.core.wait.token import mint
from flowfabric.server.app import HANDLERS
from tests.kit.corpus import CORPUS, Replay, read_steps
from tests.kit.lab import Lab

NAMES = sorted(path.stem for path in CORPUS.glob("*.json") if path.stem != "vectors")
VECTORS: dict[str, Any] = json.loads((CORPUS / "vectors.json").read_text())


@pytest.mark.parametrize("name", NAMES)
async def test_the_recorded_replies_stand(name: str, http: httpx.AsyncClient, lab: Lab) -> None:
    await Replay(http, lab).run(read_steps(name))


def test_every_compatible_route_is_recorded() -> None:
    recorded = {
        (step["request"]["method"], _shape(step["request"]["path"]))
        for name in NAMES
        for step in read_steps(name)
        if "request" in step
    }
    compatible = {"executions", "waitpoints", "workers", "flows", "budgets", "quotas", "keys"}
    compatible |= {"streams"}
    for handler in HANDLERS:
        module = handler.fn.__module__.rpartition(".")[2]
        if module in compatible:
            paths = {_shape(path) for path in handler.paths}
            assert {(method, path) for method in handler.http_methods for path in paths} <= recorded


def _shape(path: str) -> tuple[str, ...]:
    """A path with every id replaced by a star: segments that are no plain word."""
    parts = path.partition("?")[0].strip("/").split("/")
    return tuple(part if part.replace("-", "").isalpha() or part == "v1" else "*" for part in parts)


@pytest.mark.parametrize("vector", VECTORS["crc16_xmodem"])
def test_crc16(vector: dict[str, Any]) -> None:
    assert crc16(bytes.fromhex(vector["hex"])) == vector["crc"]


@pytest.mark.parametrize("vector", VECTORS["solo_partitions"])
def test_partitions_of_lanes(vector: dict[str, str]) -> None:
    assert ExecutionId.solo(vector["lane"], UUID(vector["uuid"])) == vector["execution_id"]


@pytest.mark.parametrize("vector", VECTORS["member_partitions"])
def test_partitions_of_flows(vector: dict[str, str]) -> None:
    found = ExecutionId.member(UUID(vector["flow_id"]), UUID(vector["uuid"]))
    assert found == vector["execution_id"]


@pytest.mark.parametrize("vector", VECTORS["waitpoint_tokens"])
def test_tokens(vector: dict[str, Any]) -> None:
    secret, kid = vector["secret_hex"], vector["kid"]
    digest = hmac.new(bytes.fromhex(secret), bytes.fromhex(vector["message_hex"]), hashlib.sha256)
    assert vector["expected_token"] == f"{kid}:{digest.hexdigest()}"
    waitpoint = Waitpoint(
        id=UUID(vector["waitpoint_id"]),
        execution=UUID(vector["execution"]),
        key=vector["waitpoint_key"],
        created_at=Millis(vector["created_at"]),
        kid=kid,
    )
    ring = Keyring(current=kid, keys={kid: Key(secret=secret)})
    assert mint(ring, waitpoint).reveal() == vector["expected_token"]


SPELLED: dict[str, set[str]] = {
    "PublicState": {*PublicState, "resumable"},  # which nothing is: it waits again at once
    "LifecyclePhase": {*Phase},
    "OwnershipState": {*Ownership},
    "EligibilityState": {*Eligibility},
    "BlockingReason": {*Blocking},
    "TerminalOutcome": {"none", *(outcome_word(outcome) for outcome in Outcome)},
    "AttemptState": {*AttemptState},
    "CancelSource": {*Source},
    "OnSatisfied": {*Rest},
}


@pytest.mark.parametrize("name", sorted(SPELLED))
def test_the_spelling_of_states(name: str) -> None:
    assert {str(value) for value in SPELLED[name]} == set(VECTORS["enums"][name])


def test_no_enum_is_forgotten() -> None:
    assert set(VECTORS["enums"]) == set(SPELLED)
