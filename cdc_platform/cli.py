"""`cdc-platform`: the root of the command line.

Belongs here: which commands there are and where they live, and how an error ends a command.
Does not: a command. Each family has a module of its own, imported when one of its commands is asked for,
so that `--help` and `status` do not wait for Spark's or Dagster's libraries.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from cdc_platform.errors import CdcError

# Command: the module that holds it, under the command's own name (a dash becomes an underscore).
_COMMANDS = {
    "up": "cdc_platform.stack.commands",
    "down": "cdc_platform.stack.commands",
    "restart": "cdc_platform.stack.commands",
    "status": "cdc_platform.stack.commands",
    "logs": "cdc_platform.stack.commands",
    "service": "cdc_platform.stack.service_commands",
    "demo": "cdc_platform.demo.commands",
    "doctor": "cdc_platform.commands",
    "recapture": "cdc_platform.commands",
    "reload": "cdc_platform.commands",
    "check": "cdc_platform.commands",
    "merge": "cdc_platform.commands",
    "health": "cdc_platform.maintenance_commands",
    "maintain": "cdc_platform.maintenance_commands",
    "dead-letters": "cdc_platform.dead_letter_commands",
}


class _Root(click.Group):
    """Finds commands in their modules, and turns a CdcError into its text and its exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature.
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(_COMMANDS[cmd_name]), cmd_name.replace("-", "_"))
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CdcError as error:
            click.echo(str(error), err=True)
            sys.exit(error.exit_code)


@click.group(cls=_Root)
@click.version_option(package_name="cdc-platform")
@click.option(
    "--project",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder that holds tables.yaml [default: $CDC_PLATFORM_PROJECT, else the current folder].",
)
@click.pass_context
def main(ctx: click.Context, project: Path | None) -> None:
    """Keep change-data tables in Apache Iceberg correct, fast to read and cheap to keep.

    Exit codes: 0 done or yes, 1 crash, 2 usage or configuration, 3 diverged, 4 unavailable, 5 invariant
    broken.
    """
    ctx.obj = project


if __name__ == "__main__":
    main()
