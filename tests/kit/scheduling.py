"""Which process runs which tests, when there are several."""

import pytest
from xdist.scheduler import LoadFileScheduling

BROWSER_TESTS = "tests/dashboard/"
MACHINE_TESTS = "tests/machine/"


class FileScheduling(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """One process runs a whole file, so what a module sets up is set up once. One process runs all
    tests in the browser, so there is one browser. The machines share nothing and take long, so each
    is on its own. All start in the order of collection."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(BROWSER_TESTS):
            return BROWSER_TESTS
        return nodeid if nodeid.startswith(MACHINE_TESTS) else nodeid.split("::", 1)[0]
