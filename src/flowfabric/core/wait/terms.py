"""Whether the terms of an approval can be met and stored."""

from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.numbers import check_kind_of, check_names
from flowfabric.core.base.text import MAX_NAME, check_signal_name, check_text
from flowfabric.core.wait.model import MAX_VALUE, Terms

MAX_APPROVERS = 100


def check_terms(terms: object) -> Terms:
    """`terms` if they can be met and stored."""
    checked = check_kind_of(terms, Terms, "terms")
    for what, given in (("decision", checked.decisions), ("approver", checked.approvers)):
        names = check_names(given, f"{what}s")
        if len(names) > MAX_APPROVERS:
            raise Invalid(f"{len(names)} {what}s, the limit is {MAX_APPROVERS}")
        for name in names:
            check_decision(name) if what == "decision" else check_approver(name)
        if len(set(names)) != len(names):
            raise Invalid(f"the same {what} is named twice")
    if checked.about is not None:
        check_text(checked.about, "digest", limit=MAX_NAME)
    if checked.value is not None:
        check_text(checked.value, "the value of an approval", limit=MAX_VALUE)
    return replace(checked, decisions=tuple(checked.decisions), approvers=tuple(checked.approvers))


def check_decision(name: object) -> str:
    """A decision is the name of the signal that makes it."""
    text = check_signal_name(name, "decision")
    if not text:
        raise Invalid("a decision needs a name")
    return text


def check_approver(name: object) -> str:
    text = check_text(name, "approver", limit=MAX_NAME)
    if not text:
        raise Invalid("every approver needs a name")
    return text
