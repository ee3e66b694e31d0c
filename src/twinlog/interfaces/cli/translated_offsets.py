"""Prints what `twinlog flows translate` has found."""

from collections.abc import Iterable
from typing import Final

from twinlog.interfaces.cli.output import print_json, say
from twinlog.interfaces.cli.tables import print_table
from twinlog.operations.flow_results import GroupCheckpoints, TranslatedOffsets
from twinlog.text import few

OFFSET_COLUMNS: Final = ("SOURCE", "SOURCE-OFFSET", "TARGET", "TARGET-OFFSET", "ANSWER")
CHECKPOINT_COLUMNS: Final = (*OFFSET_COLUMNS[:-1], "CHECKPOINT-AGE", OFFSET_COLUMNS[-1])
"""Where the offsets are from checkpoints."""


def print_translated(found: TranslatedOffsets, *, as_json: bool) -> None:
    """Print translated offsets; standard error has what is to be known of checkpoints.

    Args:
        found: the result.
        as_json: print it as JSON, not as a table.
    """
    if found.checkpoints is not None:
        _say_checkpoints(found, found.checkpoints)
    if as_json:
        print_json(found, indent=1)
    elif found.checkpoints is not None:
        print_table(CHECKPOINT_COLUMNS, _checkpoint_rows(found))
    else:
        print_table(OFFSET_COLUMNS, _offset_rows(found))


def _say_checkpoints(found: TranslatedOffsets, checkpoints: GroupCheckpoints) -> None:
    """Say that the offsets are from checkpoints, and what these do not show."""
    where = f"these are the offsets of group {found.group} in the checkpoints of "
    say(f"{where}{checkpoints.topic}; what it has committed since is not known")
    if missing := checkpoints.without_checkpoint:
        say(
            f"Warning: no checkpoint of the group in {few(missing)}: it is not known whether it "
            "has committed an offset there"
        )
    if unreadable := checkpoints.unreadable:
        say(f"Warning: checkpoints of the group cannot be read: {few(unreadable, '; ')}")


def _offset_rows(found: TranslatedOffsets) -> Iterable[tuple[object, ...]]:
    for one in found.offsets:
        answer = one.answer.name.replace("_", " ").lower()
        yield (
            "-" if one.source is None else one.source,
            "-" if one.source_offset is None else one.source_offset,
            "-" if one.target is None else one.target,
            "-" if one.target_offset is None else one.target_offset,
            f"{answer}: {one.text}" if one.text else answer,
        )


def _checkpoint_rows(found: TranslatedOffsets) -> Iterable[tuple[object, ...]]:
    for one, row in zip(found.offsets, _offset_rows(found), strict=True):
        assert one.checkpoint is not None
        age_ms = one.checkpoint.age_ms
        age = "dated ahead" if age_ms is None else f"{age_ms / 1000:.0f} s"
        yield (*row[:-1], age, row[-1])
