"""Options that several commands have: the name of a mirror or flow."""

import click
import pytest

from twinlog.interfaces.cli import kafka_mirrors
from twinlog.interfaces.cli.readiness import readiness
from twinlog.interfaces.cli.switchover import switchover
from twinlog.interfaces.cli.verify import verify

SERVER = ("--bootstrap-server", "h:1")


@pytest.mark.parametrize("command", [readiness, switchover, verify])
@pytest.mark.parametrize("name", ["A->B", "A-to-B"])
def test_commands_take_both_names_of_a_flow(command: click.Command, name: str) -> None:
    context = command.make_context(command.name, [*SERVER, "--mirror", name])
    assert context.params["mirror"] == "A-to-B"


def mirror_of(action: str, name: str) -> str:
    """The mirror's name as an action of kafka-mirrors gets it."""
    options = dict.fromkeys((*kafka_mirrors.ACTIONS, *kafka_mirrors.OF_ACTIONS))
    needs = kafka_mirrors.ACTIONS[action].needs
    given = {**options, **dict.fromkeys(needs, "given"), action: True, "mirror": name}
    return kafka_mirrors._parse(given, as_json=False)[1].mirror


@pytest.mark.parametrize("action", sorted({*kafka_mirrors.ACTIONS} - {"create", "list"}))
def test_actions_of_kafka_mirrors_take_both_names_of_a_flow(action: str) -> None:
    assert mirror_of(action, "A->B") == mirror_of(action, "A-to-B") == "A-to-B"


def test_a_mirror_cannot_be_created_with_the_arrow_of_a_flow() -> None:
    """Goal: `--create` refuses the name, as before, and makes no mirror of another name."""
    assert mirror_of("create", "A->B") == "A->B"
