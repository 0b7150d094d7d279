"""`python -m hpmoe` is the command `hpmoe`."""

import sys

from hpmoe.cli import main

sys.exit(main())
