import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.base.errors import Invalid, InvalidTag, PayloadTooLarge
from flowfabric.core.base.text import (
    MAX_TAG_VALUE,
    check_bytes,
    check_key,
    check_kind,
    check_lane,
    check_namespace,
    check_size,
    check_tag_key,
    check_tags,
    check_text,
    check_worker,
)

NOT_TEXT = [None, 7, 1.5, True, b"bytes", ["list"], {"a": 1}, object()]
printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E))
storable = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(storable)
def test_ordinary_text_passes_unchanged(text: str) -> None:
    assert check_text(text, "note") is text
    assert check_text(text, "note", limit=len(text.encode())) is text


@pytest.mark.parametrize("value", NOT_TEXT)
def test_what_is_no_text_is_refused_by_name_and_type(value: object) -> None:
    with pytest.raises(Invalid, match=f"note must be text, not {type(value).__name__}"):
        check_text(value, "note")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("ab\0c", "NUL character at position 2"),
        ("é\0", "NUL character at position 1"),
        ("ab\ud800", "lone surrogate at position 2"),
        ("\udfff", "lone surrogate at position 0"),
    ],
)
def test_text_no_store_can_hold_is_refused_with_its_position(text: str, complaint: str) -> None:
    with pytest.raises(Invalid, match=f"note contains a {complaint}"):
        check_text(text, "note")


def test_limits_count_bytes_and_not_characters() -> None:
    assert check_text("é" * 5, "note", limit=10)
    with pytest.raises(Invalid, match="note has 12 bytes, the limit is 10"):
        check_text("é" * 6, "note", limit=10)
    with pytest.raises(Invalid, match="11 bytes"):
        check_text("e" * 11, "note", limit=10)


@given(printable.filter(lambda text: 1 <= len(text) <= 64))
def test_up_to_64_printable_characters_are_a_lane(text: str) -> None:
    """E-T015"""
    assert check_lane(text) == text


@pytest.mark.parametrize(
    ("lane", "complaint"),
    [
        ("", "must not be empty"),
        ("a" * 65, "65 bytes, the limit is 64"),
        ("a" * 1_000_000, "the limit is 64"),
        ("ab\tc", "position 2"),
        ("\x7f", "position 0"),
        ("lané", "position 3"),
        ("a\0", "position 1"),
        ("abc\ud800", "position 3"),
    ],
)
def test_a_lane_tells_what_is_wrong_and_where(lane: str, complaint: str) -> None:
    """E-T015"""
    with pytest.raises(Invalid, match=f"lane .*{complaint}"):
        check_lane(lane)


@pytest.mark.parametrize("value", NOT_TEXT)
def test_names_that_are_no_text_are_refused(value: object) -> None:
    for check in (check_lane, check_namespace, check_kind, lambda v: check_worker(v, "worker")):
        with pytest.raises(Invalid, match="must be text"):
            check(value)


@pytest.mark.parametrize(("check", "what"), [(check_namespace, "namespace"), (check_kind, "kind")])
def test_namespaces_and_kinds_are_1_to_256_bytes_of_text(check, what) -> None:  # type: ignore[no-untyped-def]
    assert check("Größe, mit Leerzeichen") == "Größe, mit Leerzeichen"
    assert check("a" * 256) == "a" * 256
    for bad in ("", "a" * 257, "é" * 129, "a\0b", "\ud800"):
        with pytest.raises(Invalid, match=what):
            check(bad)


@pytest.mark.parametrize("name", ["w", "host-1:42", "a" * 256, "größe", "工人"])
def test_workers_may_have_any_solid_name(name: str) -> None:
    assert check_worker(name, "worker") == name


@pytest.mark.parametrize(
    "name",
    ["", "a b", "a\n", "\t", "a\x7f", "a\x85b", "a\u2003b", "a\u00a0b", "a" * 257, "a\0", "\ud800"],
)
def test_workers_have_no_white_space_or_control_characters(name: str) -> None:
    with pytest.raises(Invalid, match="instance"):
        check_worker(name, "instance")


def test_an_empty_idempotency_key_is_none() -> None:
    assert check_key(None) is None
    assert check_key("") is None
    assert check_key("k" * 1024) == "k" * 1024
    for bad in ("k" * 1025, "k\0", "\ud800", 7, b"", b"k"):
        with pytest.raises(Invalid, match="idempotency key"):
            check_key(bad)


@pytest.mark.parametrize("key", ["a.b", "app.tenant", "a1_.0", "app._", "app.a.b..c", "a.b."])
def test_keys_of_two_parts_are_tags(key: str) -> None:
    assert check_tag_key(key) == key


@pytest.mark.parametrize(
    "key",
    ["", ".", "a", "a.", ".b", "a..b", "A.b", "a.B", "1a.b", "_a.b", "a-b.c", "a.b c", "a.b\n",
     "ä.b", "a.\0", "a.\ud800", "a." + "b" * 255, None, 7, b"a.b"],
)  # fmt: skip
def test_other_keys_are_no_tags(key: object) -> None:
    with pytest.raises(InvalidTag):
        check_tag_key(key)
    with pytest.raises(InvalidTag):
        check_tags({"fine.key": "value", key: "value"})


def test_tags_are_copied_when_all_are_acceptable() -> None:
    tags = {"app.tenant": "größe", "app.empty": ""}
    assert check_tags(tags) == tags
    assert check_tags(tags) is not tags
    assert check_tags({}) == {}


@pytest.mark.parametrize("tags", [None, 7, "a.b", [("a.b", "c")], {"a.b"}])
def test_tags_are_a_mapping(tags: object) -> None:
    with pytest.raises(InvalidTag):
        check_tags(tags)


@pytest.mark.parametrize("value", [None, 7, b"x", "\0", "\ud800", "v" * (MAX_TAG_VALUE + 1)])
def test_values_of_tags_are_text(value: object) -> None:
    with pytest.raises(Invalid, match=r"tag app\.tenant"):
        check_tags({"app.tenant": value})


@pytest.mark.parametrize("value", [b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_bytes_of_every_kind_are_taken_up_to_the_limit(value: object) -> None:
    assert check_bytes(value, "payload", 3) == b"abc"
    assert type(check_bytes(value, "payload", 3)) is bytes
    with pytest.raises(PayloadTooLarge, match="payload has 3 bytes, the limit is 2"):
        check_bytes(value, "payload", 2)


def test_the_size_of_a_view_is_counted_in_bytes() -> None:
    with pytest.raises(PayloadTooLarge, match="8 bytes"):
        check_bytes(memoryview(bytes(8)).cast("I"), "payload", 4)


@pytest.mark.parametrize("value", [None, "text", 7, [1, 2]])
def test_what_is_no_bytes_is_refused(value: object) -> None:
    with pytest.raises(Invalid, match="payload must be bytes"):
        check_bytes(value, "payload", 10)


def test_a_size_may_reach_its_limit_and_not_pass_it() -> None:
    check_size(10, "result", 10)
    with pytest.raises(PayloadTooLarge) as caught:
        check_size(11, "result", 10)
    assert (caught.value.what, caught.value.size, caught.value.limit) == ("result", 11, 10)
