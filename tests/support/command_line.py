"""The `hpmoe` command, run in this process."""

from hpmoe import cli


def run(capsys, *args):
    """(exit status, stdout, stderr) of a command line."""
    status = cli.main(args)
    return status, *capsys.readouterr()
