"""Finding the user's Fabric: `app.module:fabric`."""

import importlib
import os
import sys
from difflib import get_close_matches
from types import ModuleType
from typing import Any, NamedTuple

from flowfabric.cli.errors import CommandError, ExitCode
from flowfabric.fabric import URL_VARIABLE, Fabric
from flowfabric.worker.api.task import Task


class Application(NamedTuple):
    """A Fabric and the name it was given by: `app.module:fabric`."""

    name: str
    fabric: Fabric

    def find_task(self, name: str) -> Task[Any, Any]:
        task = self.fabric.tasks.get(name)
        if task is None:
            text = f"no task {name!r} in {self.name}{_nearest(name, list(self.fabric.tasks))}"
            raise CommandError(text, ExitCode.NOT_FOUND, "not_found")
        return task


def load_application(app: str, url: str | None = None) -> Application:
    """The Fabric an application names, on another store if `url` says so. The current directory
    comes first on the path, as with `python -m`."""
    module_name, colon, attribute = app.partition(":")
    if not (module_name and colon and attribute):
        raise _wrong(f"{app!r} does not name a Fabric; write app.module:fabric")
    if url is not None:
        os.environ[URL_VARIABLE] = url  # for a Fabric() without a URL, here and in child processes
    fabric = _attribute(_import(module_name), attribute)
    if url is not None:
        fabric.url = url
    return Application(app, fabric)


def _import(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise _wrong(f"there is no module {error.name!r} in {here} or on the path") from error
        raise _wrong(f"{name} cannot be imported: {error}") from error
    except Exception as error:  # the user's module may raise anything
        text = f"{name} cannot be imported: {type(error).__name__}: {error}"
        raise _wrong(f"{text} (--debug shows where)") from error


def _attribute(module: ModuleType, path: str) -> Fabric:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Fabric):
        return found
    known = [name for name, value in vars(module).items() if isinstance(value, Fabric)]
    raise _wrong(f"{module.__name__} has no Fabric {path!r}{_nearest(path, known)}")


def _nearest(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{hint} (known: {', '.join(sorted(known)) or 'none'})"


def _wrong(text: str) -> CommandError:
    return CommandError(text, ExitCode.USAGE, "no_app")
