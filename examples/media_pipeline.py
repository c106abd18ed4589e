"""A media pipeline: results become typed arguments of the next task.

    probe ──┬── transcode 1080p ──┐
            ├── transcode  720p ──┼── publish
            └── find captions   ──┘

`output` stands for the future result of a task. Passing it to another task makes an edge, and mypy
checks it like any argument: `transcode` takes a `Media`, and `probe` returns one.

    python examples/media_pipeline.py
"""

import asyncio
import tempfile
from datetime import timedelta
from pathlib import Path

import msgspec

from flowfabric import Fabric

store = Path(tempfile.mkdtemp()) / "media.db"
fabric = Fabric(f"sqlite:///{store}")


class Media(msgspec.Struct):
    name: str
    length: timedelta
    height: int


class Rendition(msgspec.Struct):
    height: int
    file: str
    kilobytes: int


class Page(msgspec.Struct):
    title: str
    renditions: list[Rendition]
    captions: dict[str, str]


@fabric.task()
async def probe(name: str) -> Media:
    return Media(name, timedelta(minutes=3), height=2160)


@fabric.task(lane="video")
def transcode(media: Media, height: int) -> Rendition:
    """A plain function runs in a thread; with `process=True`, it would run in a process."""
    seconds = media.length.total_seconds()
    return Rendition(height, f"{media.name}-{height}p.mp4", int(seconds * height * 0.5))


@fabric.task()
async def find_captions(media: Media) -> dict[str, str]:
    return {language: f"{media.name}.{language}.vtt" for language in ("en", "pt")}


@fabric.task()
async def publish(title: str, renditions: list[Rendition], captions: dict[str, str]) -> Page:
    return Page(title, renditions, captions)


async def main() -> None:
    async with fabric:
        worker = await fabric.worker()
        working = asyncio.create_task(worker.run())

        async with fabric.flow("publish video", key="upload-17") as flow:
            media = flow.add(probe, "tram")
            sizes = [flow.add(transcode, media.output, height) for height in (1080, 720)]
            captions = flow.add(find_captions, media.output)
            flow.add(publish, "A tram", [size.output for size in sizes], captions.output)

        page = await flow.result()
        print(page.title)
        for rendition in page.renditions:
            print(f"  {rendition.file}, {rendition.kilobytes:,} kB")
        print("  captions:", ", ".join(page.captions.values()))
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
