"""`twinlog verify`: the text of its report."""

import importlib

import pytest
from click.testing import CliRunner

from twinlog.interfaces.cli.main import main
from twinlog.kafka.types import TopicPartition
from twinlog.operations.verification_report import Counts, LogReport, RemoteReport, Verification


def test_all_counts_of_the_recorded_map_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: entries that were not compared do not pass for entries that agree."""
    remote = RemoteReport(
        flow="a-to-b",
        partition=TopicPartition("a.t", 0),
        counts=Counts(compared=7),
        recorded_map=Counts(compared=7, differs=0, not_seen=3),
    )
    log = LogReport(
        partition=TopicPartition("t", 0),
        counts=Counts(compared=7),
        differences=(),
        unseen=(),
        remote=remote,
    )
    module = importlib.import_module("twinlog.interfaces.cli.verify")
    monkeypatch.setattr(module, "call", lambda *_: Verification(logs=(log,)))
    done = CliRunner().invoke(main, ["verify", "--bootstrap-server", "localhost:1"])
    assert done.exit_code == 0, done.output
    assert "recorded map: 7 records agree, 0 differ, 3 not seen" in done.output


def test_a_mirror_that_was_not_compared_is_named_with_status_3(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = importlib.import_module("twinlog.interfaces.cli.verify")
    verified = Verification(logs=(), unverified={"a-to-b": "its settings are malformed"})
    monkeypatch.setattr(module, "call", lambda *_: verified)
    done = CliRunner().invoke(main, ["verify", "--bootstrap-server", "localhost:1"])
    assert done.exit_code == 3, done.output
    assert "NOT SEEN any log of mirror a-to-b: its settings are malformed" in done.output
    assert "0 offsets were not seen, nor any log of 1 mirror(s)" in done.output
