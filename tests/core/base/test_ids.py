import copy
import pickle
from uuid import NAMESPACE_DNS, UUID, uuid5

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.base.errors import Invalid, InvalidId
from flowfabric.core.base.ids import (
    PARTITION_COUNTS,
    PARTITIONS,
    ExecutionId,
    RunId,
    crc16,
    derive_attempt_id,
    derive_uuid,
    flow_partition,
    lane_partition,
    new_uuid7,
    parse_partition_key,
    parse_run_id,
    parse_uuid,
    partition_key,
    without_tags,
)

NIL = "00000000-0000-0000-0000-000000000000"
SOME = UUID("018f4c3e-0000-7000-8000-0123456789ab")

uuids = st.uuids(allow_nil=True)
partitions = st.integers(0, PARTITIONS - 1)


def reason(text: object) -> str:
    with pytest.raises(InvalidId) as caught:
        ExecutionId(text)  # type: ignore[arg-type]
    return caught.value.reason


def key_reason(text: object) -> str:
    with pytest.raises(InvalidId) as caught:
        parse_partition_key(text)
    return caught.value.reason


@given(partitions, uuids)
def test_an_id_reads_back_from_its_text(partition: int, uuid: UUID) -> None:
    """E-T001"""
    made = ExecutionId.of(partition, uuid)
    back = ExecutionId(str(made))
    assert made == back == f"{{fp:{partition}}}:{uuid}"
    assert (back.partition_index, back.uuid) == (partition, uuid)


def test_an_id_is_a_plain_string_in_json_and_malformed_json_is_refused() -> None:
    """E-T001, E-T002"""
    made = ExecutionId.of(7, SOME)
    data = msgspec.json.encode({"id": made}, enc_hook=str)
    assert data == f'{{"id":"{{fp:7}}:{SOME}"}}'.encode()
    text = msgspec.json.decode(data)["id"]
    assert ExecutionId(text) == made
    assert reason(msgspec.json.decode(f'"{SOME}"')) == "missing_tag"


def test_an_id_survives_copying_and_pickling_with_its_parts() -> None:
    made = ExecutionId.of(7, SOME)
    for twin in (copy.deepcopy(made), pickle.loads(pickle.dumps(made)), ExecutionId(made)):  # noqa: S301
        assert twin == made
        assert (twin.partition_index, twin.uuid) == (7, SOME)


@pytest.mark.parametrize(
    "text",
    [
        str(SOME),
        "",
        "{fp:7}",
        f"{{fp:7}}{SOME}",
        f"fp:7:{SOME}",
        f"{{b:7}}:{SOME}",
        f" {{fp:7}}:{NIL}",
    ],
)
def test_an_id_without_its_tag_is_told_so(text: str) -> None:
    """E-T002"""
    assert reason(text) == "missing_tag"


@pytest.mark.parametrize("value", [None, 7, SOME, b"{fp:7}:x", ["{fp:7}"], object()])
def test_what_is_no_text_has_no_tag(value: object) -> None:
    assert reason(value) == "missing_tag"


@pytest.mark.parametrize(
    "index",
    [
        "x",
        "",
        "-1",
        "+1",
        "65536",
        "99999",
        "9" * 5000,
        "1.0",
        " 1",
        "07",
        "\u0663",
        "\0",
        "\ud800",
    ],
)
def test_a_partition_that_is_no_16_bit_number_is_told_so(index: str) -> None:
    """E-T003"""
    assert reason(f"{{fp:{index}}}:{SOME}") == "invalid_partition_index"


def test_partition_zero_with_the_nil_uuid_is_an_id() -> None:
    """E-T003"""
    made = ExecutionId(f"{{fp:0}}:{NIL}")
    assert (made.partition_index, made.uuid.int) == (0, 0)


@pytest.mark.parametrize(
    "uuid",
    ["", "x", str(SOME)[:-1], str(SOME) + "0", SOME.hex, f"{{{SOME}}}", f"urn:uuid:{SOME}",
     f"{SOME}\n", "018f4c3e-0000-7000-8000-0123456789a\ud800",
     "018f4c3e-0000-7000-8000-0123456789a\0", "\u0660" * 36],
)  # fmt: skip
def test_a_malformed_uuid_is_told_so(uuid: str) -> None:
    """E-T004"""
    assert reason(f"{{fp:7}}:{uuid}") == "invalid_uuid"


@pytest.mark.parametrize("index", [PARTITIONS, 65_535])
def test_a_partition_that_does_not_exist_is_told_so(index: int) -> None:
    assert reason(f"{{fp:{index}}}:{SOME}") == "partition_out_of_range"


