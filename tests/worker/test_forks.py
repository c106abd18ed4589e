"""A Fabric in a process that was forked, as by a web server that loads the application first."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, os, sys
from flowfabric import Fabric, Unavailable

fabric = Fabric("sqlite:///work.db")

@fabric.task
async def job() -> None: ...

def attempt(submit) -> str:
    try:
        run = submit()
        return "closed" if run is None else run.state_sync()
    except Unavailable as error:
        return f"refused: {error.detail}"

async def submitted():
    return await job.submit()

job.submit_sync()
if sys.argv[1] == "closed":
    fabric.close_sync()
if child := os.fork():
    os.waitpid(child, 0)
    print("parent", attempt(job.submit_sync))
else:
    print("child", attempt(job.submit_sync), flush=True)
    if sys.argv[1] == "open":
        print("child", attempt(lambda: asyncio.run(submitted())), flush=True)
        print("child", attempt(fabric.close_sync), flush=True)
        print("child", attempt(lambda: asyncio.run(fabric.close())), flush=True)
    os._exit(0)
"""


def answers(state: str, directory: Path) -> list[str]:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, state]
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.splitlines()


def test_an_open_fabric_says_that_it_cannot_be_used_after_a_fork(tmp_path: Path) -> None:
    *child, parent = answers("open", tmp_path)
    for line in child:
        assert line.startswith("child refused: this Fabric was open when the process was forked")
    assert (len(child), parent) == (4, "parent waiting")


def test_a_fabric_that_was_closed_before_the_fork_is_used_in_both(tmp_path: Path) -> None:
    assert answers("closed", tmp_path) == ["child waiting", "parent waiting"]
