"""A worker with nothing but HTTP and JSON: no FlowFabric, no database, the standard library alone.

    FLOWFABRIC_URL=http://127.0.0.1:9090 FLOWFABRIC_TOKEN=… python http_worker.py

It runs tasks of the kind `greet` until it is stopped. Stopped by SIGTERM, it gives back what it has
not finished. The guide explains each call: docs/guide/http-workers.md.
"""

import json
import os
import secrets
import signal
import threading
import time
import urllib.error
import urllib.request
from typing import Any

SERVER = os.environ.get("FLOWFABRIC_URL", "http://127.0.0.1:9090")
HEADERS = {"Content-Type": "application/json"}
if "FLOWFABRIC_TOKEN" in os.environ:
    HEADERS["Authorization"] = f"Bearer {os.environ['FLOWFABRIC_TOKEN']}"
WORKER = {"worker_id": "greeters", "worker_instance_id": f"greeter-{os.getpid()}"}
LEASE_MS = 30_000

held: dict[str, bool] = {}  # the handles this worker owns: whether the run must stop
stopping = threading.Event()
MAIN = threading.main_thread()


def greet(order: Any) -> Any:
    return {"said": f"hello {order['name']}"}


TASKS = {"greet": greet}


def call(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Every call may be repeated, so a server that is away or busy is simply asked again; by a
    worker that was stopped up to three times."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(SERVER + path, data, HEADERS)  # noqa: S310 - our own server
    tries = 0
    while True:
        tries += 1
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as refused:
            if refused.code < 500 and refused.code != 429:
                return refused.code, json.load(refused)
        except OSError as error:
            print(f"{SERVER} does not answer, asking again: {error}", flush=True)
        # The thread that renews goes on: a handler may still be running.
        if stopping.is_set() and tries >= 3 and threading.current_thread() is MAIN:
            raise SystemExit(f"stopped while {SERVER} did not answer; open leases will expire")
        time.sleep(1)


def keep_leases() -> None:
    """Renews all leases at once, every third of their time, to the end of the last run."""
    while True:
        time.sleep(LEASE_MS / 3000)
        if handles := list(held):
            leases = [{"handle": handle} for handle in handles]
            status, answer = call("/v1/work/renew", {"leases": leases, "record": False})
            if status != 200:
                continue  # the token was revoked, perhaps; the next claim says so
            for handle, lease in zip(handles, answer["leases"], strict=True):
                if handle in held:  # not ended meanwhile
                    held[handle] = "error" in lease or "cancel_requested" in lease


def run(claim: dict[str, Any]) -> None:
    path, fence = f"/v1/work/{claim['execution_id']}", {"handle": claim["handle"]}
    if stopping.is_set():
        call(f"{path}/release", fence)
    elif held[claim["handle"]] or "cancel_requested" in claim:
        call(f"{path}/finish-cleanup", fence)  # refused if the lease is lost: also fine
    else:
        try:
            result = TASKS[claim["kind"]](claim["payload_json"])
        except Exception as error:
            call(f"{path}/fail", {**fence, "reason": repr(error)})
        else:
            call(f"{path}/complete", {**fence, "result": result})
    del held[claim["handle"]]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    threading.Thread(target=keep_leases, daemon=True).start()
    asking = {**WORKER, "kinds": list(TASKS), "limit": 10, "wait_ms": 5_000, "lease_ms": LEASE_MS}
    while not stopping.is_set():
        status, answer = call("/v1/work/claim", {**asking, "claim_id": secrets.token_hex()})
        if status != 200:
            raise SystemExit(f"the server refuses this worker: {answer['error']}")
        held.update({claim["handle"]: False for claim in answer["claims"]})
        for claim in answer["claims"]:
            run(claim)
        time.sleep(answer["retry_after_ms"] / 1000)


if __name__ == "__main__":
    main()
