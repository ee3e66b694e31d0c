"""`mirror-maker --check` and `flows create` have real Spark analyse queries and functions."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tiny_registry import tiny_registry

from twinlog.interfaces.cli.main import main
from twinlog.kafka.errors import Retriable
from twinlog.operations import query_analysis

pytestmark = [pytest.mark.spark]

JSON = {"value.format": "json", "value.schema": "id BIGINT, card STRING"}
SAME = {"sql": "SELECT record FROM records"}
COLUMNS = "record, topic, partition, offset, timestamp, key, value, headers"
AVRO = {"value.format": "avro", "value.subject": "orders-value"}


def written(folder: Path, flows: Mapping[str, Mapping[str, str]]) -> Path:
    """A file with a flow to Z from each of these aliases, with the properties of its transform."""
    lines = [f"clusters = {', '.join([*flows, 'Z'])}", "emit.heartbeats.enabled = false"]
    lines += [f"{alias}.bootstrap.servers = {alias.lower()}:9092" for alias in [*flows, "Z"]]
    for alias, properties in flows.items():
        lines.append(f"{alias}->Z.enabled = true")
        lines += [f"{alias}->Z.twinlog.transform.{name} = {v}" for name, v in properties.items()]
    file = folder / "mm2.properties"
    file.write_text("\n".join([*lines, ""]))
    return file


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def test_wrong_queries_are_errors_of_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: Spark's words, the property and its line; what this host lacks is no error."""
    called, prices, broken = (tmp_path / name for name in ("called", "prices.csv", "broken.csv"))
    monkeypatch.setenv("CALLED", str(called))
    prices.write_text("id,price\n1,9.50\n")
    broken.write_text("price,id\n9.50,1\n")
    join = "SELECT record, struct(value.id, p.price) AS value FROM records JOIN p ON p.id = value."
    schema = {"tables.p.schema": "id BIGINT, price DECIMAL(10, 2)"}
    with tiny_registry() as registry:
        registry.add(
            "orders-value",
            {"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]},
        )
        avro = {**AVRO, "registry.url": registry.url}
        flows: dict[str, dict[str, str]] = {
            "GOOD": {"sql": f"{join}id", "tables.p": str(prices), **JSON},
            "AVRO": {"sql": "SELECT record FROM records WHERE value.id > 1", **avro},
            "FUNC": {"function": "frame_functions:noted"},
            "COLUMN": {"sql": f"{join}idd", "tables.p": str(prices), **JSON},
            "FIELD": {"sql": "SELECT record FROM records WHERE value.card = ''", **avro},
            "SYNTAX": {"sql": "SELEC record FROM records"},
            "LACKS": {"sql": "SELECT value FROM records"},
            "DDL": {**SAME, "value.format": "json", "value.schema": "id WHAT WHAT"},
            "HEADER": {**SAME, "tables.p": str(broken), **schema},
            "LIST": {"function": "frame_functions:broken"},
            "NAME": {"function": "frame_functions:missing"},
            "SUBJECT": {**SAME, **avro, "value.subject": "other"},
            "PATH": {**SAME, "tables.p": "/nowhere/p.csv"},
            "MODULE": {"function": "no_such_module:f"},
            "AWAY": {**SAME, **AVRO, "registry.url": "http://127.0.0.1:9"},
        }
        file = written(tmp_path, flows)
        result = run("mirror-maker", "--check", file)
    assert result.exit_code == 1
    assert called.read_text() == f"{COLUMNS.replace(', ', ',')}\n"
    texts = file.read_text().splitlines()
    lines = {text.partition(" = ")[0]: number for number, text in enumerate(texts, 1)}
    head, *messages = result.stderr.splitlines()
    assert head.startswith("Spark analyses the query or function of GOOD->Z, AVRO->Z, FUNC->Z,")
    expected = {
        "COLUMN->Z.twinlog.transform.sql": "[FIELD_NOT_FOUND] No such struct field `idd` in",
        "FIELD->Z.twinlog.transform.sql": "[FIELD_NOT_FOUND] No such struct field `card` in `id`",
        "SYNTAX->Z.twinlog.transform.sql": "[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'",
        "LACKS->Z.twinlog.transform.sql": "the result lacks the column record",
        "DDL->Z.twinlog.transform.value.schema": "[PARSE_SYNTAX_ERROR]",
        "HEADER->Z.twinlog.transform.tables.p": "CSV header does not conform to the schema",
        "LIST->Z.twinlog.transform.function": "frame_functions:broken returned list",
        "NAME->Z.twinlog.transform.function": "frame_functions:missing cannot be imported",
        "SUBJECT->Z.twinlog.transform.value.subject": "the schema registry",
    }
    rows = [line.split()[:3] for line in result.stdout.splitlines()]
    errors = [message for message in messages if message.startswith("Error: ")]
    assert len(errors) == len(expected)
    for (key, text), error in zip(expected.items(), errors, strict=True):
        assert error.startswith(f"Error: line {lines[key]}: {key}: {text}"), error
        assert "; correct the " in error or "; expected " in error, error
        assert [str(lines[key]), "error", key] in rows
    assert COLUMNS in errors[0]
    missing = {
        "PATH->Z.twinlog.transform.sql": (
            "twinlog.transform.tables.p: [PATH_NOT_FOUND] Path does not exist: file:/nowhere/p.csv"
        ),
        "MODULE->Z.twinlog.transform.function": "twinlog.transform.function: no_such_module:f ",
        "AWAY->Z.twinlog.transform.sql": "twinlog.transform.value.subject: the schema registry",
    }
    warnings = [message for message in messages if message.startswith("Warning: ")]
    assert len(warnings) == len(missing)
    for (key, text), warning in zip(missing.items(), warnings, strict=True):
        assert warning.startswith(f"Warning: {key} was not analysed here: {text}"), warning
        assert warning.endswith("; check it on a host of a lane")
    assert len(messages) == len(errors) + len(warnings)


def test_a_right_query_passes_and_a_host_without_spark_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: exit status 0 in both cases, with a warning in the second one."""
    file = written(tmp_path, {"A": SAME})
    result = run("mirror-maker", "--check", file)
    told = "Spark analyses the query or function of A->Z"
    assert (result.exit_code, result.stderr.splitlines()) == (0, [told])
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    result = run("mirror-maker", "--check", file)
    _, warning = result.stderr.splitlines()
    assert warning.startswith("Warning: A->Z.twinlog.transform.sql was not analysed here: ")
    assert result.exit_code == 0


def test_without_queries_no_spark_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a check of other files takes no longer than before, nor does a run."""
    started: list[object] = []

    class Ended:
        """A process that ends before it has answered."""

        def __init__(self, *grants: object) -> None:
            started.append(grants)

        async def analyse(self, _: object) -> None:
            raise Retriable("it has ended")

        async def close(self) -> None:
            """Nothing is left."""

    monkeypatch.setattr(query_analysis, "DataFrameProcess", Ended)
    result = run("mirror-maker", "--check", written(tmp_path, {"A": {}}))
    assert (result.exit_code, result.stderr, started) == (0, "", [])
    result = run("mirror-maker", "--check", written(tmp_path, {"A": SAME}))
    assert len(started) == 1
    assert "Warning: A->Z.twinlog.transform.sql was not analysed here: it has ended" in (
        result.stderr
    )


@pytest.mark.parametrize("by_file", [True, False])
def test_a_flow_with_a_wrong_query_is_not_created(tmp_path: Path, by_file: bool) -> None:
    """Goal: it is refused before anything is connected to."""
    wrong = "SELECT nothing FROM records"
    if by_file:
        arguments = ["--file", str(written(tmp_path, {"A": {"sql": wrong}}))]
    else:
        arguments = ["--bootstrap-server", "z:9092", "--source", "A", "--target", "Z"]
        arguments += ["--source-bootstrap-server", "a:9092"]
        arguments += ["--config", f"twinlog.transform.sql={wrong}"]
    result = run("flows", "create", *arguments)
    assert result.exit_code == 1
    assert "A->Z.twinlog.transform.sql: [UNRESOLVED_COLUMN.WITH_SUGGESTION]" in result.stderr
    assert "nothing" in result.stderr
    assert "correct the query" in result.stderr
