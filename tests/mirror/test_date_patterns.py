"""Date patterns of Java; tests/mirror/test_record_transforms_java.py compares them with Java's."""

import pytest

from twinlog.mirror.date_patterns import date_format

MS = 1_753_000_059_007  # 2025-07-20 08:27:39.007


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("yyyyMMdd", "20250720"),
        ("yyyy-MM-dd'T'HH.mm.ss.SSS", "2025-07-20T08.27.39.007"),
        ("yy.M.d.H", "25.7.20.8"),
        ("yyyyy''dd", "02025'20"),
        ("'it''s' y", "it's 2025"),
        ("", ""),
    ],
)
def test_numbers_and_literals(pattern: str, expected: str) -> None:
    assert date_format(pattern)(MS) == expected


@pytest.mark.parametrize("pattern", ["MMM", "ww", "yyyy'", "EEE", "Z"])
def test_what_depends_on_a_locale_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="a date pattern"):
        date_format(pattern)


def test_a_time_without_a_date_is_an_error() -> None:
    with pytest.raises(OverflowError):
        date_format("yyyy")(1 << 60)
