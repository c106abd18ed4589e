"""A deploy that two of three people must approve, each with their own token.

The approval is bound to the exact plan. A token is for one person and one use, so a person cannot
approve twice or in another person's name. The run waits without a worker, and the approval is
recorded: however often the task is retried afterwards, people are asked only once.

    python examples/deploy_approval.py
"""

import asyncio
import tempfile
from pathlib import Path

import msgspec

from flowfabric import Context, Fabric, FlowFabricError

store = Path(tempfile.mkdtemp()) / "deploys.db"
fabric = Fabric(f"sqlite:///{store}")

PEOPLE = ["ada", "bob", "eve"]


class Plan(msgspec.Struct):
    service: str
    version: str
    hosts: list[str]


# -- what people have in their mail: the id of the approval, and their own token

inboxes: dict[str, tuple[str, str]] = {}
all_mailed = asyncio.Event()


async def mail(person: str, approval_id: str, token: str) -> None:
    inboxes[person] = approval_id, token
    if len(inboxes) == len(PEOPLE):
        all_mailed.set()


async def roll_out(plan: Plan) -> str:
    return f"{plan.service} {plan.version} is on {', '.join(plan.hosts)}"


# -- our task


@fabric.task(retries=3)
async def deploy(ctx: Context, plan: Plan) -> str:
    approval = await ctx.request_approval("deploy", of=2, approvers=PEOPLE, about=plan)
    for person in PEOPLE:
        token = await approval.token(person, expires="1d")
        await ctx.step(mail, person, approval.id, token.reveal())

    verdict = await approval.verdict(timeout="1d")
    said = ", ".join(f"{each.approver} {each.decision}" for each in verdict.decisions)
    if not verdict.approved:
        return f"not deployed: {verdict.ended} ({said or 'no answer'})"

    verdict.check(plan)  # deploy only what was approved
    return f"{await ctx.step(roll_out, plan)} ({said})"


# -- the page behind the link in the mail


async def answer(person: str, *, yes: bool, token: str | None = None) -> str:
    """The page's answer to a person who pressed a button."""
    approval_id, own_token = inboxes[person]
    decide = fabric.approve if yes else fabric.reject
    try:
        sent = await decide(approval_id, token=token or own_token)
    except FlowFabricError as error:
        return f"refused, {error.code}"
    if sent.duplicate:
        return "your answer is already counted"  # a token counts once
    return "thank you, that decides it" if sent.resumed else "thank you"


# -- everything together


async def main() -> None:
    async with fabric:
        worker = await fabric.worker()
        working = asyncio.create_task(worker.run())
        run = await deploy.submit(Plan("shop", "v7", ["web-1", "web-2"]))
        await all_mailed.wait()

        print("ada says yes:         ", await answer("ada", yes=True))
        print("ada says yes again:   ", await answer("ada", yes=True))
        print("bob says no:          ", await answer("bob", yes=False))
        used = inboxes["ada"][1]
        print("eve with ada's token: ", await answer("eve", yes=True, token=used))
        print("eve with her own:     ", await answer("eve", yes=True))
        print(await run.result())

        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
