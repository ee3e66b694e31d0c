"""`twinlog run` and `verify`: an error is reported in one line, before anything starts."""

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from twinlog.interfaces.cli.main import main

NOBODY = ("--bootstrap-server", "127.0.0.1:1")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["run", *NOBODY, *arguments])


def error_line(done: Result) -> str:
    """Return the one line of an error."""
    assert (done.exit_code, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    return line


def test_an_unknown_lane_setting_is_named_with_a_suggestion() -> None:
    """Goal: the error names it, and the setting that was meant."""
    line = error_line(run("--lane-property", "lane.bufer.bytes=1"))
    assert (
        line
        == "Error: lane.bufer.bytes is not a setting of a lane; did you mean lane.buffer.bytes?"
    )


def test_a_malformed_lane_setting_is_named_with_its_value(tmp_path: Path) -> None:
    """Goal: the error has the value and what is allowed; the command line wins over the file."""
    file = tmp_path / "lanes.properties"
    file.write_text("mirror.num.replica.fetchers=many\nlane.positions.at.once=2\n")
    line = error_line(run("--lane-config", str(file)))
    assert line.startswith("Error: mirror.num.replica.fetchers is 'many': expected")
    line = error_line(
        run(
            *("--lane-config", str(file)),
            *("--lane-property", "mirror.num.replica.fetchers=4"),
            *("--lane-property", "lane.positions.at.once=0"),
        )
    )
    assert line.startswith("Error: lane.positions.at.once is '0': expected")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--lane-property", "lane.positions.at.once"),
        ("--lane-config", "/there/is/no/such/file"),
        ("--conf", "=x"),
        ("--metrics-address", "here"),
        ("--metrics-address", "127.0.0.1:65536"),
        ("--log-format", "xml"),
    ],
)
def test_usage_errors_exit_with_status_2(arguments: tuple[str, ...]) -> None:
    """Goal: exit status 2, and the flag is named."""
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert arguments[0] in done.stderr.splitlines()[-1]


def test_a_metrics_port_in_use_is_named() -> None:
    """Goal: the error has the address and the cause, before any connection is opened."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = error_line(run("--metrics-address", f":{port}"))
    assert line.startswith(f"Error: cannot serve metrics at 127.0.0.1:{port}: ")
    assert "already in use" in line


@pytest.fixture
def hasty(tmp_path: Path) -> Path:
    """Return client properties with short timeouts."""
    file = tmp_path / "client.properties"
    file.write_text("default.api.timeout.ms=3000\n")
    return file


@pytest.mark.parametrize("command", ["run", "verify"])
def test_an_unreachable_destination_is_named_with_the_cause(command: str, hasty: Path) -> None:
    """Goal: each address is named, with its cause: nothing listens, or it is no broker."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        servers = f"127.0.0.1:1,127.0.0.1:{port}"
        done = CliRunner().invoke(
            main, [command, "--bootstrap-server", servers, "--command-config", str(hasty)]
        )
    line = error_line(done)
    assert line.startswith("Error: cluster destination: no bootstrap server responds: ")
    assert "127.0.0.1:1: Connection refused" in line
    assert f"127.0.0.1:{port}: no response within 1 s" in line


@pytest.mark.parametrize("command", ["run", "verify"])
def test_an_invalid_address_is_named(command: str, hasty: Path) -> None:
    """Goal: the error shows an address; `:9094` is on this host, as with Kafka's own tools."""
    done = CliRunner().invoke(main, [command, "--bootstrap-server", "host"])
    assert error_line(done).startswith("Error: bootstrap.servers is 'host': expected HOST:PORT")
    more = ("--command-config", str(hasty))
    done = CliRunner().invoke(main, [command, "--bootstrap-server", ":1", *more])
    assert "localhost:1: Connection refused" in error_line(done)


def test_an_invalid_topic_expression_is_a_usage_error() -> None:
    """Goal: wrong usage, with the expression and its error."""
    done = CliRunner().invoke(main, ["verify", *NOBODY, "--topic", "*"])
    assert done.exit_code == 2
    assert "--topic: '*': nothing to repeat" in done.stderr.splitlines()[-1]
