"""The commands that show and change links."""

from collections.abc import Callable, Mapping
from typing import Any

from testbed.errors import TestbedError
from testbed.live.links import LiveLinks
from testbed.live.server import Command


def link_commands(links: LiveLinks, record: Callable[..., None]) -> dict[str, Command]:
    """Commands by name; `record` takes an event: its kind and its fields."""

    def show(request: Mapping[str, Any]) -> dict[str, Any]:
        name = request.get("link")
        if name is not None and not isinstance(name, str):
            raise TestbedError(f"link: {name!r} is no name")
        return {"links": links.show(name)}

    def change(request: Mapping[str, Any]) -> dict[str, Any]:
        name, values = request.get("link"), request.get("values")
        if not isinstance(name, str) or not isinstance(values, dict):
            raise TestbedError('link_set wants a "link", a text, and "values", an object')
        in_force = links.set(name, values)
        record("link_set", link=name, values=values, links=in_force)
        return {"links": in_force}

    return {"link_show": show, "link_set": change}
