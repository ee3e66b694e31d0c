"""Twin of checkpoint_lines.py; tests/mirror/test_mirror_maker_lines.py has whole lines."""

import pytest

from twinlog.mirror.checkpoint_lines import without_checkpoints, writes_checkpoints
from twinlog.mirror.mirror_maker_file import parse_mirror_maker_file

HEADER = """\
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
A->B.enabled = true
B->A.enabled = true
"""
IN_TRANSACTIONS = "A->B.transaction.producer = true\n"
BY_TIME = "A->B.transforms = r\nA->B.transforms.r.type = TimestampRouter\n"
BY_NAME = """
A->B.transforms = r
A->B.transforms.r.type = RegexRouter
A->B.transforms.r.regex = .*
A->B.transforms.r.replacement = eu-$0
"""
MAPPED = "; without a map of offsets no checkpoints are written (A->B): write A->B.twinlog"
IMPOSSIBLE = "; no checkpoints are written (A->B), since offsets are not translated for Timestamp"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        (IN_TRANSACTIONS, MAPPED),
        (BY_NAME, MAPPED),
        (BY_TIME, IMPOSSIBLE),
        ("A->B.twinlog.transform.sql = SELECT record FROM records\n", IMPOSSIBLE),
        (f"{IN_TRANSACTIONS}twinlog.offset.map = true\n", ""),
        (f"{BY_NAME}sync.group.offsets.enabled = true\n", ""),
        (f"{IN_TRANSACTIONS}emit.checkpoints.enabled = false\n", ""),
    ],
)
def test_flows_without_checkpoints(text: str, expected: str) -> None:
    flows = parse_mirror_maker_file(HEADER + text, lambda _, value: value).flows
    found = without_checkpoints(flows)
    assert found.startswith(expected)
    assert bool(found) == bool(expected)
    assert writes_checkpoints(flows[0]) == (not found and "= false" not in text)
    assert writes_checkpoints(flows[1]) == ("\nemit.checkpoints.enabled = false" not in text)


def test_several_flows() -> None:
    """Goal: one text for all flows of a line, with what each of them needs."""
    flows = parse_mirror_maker_file(
        f"{HEADER}transaction.producer = true\n", lambda _, value: value
    ).flows
    assert without_checkpoints(flows) == (
        "; without a map of offsets no checkpoints are written (A->B, B->A): write "
        "SOURCE->TARGET.twinlog.offset.map = true"
    )
    text = f"{HEADER}{BY_TIME}B->A.transaction.producer = true\n"
    mixed = without_checkpoints(parse_mirror_maker_file(text, lambda _, value: value).flows)
    assert "(B->A): write B->A.twinlog.offset.map = true; no checkpoints are" in mixed
    assert mixed.endswith("without twinlog.transform.routes=false")


def test_settings_that_need_a_map() -> None:
    (flow, _) = parse_mirror_maker_file(HEADER + IN_TRANSACTIONS, lambda _, value: value).flows
    assert "no checkpoints are" in without_checkpoints([flow], "groups")
    assert "no offset syncs are" in without_checkpoints([flow], "emit.offset-syncs.enabled")
    assert without_checkpoints([flow], "topics") == ""
