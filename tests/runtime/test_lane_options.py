"""Twin of twinlog.runtime.lane_options."""

from dataclasses import fields, replace

import pytest
from checkout import DOCS

from twinlog.engines.settings import LaneSettings
from twinlog.kafka.errors import UserError
from twinlog.runtime.lane_options import NOT_OPTIONS, OPTIONS, parse_lane_settings

MANUAL = DOCS / "operations" / "settings.md"


def test_no_properties_give_the_default_settings() -> None:
    """Without properties nothing changes."""
    assert parse_lane_settings({}) == LaneSettings()


def test_each_lane_limit_is_an_option_or_explicitly_excluded() -> None:
    """A new field of LaneSettings fails here until it has an option, or a reason to have none."""
    taken = [option.field for option in OPTIONS.values()]
    assert len(set(taken)) == len(taken)
    assert {field.name for field in fields(LaneSettings)} == {*taken, *NOT_OPTIONS}


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_sets_its_field(name: str) -> None:
    """The default, written out, changes nothing; the lowest and the highest are accepted."""
    option = OPTIONS[name]
    assert option.lowest <= option.default <= option.highest
    assert parse_lane_settings({name: f" {option.default} "}) == LaneSettings()
    room = {"lane.buffer.bytes": str(OPTIONS["lane.buffer.bytes"].highest)}
    small = {"replica.fetch.response.max.bytes": "1024"}
    for number in (option.lowest, option.highest):
        settings = parse_lane_settings({**room, **small, name: str(number)})
        assert getattr(settings, option.field) == number / option.scale


def test_milliseconds_are_converted_to_seconds() -> None:
    """Kafka's unit is ms."""
    settings = parse_lane_settings({"retry.backoff.ms": "250"})
    assert settings == replace(LaneSettings(), backoff_s=0.25)


@pytest.mark.parametrize("value", ["", "many", "-1", "1.5", "0x10", "\u0663", "65"])
def test_a_malformed_value_is_named(value: str) -> None:
    """The error names the setting, the value, and what is allowed."""
    with pytest.raises(UserError) as caught:
        parse_lane_settings({"mirror.num.replica.fetchers": value})
    allowed = "expected a whole number from 1 to 64"
    assert str(caught.value) == f"mirror.num.replica.fetchers is {value!r}: {allowed}"


def test_an_unknown_setting_is_named_with_a_suggestion() -> None:
    """The error suggests the nearest name, and lists all settings if none is near."""
    with pytest.raises(UserError, match=r"did you mean lane\.buffer\.bytes") as caught:
        parse_lane_settings({"lane.bufer.bytes": "1"})
    assert "lane.bufer.bytes is not a setting of a lane" in str(caught.value)
    with pytest.raises(UserError, match=r"lane settings: mirror\.num\.replica\.fetchers, "):
        parse_lane_settings({"buffer_memory": "1"})


def test_a_buffer_smaller_than_a_fetch_response_is_refused() -> None:
    """Otherwise no fetch could ever be sent."""
    with pytest.raises(
        UserError, match=r"expected at least replica\.fetch\.response\.max\.bytes"
    ) as caught:
        parse_lane_settings(
            {"lane.buffer.bytes": "16777216", "replica.fetch.response.max.bytes": "16777217"}
        )
    assert "\n" not in str(caught.value)


def test_the_documentation_lists_all_lane_options() -> None:
    """It has a row for each, with its unit and its default."""
    rows = {
        cells[0].strip("`"): cells[1:]
        for line in MANUAL.read_text().splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split(" | ")]) == 4
    }
    for name, option in OPTIONS.items():
        meaning, unit, default = rows[name]
        assert meaning == option.meaning
        assert unit == ("ms" if name.endswith(".ms") else "bytes" if _is_size(name) else "")
        assert default == f"`{option.default}`"


def _is_size(name: str) -> bool:
    return name.endswith((".bytes", ".size"))