@given(st.text())
def test_no_text_at_all_makes_parsing_fail_in_another_way(text: str) -> None:
    for candidate in (text, f"{{fp:{text}}}:{SOME}", f"{{fp:1}}:{text}"):
        with pytest.raises(InvalidId):
            ExecutionId(candidate.replace("}:", "}"))
        with pytest.raises(InvalidId):
            parse_uuid(text, "flow")


def test_upper_case_digits_name_the_same_execution() -> None:
    assert ExecutionId(f"{{fp:7}}:{str(SOME).upper()}") == ExecutionId.of(7, SOME)


@given(partitions, partitions, uuids)
def test_the_partition_is_the_tags_whatever_the_uuid_would_hash_to(
    one: int, other: int, uuid: UUID
) -> None:
    """E-T005"""
    assert ExecutionId(f"{{fp:{one}}}:{uuid}").partition_index == one
    assert (ExecutionId.of(one, uuid) == ExecutionId.of(other, uuid)) is (one == other)


@given(uuids, uuids, uuids)
def test_members_live_in_the_partition_of_their_flow(flow: UUID, one: UUID, other: UUID) -> None:
    """E-T006"""
    partition = crc16(flow.bytes) % PARTITIONS
    assert flow_partition(flow) == partition
    assert ExecutionId.member(flow, one).partition_index == partition
    assert ExecutionId.member(flow, other).partition_index == partition


def test_lanes_choose_partitions_by_crc16_and_spread_well() -> None:
    """E-T007, C-T141"""
    assert crc16(b"123456789") == 0x31C3
    lanes = [f"lane-{number}" for number in range(100)]
    chosen = {ExecutionId.solo(lane, SOME).partition_index for lane in lanes}
    assert len(chosen) > 50
    assert chosen == {lane_partition(lane) for lane in lanes}
    assert all(0 <= partition < PARTITIONS for partition in chosen)


@given(uuids, st.sampled_from(["default", "gpu lane", "~"]))
def test_an_id_made_of_a_given_uuid_is_stable_and_embeds_it(uuid: UUID, lane: str) -> None:
    """E-T008"""
    made = ExecutionId.solo(lane, uuid)
    assert made == ExecutionId.solo(lane, uuid) == ExecutionId(str(made))
    assert made.endswith(str(uuid))
    assert made.partition_index == ExecutionId.solo(lane, SOME).partition_index


def test_another_number_of_partitions_moves_some_lanes() -> None:
    """E-T009"""
    lanes = [f"lane-{number}".encode() for number in range(100)]
    assert any(crc16(lane) % PARTITIONS != crc16(lane) % (PARTITIONS // 2) for lane in lanes)


def test_families_have_their_number_of_partitions() -> None:
    """E-T010"""
    assert PARTITION_COUNTS == {"fp": 256, "b": 32, "q": 32}


def test_each_family_has_its_own_text_and_executions_share_that_of_flows() -> None:
    """E-T011"""
    assert [partition_key(family, 7) for family in ("fp", "b", "q")] == ["{fp:7}", "{b:7}", "{q:7}"]
    member = ExecutionId.member(SOME, uuid5(NAMESPACE_DNS, "member"))
    assert partition_key("fp", member.partition_index) == partition_key("fp", flow_partition(SOME))


@given(st.sampled_from(["fp", "b", "q"]), st.integers(0, 31))
def test_a_partition_key_reads_back_and_is_a_bare_string_in_json(family: str, index: int) -> None:
    """E-T012, E-T014"""
    key = partition_key(family, index)
    assert parse_partition_key(key) == (family, index)
    wire = msgspec.json.encode({"partition_key": key})
    assert wire == f'{{"partition_key":"{{{family}:{index}}}"}}'.encode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "missing_braces"),
        ("{", "missing_braces"),
        ("fp:7", "missing_braces"),
        ("{fp:7", "missing_braces"),
        (None, "missing_braces"),
        (7, "missing_braces"),
        ("{}", "malformed_body"),
        ("{fp}", "malformed_body"),
        ("{fp:}", "malformed_body"),
        ("{:7}", "malformed_body"),
        ("{xx:7}", "unknown_family"),
        ("{FP:7}", "unknown_family"),
        ("{fp:-1}", "invalid_partition_index"),
        ("{fp:x}", "invalid_partition_index"),
        ("{fp:65536}", "invalid_partition_index"),
        ("{fp:7:7}", "invalid_partition_index"),
        ("{fp:256}", "partition_out_of_range"),
        ("{b:32}", "partition_out_of_range"),
    ],
)
def test_a_partition_key_tells_what_is_wrong_with_it(text: object, expected: str) -> None:
    """E-T013, C-T140"""
    assert key_reason(text) == expected


