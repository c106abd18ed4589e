"""The page for authors of a store names what there is: every method, and only files that exist."""

import re

from flowfabric.store.contract import RecordStore, Store
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/design/new-store.md").read_text("utf-8")


def methods_of(*protocols: type) -> set[str]:
    return {
        name
        for protocol in protocols
        for cls in protocol.__mro__
        if cls.__module__ == Store.__module__
        for name in vars(cls)
        if not name.startswith("_")
    }


def test_the_steps_name_every_method_of_the_contract() -> None:
    steps = PAGE[PAGE.index("## Order of work") : PAGE.index("## Proof")]
    assert set(re.findall(r"`([a-z_]+)`", steps)) == methods_of(Store, RecordStore)


def test_every_file_is_there() -> None:
    named = re.findall(r"`((?:store|tests|chaos|tools)/[\w/.*]*)`", PAGE)
    assert len(named) > 20
    for name in named:
        folder = ROOT / "src/flowfabric" if name.startswith("store/") else ROOT
        assert list(folder.glob(name.rstrip("/"))), name
