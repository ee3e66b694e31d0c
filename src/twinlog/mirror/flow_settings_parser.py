"""From the text of a flow's settings to `FlowSettings`; all errors at once."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from twinlog.mirror.flow_settings import SETTINGS, FlowSettings, field_name


class BadValue(NamedTuple):
    """A setting with a malformed value."""

    name: str
    expectation: str


def parse_flow_settings(
    values: Mapping[str, str], source: str, target: str
) -> FlowSettings | tuple[BadValue, ...]:
    """Parse the settings of the flow from `source` to `target`.

    Args:
        values: values by present names, as written; others than `SETTINGS` are ignored.
        source: the source's alias.
        target: the target's alias.

    Returns:
        The settings; or all errors, if there is one.
    """
    given = {"source.cluster.alias": source, "target.cluster.alias": target, **values}
    fields: dict[str, Any] = {}
    errors = []
    for name, setting in SETTINGS.items():
        text = given.get(name, setting.default)
        assert text is not None, "settings without a default were given above"
        try:
            fields[field_name(name)] = setting.parse(text)
        except ValueError as error:
            errors.append(BadValue(name, str(error)))
    return tuple(errors) if errors else FlowSettings(**fields)