@pytest.mark.parametrize(("family", "index"), [("xx", 0), ("fp", 256), ("fp", -1)])
def test_no_key_is_made_for_a_partition_that_does_not_exist(family: str, index: int) -> None:
    with pytest.raises(InvalidId):
        partition_key(family, index)


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**80))
def test_a_version_7_uuid_holds_its_moment_and_the_standard_marks(now: int, entropy: int) -> None:
    made = new_uuid7(now, entropy)
    assert (made.version, made.int >> 80) == (7, now)
    assert made.variant == "specified in RFC 4122"
    assert made == new_uuid7(now, entropy % 2**74)


@given(st.integers(0, 2**74 - 1), st.integers(0, 2**74 - 1))
def test_every_bit_of_entropy_counts(one: int, other: int) -> None:
    assert (new_uuid7(1, one) == new_uuid7(1, other)) is (one == other)


def test_later_uuids_sort_after_earlier_ones() -> None:
    assert str(new_uuid7(1_700_000_000_000, 2**74 - 1)) < str(new_uuid7(1_700_000_000_001, 0))


@pytest.mark.parametrize("now", [-1, 2**48])
def test_a_moment_beyond_48_bits_makes_no_uuid(now: int) -> None:
    with pytest.raises(Invalid):
        new_uuid7(now, 0)


@given(uuids, st.integers(0, 2**32 - 1))
def test_an_attempt_id_follows_from_execution_and_index(execution: UUID, index: int) -> None:
    made = derive_attempt_id(execution, index)
    assert made == derive_attempt_id(execution, index)
    assert made not in (execution, derive_attempt_id(execution, index + 1))


@given(uuids, st.text())
def test_a_derived_id_is_that_of_version_5(namespace: UUID, name: str) -> None:
    assert derive_uuid(namespace, name) == uuid5(namespace, name)


@given(uuids)
def test_a_uuid_is_read_from_its_canonical_text(uuid: UUID) -> None:
    assert parse_uuid(str(uuid), "flow") == parse_uuid(uuid, "flow") == uuid


@pytest.mark.parametrize("value", ["", "x", SOME.hex, f"{{{SOME}}}", None, 7, SOME.bytes])
def test_what_is_no_uuid_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidId, match="invalid_uuid: waitpoint '") as caught:
        parse_uuid(value, "waitpoint")
    assert (caught.value.reason, caught.value.what) == ("invalid_uuid", "waitpoint")


def test_people_see_the_uuid_alone() -> None:
    id = RunId(ExecutionId.of(7, SOME))
    assert (str(id), f"{id}", id.uuid, id.partition_index) == (str(SOME), str(SOME), SOME, 7)
    assert id.tagged == f"{{fp:7}}:{SOME}"
    assert msgspec.json.encode({"id": id}, enc_hook=str) == f'{{"id":"{SOME}"}}'.encode()


def test_the_id_of_a_run_is_equal_to_itself_in_every_form() -> None:
    id, tagged = RunId(ExecutionId.of(7, SOME)), f"{{fp:7}}:{SOME}"
    for other in (str(SOME), SOME, tagged, ExecutionId(tagged), RunId(tagged)):
        assert (id == other, other == id, id != other, other != id) == (True, True, False, False)
    for wrong in (f"{{fp:8}}:{SOME}", ExecutionId.of(8, SOME), NIL, str(NIL), 7, None):
        assert (id == wrong, wrong == id, id != wrong, wrong != id) == (False, False, True, True)
    assert {id: 1}[str(SOME)] == 1  # type: ignore[index]  # the text is equal, and so is its hash


def test_the_engine_takes_the_id_of_a_run() -> None:
    id = RunId(ExecutionId.of(7, SOME))
    made = ExecutionId(id)
    assert (type(made), str(made)) == (ExecutionId, f"{{fp:7}}:{SOME}")
    for twin in (copy.copy(id), copy.deepcopy(id), pickle.loads(pickle.dumps(id))):  # noqa: S301
        assert (type(twin), twin.tagged) == (RunId, id.tagged)


def test_the_id_of_a_run_is_read_in_both_forms() -> None:
    assert parse_run_id(str(SOME)) == parse_run_id(SOME) == SOME
    assert parse_run_id(f"{{fp:7}}:{SOME}") == parse_run_id(RunId.of(7, SOME))
    for wrong in ("", "x", None, 7, str(SOME)[:-1], f"{{b:7}}:{SOME}"):
        with pytest.raises(InvalidId, match="looks like 01a1e105-7c1b-7d3e"):
            parse_run_id(wrong)


def test_texts_for_people_have_no_tags() -> None:
    assert without_tags(f"run {{fp:7}}:{SOME} and {{fp:12}}:x") == f"run {SOME} and {{fp:12}}:x"
