"""`twinlog run`: what is wrong with its arguments is said in one line, before anything starts."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from twinlog.cli.main import main

NOBODY = ("--bootstrap-server", "127.0.0.1:1")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["run", *NOBODY, *arguments])


def refused(done: Result) -> str:
    """The one line of an error."""
    assert (done.exit_code, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    return line


def test_an_unknown_lane_setting() -> None:
    """Goal: its name, and the one that was meant."""
    line = refused(run("--lane-property", "lane.bufer.bytes=1"))
    assert (
        line
        == "Error: lane.bufer.bytes is not a setting of a lane; did you mean lane.buffer.bytes?"
    )


def test_a_malformed_lane_setting_of_a_file(tmp_path: Path) -> None:
    """Goal: the value and what is allowed; a property on the command line wins over the file's."""
    file = tmp_path / "lanes.properties"
    file.write_text("mirror.num.replica.fetchers=many\nlane.fillers=2\n")
    line = refused(run("--lane-config", str(file)))
    assert line.startswith("Error: mirror.num.replica.fetchers is 'many': allowed is")
    line = refused(
        run(
            *("--lane-config", str(file)),
            *("--lane-property", "mirror.num.replica.fetchers=4"),
            *("--lane-property", "lane.fillers=0"),
        )
    )
    assert line.startswith("Error: lane.fillers is '0': allowed is")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--lane-property", "lane.fillers"),
        ("--lane-config", "/there/is/no/such/file"),
        ("--conf", "=x"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    """Goal: exit status 2, and the flag is named."""
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert arguments[0] in done.stderr.splitlines()[-1]
