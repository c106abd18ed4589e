"""Metrics of a process that works: what its workers and flows count, and where they are read."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

import httpx
import pytest
from prometheus_client import CollectorRegistry

from flowfabric import Context, Quorum, metrics
from flowfabric.core.base.errors import Invalid
from flowfabric.fabric import Fabric
from flowfabric.metrics import instruments
from flowfabric.metrics.distribution import Distribution
from flowfabric.worker.run.options import WorkerSettings
from tests.kit.scrape import Scrape, measuring, scrape
from tests.worker.bench import Bench, renew_now, working


@pytest.fixture(autouse=True)
def measured() -> Iterator[None]:
    with measuring():
        yield


async def now() -> Scrape:
    return Scrape((await metrics.render()).decode())


async def until(
    wanted: Callable[[Scrape], float], look: Callable[[], Awaitable[Scrape]] = now
) -> float:
    """What was found when it was not zero any more."""
    async with asyncio.timeout(30):
        while not (found := wanted(await look())):  # noqa: ASYNC110 - another thread is measured
            await asyncio.sleep(0.02)
    return found


async def test_waiting_and_signals_are_counted(bench: Bench) -> None:
    @bench.fabric.task(lane="slow")
    async def patient(ctx: Context) -> None:
        await ctx.wait_for_signal("go")

    before = await now()
    run = await patient.submit()
    await bench.work()
    await bench.fabric.signal(run.id, "go")
    await bench.work()
    after = await now()
    assert after.since(before, "ff_suspensions_total", lane="slow") == 1
    assert after.since(before, "ff_signals_total") == 1
    assert after.since(before, "ff_attempt_outcome_total", lane="slow", outcome="ok") == 1


async def test_limits_that_hold_runs_back_are_counted(bench: Bench) -> None:
    @bench.fabric.task(budgets=["tokens"])
    async def thinking(ctx: Context) -> None:
        await ctx.spend({"usd": 5})

    @bench.fabric.task(rate="1/m")
    async def paced() -> None: ...

    await bench.fabric.budget("tokens", usd=5)
    before = await now()
    for _ in range(2):
        await thinking.submit()
        await bench.work()
        await paced.submit()
    await bench.work()
    after = await now()
    assert after.since(before, "ff_budget_hit_total", dimension="usd") == 1
    assert after.since(before, "ff_quota_hit_total", reason="rate") >= 1
    assert after.since(before, "ff_quota_hit_total", reason="concurrency") == 0


async def test_keys_without_a_free_slot_are_counted(bench: Bench) -> None:
    """I-27: a run that waits for a slot of its key is counted as refused, whether its submission
    already knows that the key has none, a look at the line finds it out, or a caller asks for it"""

    @bench.fabric.task(concurrency=1, concurrency_key="customer")
    async def convert(customer: str) -> None: ...

    before = await now()
    await convert.submit_many([("acme",), ("acme",)])
    engine = await bench.fabric.engine()
    await engine.settle()
    await engine.sweep.once()
    found_out = await now()
    third = await convert.submit("acme")
    known = await now()
    await engine.quotas.check_admission(f"task:{convert.name}", third.id)
    asked = await now()
    assert found_out.since(before, "ff_quota_hit_total", reason="concurrency") >= 1
    assert known.since(found_out, "ff_quota_hit_total", reason="concurrency") >= 1
    assert asked.since(known, "ff_quota_hit_total", reason="concurrency") == 1
    assert asked.since(before, "ff_quota_hit_total", reason="rate") == 0
    await bench.work()
    idle = await now()
    await convert.submit("acme")
    await bench.work()
    assert (await now()).since(idle, "ff_quota_hit_total", reason="concurrency") == 0


async def test_joins_and_the_siblings_they_cancel_are_counted(bench: Bench) -> None:
    """C-T49: by reason and by disposition"""

    @bench.fabric.task()
    async def fast() -> int:
        return 1

    @bench.fabric.task(lane="unserved")
    async def slow() -> int:
        return 2

    @bench.fabric.task()
    async def end() -> None: ...

    before = await now()
    async with bench.fabric.flow("race") as flow:
        first = [flow.add(fast), flow.add(slow)]
        last = flow.add(end, after=first, join=Quorum(1))
        flow.add(end, after=last)
    await bench.work(lanes=["default"])
    after = await now()
    assert after.since(before, "ff_edge_group_policy_total", policy="quorum") == 1
    assert after.since(before, "ff_edge_group_policy_total", policy="all_of") == 1
    reason = "sibling_quorum_satisfied"
    assert after.since(before, "ff_sibling_cancel_dispatched_total", reason=reason) == 1
    cancelled = "ff_sibling_cancel_disposition_total"
    assert after.since(before, cancelled, disposition="cancelled") == 1
    lost = {"lane": "unserved", "outcome": "cancelled"}
    assert after.since(before, "ff_attempt_outcome_total", **lost) == 1


async def test_a_worker_without_slots_and_one_that_must_stop_are_counted(fabric: Fabric) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    @fabric.task()
    async def forever() -> None:
        begun.set()
        await never.wait()

    before = await now()
    await forever.submit()
    worker = await fabric.worker(WorkerSettings(concurrency=1, drain="0s"))
    running = asyncio.create_task(worker.run())
    await begun.wait()
    assert await until(lambda found: found.since(before, "ff_worker_at_capacity_total")) == 1
    worker.stop()
    await running
    assert (await now()).since(before, "ff_shutdown_timeout_total") == 1


async def test_leases_that_the_heartbeat_renews_are_counted(fabric: Fabric) -> None:
    renewed = asyncio.Event()

    @fabric.task()
    async def long() -> None:
        await renewed.wait()

    before = await now()
    run = await long.submit()
    async with working(fabric) as worker:
        await renew_now(worker)
        assert (await now()).since(before, "ff_lease_renewal_total", outcome="ok") == 1
        renewed.set()
        await run.result(60)


async def test_an_address_for_prometheus(bench: Bench) -> None:
    async with metrics.serve("127.0.0.1:0", bench.fabric) as url, httpx.AsyncClient() as http:
        assert url.startswith("http://127.0.0.1:")
        assert url.endswith("/metrics")
        reply = await http.get(url)
        assert reply.headers["content-type"] == metrics.CONTENT_TYPE
        found = Scrape(reply.text)
        assert found.has("ff_cancel_backlog_depth")
        assert not found.has("ff_workers")  # another process sweeps, and shows it
        assert (await http.head(url)).status_code == 200
        assert (await http.get(url + "?name=x")).status_code == 200
        assert (await http.post(url)).status_code == 405
        assert (await http.get(url.replace("metrics", "secrets"))).status_code == 404
        many = {f"x-{number}": "y" for number in range(200)}
        assert (await http.get(url, headers=many)).status_code == 431
    with pytest.raises(httpx.ConnectError):
        async with httpx.AsyncClient() as http:
            await http.get(url)


@pytest.mark.inside
async def test_the_process_that_sweeps_shows_the_store(fabric: Fabric) -> None:
    engine = await fabric.engine()
    engine.sweep.start()
    async with metrics.serve("127.0.0.1:0", fabric) as url, httpx.AsyncClient() as http:

        async def look() -> Scrape:
            return Scrape((await http.get(url)).text)

        assert await until(lambda found: found.has("ff_workers"), look)


async def test_noise_at_that_address_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with metrics.serve("127.0.0.1:0") as url, httpx.AsyncClient() as http:
        port = int(url.rpartition(":")[2].partition("/")[0])
        for noise in (b"\x16\x03\x01\x02\n\n", b"GET\n\n", b"x" * 20_000, b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(noise)
            writer.write_eof()
            answer = await reader.read()
            assert not answer or answer.startswith(b"HTTP/1.1 400 ")
            writer.close()
            await writer.wait_closed()
        with caplog.at_level(logging.ERROR):
            assert (await http.get(url)).status_code == 200
    assert not caplog.records


@pytest.mark.parametrize("address", ["", "9100", ":9100", "localhost:", "localhost:99999", "h:x"])
async def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(Invalid):
        async with metrics.serve(address):
            pass


async def test_an_address_that_is_taken_is_refused() -> None:
    async with metrics.serve("127.0.0.1:0") as url:
        taken = url.removeprefix("http://").removesuffix("/metrics")
        with pytest.raises(Invalid, match="cannot listen on"):
            async with metrics.serve(taken):
                pass


@pytest.mark.inside
async def test_an_asgi_application(bench: Bench) -> None:
    transport = httpx.ASGITransport(metrics.metrics_app(bench.fabric))
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as http:
        found = await scrape(http)
        assert found.has("ff_workers")
        head = await http.head("/metrics")
        assert (head.status_code, head.content) == (200, b"")
        assert (await http.post("/metrics")).status_code == 405


def test_a_distribution_is_a_histogram() -> None:
    registry = CollectorRegistry()
    found = Distribution("seconds", "Some.", ["lane"], (1, 5), registry)
    found.add(("a",), [0.5, 1, 1.5, 7])
    found.add(("a",), (5,))
    found.add(("b",), (0,))
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
    }
    assert values == {
        ("seconds_bucket", "a", "1.0"): 2,
        ("seconds_bucket", "a", "5.0"): 4,
        ("seconds_bucket", "a", "+Inf"): 5,
        ("seconds_count", "a"): 5,
        ("seconds_sum", "a"): 15,
        ("seconds_bucket", "b", "1.0"): 1,
        ("seconds_bucket", "b", "5.0"): 1,
        ("seconds_bucket", "b", "+Inf"): 1,
        ("seconds_count", "b"): 1,
        ("seconds_sum", "b"): 0,
    }


async def test_another_registry_can_collect_ours(bench: Bench) -> None:
    everything = CollectorRegistry()
    everything.register(instruments.REGISTRY)
    names = {family.name for family in everything.collect()}
    assert "ff_batch_size" in names
