"""Twin of twinlog.class_archives: when an archive is created, and when it is used."""

import os
from pathlib import Path

import pytest

from twinlog.class_archives import Train, archive_flags, archive_of, make_archive

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of this test."""
    monkeypatch.setenv("TWINLOG_CACHE", str(tmp_path))


def writing(content: str, runs: list[str]) -> Train:
    """A training run whose JVM writes this at its end, or nothing."""

    def train(flags: tuple[str, ...]) -> None:
        runs.append(content)
        (option,) = [flag for flag in flags if flag.startswith("-XX:ArchiveClassesAtExit=")]
        if content:
            Path(option.split("=")[1]).write_text(content)

    return train


def test_each_program_has_an_archive_for_its_jars() -> None:
    """Other jars, or another program, have an archive of their own."""
    found = {archive_of(*each) for each in (("spark", "a"), ("spark", "b"), ("kafka", "a"))}
    assert len(found) == 3
    assert archive_of("spark", "a") in found


def test_an_archive_is_used_once_it_exists() -> None:
    """Goal: without a training run a program starts as ever."""
    archive = archive_of("spark", "jars")
    assert archive_flags(archive) == ()
    make_archive(archive, "Spark", writing("classes", []))
    assert f"-XX:SharedArchiveFile={archive}" in archive_flags(archive)


def test_there_is_one_training_run(capsys: pytest.CaptureFixture[str]) -> None:
    """A second start trains nothing, also where this Java could write no archive."""
    for content, jars in (("classes", "a"), ("", "b")):
        archive, runs = archive_of("spark", jars), list[str]()
        make_archive(archive, "Spark", writing(content, runs))
        make_archive(archive, "Spark", writing(content, runs))
        assert runs == [content]
        assert (archive_flags(archive) == ()) == (not content)
    assert capsys.readouterr().err.count("quick starts of Spark") == 2


def test_an_archive_of_former_jars_is_replaced() -> None:
    """The JVM ignores the archive of jars that were installed again since."""
    archive, runs = archive_of("spark", "jars"), list[str]()
    make_archive(archive, "Spark", writing("former", runs))
    os.utime(archive, (1000, 1000))
    make_archive(archive, "Spark", writing("classes", runs), newer_than=999)
    make_archive(archive, "Spark", writing("classes", runs), newer_than=1001)
    assert runs == ["former", "classes"]
    assert archive.read_text() == "classes"


def test_a_training_run_that_fails_leaves_nothing() -> None:
    """Goal: a later start tries again."""
    archive = archive_of("spark", "jars")

    def fail(_flags: tuple[str, ...]) -> None:
        raise RuntimeError("no Spark")

    with pytest.raises(RuntimeError):
        make_archive(archive, "Spark", fail)
    assert [path.name for path in archive.parent.iterdir()] == [".lock"]
