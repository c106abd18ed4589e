"""A diamond in which one side fails: the node that needs both is skipped, the cleanup runs.

    book a trip ──┬── flight ──┬── itinerary      (needs both)
                  └── hotel  ──┴── release        (runs when the hotel fails)

The flow is declared as a whole and then runs by itself. It fails, because the hotel failed, and
says which members did not succeed. Once the hotel has rooms again, a replay runs only what did not
succeed.

    python examples/flow_diamond.py
"""

import asyncio
import tempfile
from pathlib import Path

from flowfabric import Fabric, Fail, FlowFailed

store = Path(tempfile.mkdtemp()) / "trips.db"
fabric = Fabric(f"sqlite:///{store}")

rooms: list[str] = []


@fabric.task()
async def reserve(trip: str) -> str:
    return f"reservation of {trip}"


@fabric.task()
async def book_flight(reservation: str) -> str:
    return "seat 12A"


@fabric.task()
async def book_hotel(reservation: str) -> str:
    if not rooms:
        raise Fail("no rooms left")
    return rooms.pop()


@fabric.task()
async def itinerary(flight: str, hotel: str) -> str:
    return f"{flight}, then {hotel}"


@fabric.task()
async def release(what: str) -> None:
    print(f"released the {what}")


async def main() -> None:
    async with fabric:
        worker = await fabric.worker()
        working = asyncio.create_task(worker.run())

        async with fabric.flow("trip") as flow:
            reserved = flow.add(reserve, "Lisbon")
            flight = flow.add(book_flight, reserved.output)
            hotel = flow.add(book_hotel, reserved.output)
            plan = flow.add(itinerary, flight.output, hotel.output)
            flow.add(release, "hold on the hotel", after=hotel, on="failure")

        try:
            await flow.result()
        except FlowFailed as error:
            print(f"the flow failed: {', '.join(error.members)} did not succeed")
        for member in sorted((await flow.graph()).members, key=lambda member: member.name):
            print(f"  {member.name:12} {member.state}")

        rooms.append("room 7")
        await flow.replay()
        print(await plan.run.result())
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
