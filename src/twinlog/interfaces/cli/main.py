"""The command `twinlog`: it has all subcommands, and prints each error as one line.

Exit status: 0 = done, 1 = the check or the operation failed, 2 = wrong usage. A traceback is
printed only with `--debug`. The result goes to standard output, all else to standard error.
"""

import click

import twinlog
from twinlog.interfaces.cli.cluster import cluster
from twinlog.interfaces.cli.console import console
from twinlog.interfaces.cli.demo import demo
from twinlog.interfaces.cli.dump_log import dump_log
from twinlog.interfaces.cli.flows import flows
from twinlog.interfaces.cli.kafka_mirrors import mirrors_command
from twinlog.interfaces.cli.mirror_maker import kafka_mirror_maker, mirror_maker
from twinlog.interfaces.cli.readiness import readiness
from twinlog.interfaces.cli.run import run
from twinlog.interfaces.cli.switchover import switchover
from twinlog.interfaces.cli.verify import verify
from twinlog.text import printable


class _OneLineErrors(click.Group):
    """A group that turns its commands' exceptions into one line and status 1."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:  # as of `| head`: click ends without a message
            raise
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            lines = str(error).splitlines() or [type(error).__name__]
            raise click.ClickException(printable(lines[0])) from error


@click.group(cls=_OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(twinlog.__version__, prog_name="twinlog")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Mirror Kafka topics at identical offsets."""


main.add_command(cluster)
main.add_command(console)
main.add_command(demo)
main.add_command(dump_log)
main.add_command(flows)
main.add_command(kafka_mirror_maker)
main.add_command(mirror_maker)
main.add_command(mirror_maker, "connect-mirror-maker")
main.add_command(mirrors_command, "mirrors")
main.add_command(readiness)
main.add_command(run)
main.add_command(switchover)
main.add_command(verify)
