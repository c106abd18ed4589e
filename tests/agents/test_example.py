"""The agent of the examples is killed in the middle of a tool call and goes on."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.long
def test_a_killed_agent_goes_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "agent.main"],
        cwd=EXAMPLES,
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=80,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    calls = [line for line in lines if line.startswith("refund is called")]
    assert len(calls) == 2
    assert len(set(calls)) == 1  # again, with the same key
    asked = [line for line in lines if line.startswith("the model is asked")]
    assert asked == [f"the model is asked, {count} messages" for count in (1, 2, 3)]
    assert lines.count("find_order is called") == 1
    assert lines[2] == "Done: refunded 2500 cents to c-17"
    assert lines[-1] == "1 refund, 2500 cents are spent"
