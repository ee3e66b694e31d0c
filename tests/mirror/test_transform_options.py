"""Twin of transform_options.py: all mistakes of a transform, at once."""

import pytest

from twinlog.kafka.errors import UserError
from twinlog.mirror.transform_options import TransformOptions, WrongProperty, joined


def test_what_is_right_is_returned_and_nothing_is_refused() -> None:
    options = TransformOptions("t.x.", {"a": "1", "list": "b, c", "flag": " TRUE", "empty": ""})
    assert options.required("a") == "1"
    assert options.names("list", required=True) == ("b", "c")
    assert options.flag("flag", default=False)
    assert options.flag("none", default=True)
    assert options.text("empty", "d") == ""
    assert options.text("other", "d") == "d"
    options.finish()


def test_values_are_trimmed_as_java_does() -> None:
    """A properties file keeps white space at the end of a value, and `ConfigDef` removes it."""
    options = TransformOptions("t.x.", {"a": " id \t\n\x00", "b": "\u00a0", "blank": " "})
    assert options.required("a") == "id"
    assert options.required("b") == "\u00a0"
    assert options.required("blank") == ""
    assert [wrong.name for wrong in options.wrong] == ["t.x.blank"]


def test_all_mistakes_are_noted_with_their_properties() -> None:
    """Goal: reading goes on behind a mistake, with something harmless."""
    options = TransformOptions("t.x.", {"list": "b,,c", "flag": "perhaps", "wanted": ""})
    assert options.required("wanted") == ""
    assert options.names("list") == ()
    assert options.names("gone", required=True) == ()
    assert options.flag("flag", default=True)
    options.refuse("flag", "more")
    options.missing("other", "flag needs it")
    with pytest.raises(UserError) as raised:
        options.finish()
    expected = [
        ("wanted", "t.x.wanted is missing"),
        ("list", "t.x.list is 'b,,c': expected a list without empty items"),
        ("gone", "t.x.gone is missing: expected names, comma-separated"),
        ("flag", "t.x.flag is 'perhaps': expected true or false"),
        ("flag", "t.x.flag is 'perhaps': expected more"),
        ("other", "t.x.other is missing: flag needs it"),
    ]
    assert [(one.name, str(one.error)) for one in options.wrong] == [
        (f"t.x.{name}", text) for name, text in expected
    ]
    assert str(raised.value) == "; ".join(text for _, text in expected)


def test_properties_that_nothing_reads_are_refused() -> None:
    options = TransformOptions("t.x.", {"replacment": "a", "zzz": "b"})
    options.text("replacement")
    with pytest.raises(UserError, match="did you mean"):
        options.finish()
    assert [one.name for one in options.wrong] == ["t.x.replacment", "t.x.zzz"]


def test_a_class_that_is_not_known() -> None:
    options = TransformOptions("t.x.", {})
    error = options.unknown_class(" Mine ", ("A", "B"))
    assert str(error).startswith("t.x.type is 'Mine': expected one of A, B; twinlog runs no Java")
    assert options.wrong == [WrongProperty("t.x.type", error)]


def test_one_error_stays_as_it_is() -> None:
    error = UserError("a", hint="b")
    assert joined([WrongProperty("x", error)]) is error
    assert str(joined([WrongProperty("x", error), WrongProperty("y", UserError("c"))])) == "a; b; c"
