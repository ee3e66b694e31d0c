"""The console scripts.

What a command imports stays until it ends. Looking through all of that for garbage, again and again
while it grows, is an eighth of the time that a command takes to start: so it begins afterwards.
"""

import gc


def kafka_mirrors() -> None:
    """`kafka-mirrors`."""
    gc.disable()
    from twinlog.cli.kafka_mirrors import mirrors_command  # noqa: PLC0415

    _collect_from_here()
    mirrors_command(prog_name="kafka-mirrors")


def twinlog() -> None:
    """`twinlog`."""
    gc.disable()
    from twinlog.cli.main import main  # noqa: PLC0415

    _collect_from_here()
    main()


def _collect_from_here() -> None:
    gc.freeze()
    gc.enable()
