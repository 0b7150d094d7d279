"""The `hpmoe` command and the scripts of benchmarks, run in this process."""

import script

from hpmoe import cli


def run(capsys, *args):
    """(exit status, stdout, stderr) of a command line."""
    status = cli.main(args)
    return status, *capsys.readouterr()


def run_script(capsys, module, *args):
    """Runs a script of examples/benchmarks like a command."""
    status = script.main(module, args)
    return status, *capsys.readouterr()
