"""Where the results of upstreams go in the payload of a member."""

import pytest

from flowfabric.core.flow.arguments import escaped, fill_in


def test_results_go_to_their_places() -> None:
    """F-23: each under its own name, beside the own input of the member"""
    name = escaped("a/b~c\nd")
    inputs = {f"{name}/1": b"7", "x\ny": b'"r"', "none": None}
    payload = b'{"a/b~c\\nd": [0, null], "none": 3}'
    filled = fill_in(payload, inputs)
    assert filled == b'{"a/b~c\\nd":[0,7],"none":3,"x":"r","y":"r"}'
    assert fill_in(b"", {"x": b"1"}) == b'{"x":1}'


@pytest.mark.parametrize("payload", [b"hi", b"{}", b'{"s3:": 1}', b"[1]", b'"text"', b"7", b"\xff"])
def test_a_name_without_a_place_replaces_the_payload(payload: bytes) -> None:
    """Coordination.md 1.3 and 1.6: of a data reference only its emptiness matters, so it may be any
    text; without a result the member keeps its own input"""
    for name in ("s3://bucket/key", "9/9", "a/b"):
        assert fill_in(payload, {name: b"7"}) == b"7"
        assert fill_in(payload, {name: None}) == payload


def test_a_result_that_is_no_json_replaces_the_payload() -> None:
    """Coordination.md 1.6: results are bytes"""
    assert fill_in(b"{}", {"x": b"\xff"}) == b"\xff"


@pytest.mark.parametrize("deep", [b"[" * 5000 + b"]" * 5000, b'{"x":' * 5000 + b"1" + b"}" * 5000])
def test_a_result_that_is_nested_too_deeply_replaces_the_payload(deep: bytes) -> None:
    assert fill_in(b"{}", {"x": deep}) == deep
    assert fill_in(deep, {"x": b"7"}) == b"7"
