"""`dated_names`: Java's documented date patterns, and that the engine's agree with them."""

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from twinlog.mirror.date_patterns import date_format
from twinlog.verify.dated_names import NoDate, date_text, dated_name

MS = 1_753_000_059_007  # 2025-07-20 08:27:39.007
LAST = 253_402_300_799_999  # of the year 9999


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("yyyyMMdd", "20250720"),
        ("yyyy-MM-dd'T'HH.mm.ss.SSS", "2025-07-20T08.27.39.007"),
        ("yy.M.d.H.m.s.S", "25.7.20.8.27.39.7"),
        ("y_yyy_yyyyy", "2025_2025_02025"),
        ("'it''s' y", "it's 2025"),
        ("yy''yy", "25'25"),
        ("''''", "''"),
        ("", ""),
    ],
)
def test_numbers_and_texts(pattern: str, expected: str) -> None:
    assert date_text(pattern)(MS) == expected


@pytest.mark.parametrize(
    ("time_ms", "expected"),
    [
        (-1, "1969-12-31 23:59:59.999"),
        (0, "1970-01-01 00:00:00.000"),
        (951_782_400_000, "2000-02-29 00:00:00.000"),
        (951_868_800_000, "2000-03-01 00:00:00.000"),
        (4_107_542_399_999, "2100-02-28 23:59:59.999"),
        (4_107_542_400_000, "2100-03-01 00:00:00.000"),
        (1_735_689_599_999, "2024-12-31 23:59:59.999"),
        (LAST, "9999-12-31 23:59:59.999"),
    ],
)
def test_days_of_the_calendar(time_ms: int, expected: str) -> None:
    """Goal: leap years, ends of years, and a record without a timestamp."""
    assert date_text("yyyy-MM-dd HH:mm:ss.SSS")(time_ms) == expected


@pytest.mark.parametrize("pattern", ["MMM", "ww", "yyyy'", "EEE", "Z", "a", "yyyyYYYY"])
def test_other_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"no part of a date|not closed"):
        date_text(pattern)


def test_a_time_without_a_date_is_an_error() -> None:
    for time_ms in (LAST + 1, 1 << 60, -(1 << 60)):
        with pytest.raises(NoDate):
            date_text("yyyy")(time_ms)


@pytest.mark.parametrize(
    ("topic_format", "expected"),
    [
        ("${topic}-${timestamp}", "A.orders-20250720"),
        ("${timestamp}", "20250720"),
        ("${topic}", "A.orders"),
        ("all", "all"),
        ("${timestamp}.${timestamp}${topic}$", "20250720.20250720A.orders$"),
        ("${topics}", "${topics}"),
        ("", ""),
    ],
)
def test_a_name_has_topic_and_time(topic_format: str, expected: str) -> None:
    assert dated_name(topic_format, "yyyyMMdd")("A.orders", MS) == expected


@given(
    time_ms=st.integers(-1, LAST),
    pattern=st.lists(
        st.sampled_from(["y", "yy", "yyyy", "M", "MM", "d", "dd", "HH", "H", "mm", "ss", "s"])
        | st.sampled_from(["SSS", "S", "-", ".", "'x'", "'it''s'", "1"]),
        max_size=6,
    ).map("_".join),
)
@example(time_ms=-1, pattern="yyyyMMdd")
def test_the_engines_dates_are_the_same(time_ms: int, pattern: str) -> None:
    assert date_text(pattern)(time_ms) == date_format(pattern)(time_ms)


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)))  # noqa: DTZ001
def test_the_calendar_is_pythons(at: datetime) -> None:
    time_ms = int(at.replace(microsecond=0, tzinfo=UTC).timestamp()) * 1000
    assert date_text("yyyy-MM-dd'T'HH:mm:ss")(time_ms) == f"{at:%Y-%m-%dT%H:%M:%S}".rjust(19, "0")
