"""What every mutant's process needs and no mutant changes: loaded once, in the process that the others are forked from.

Loading the kernels and their libraries takes longer than playing a script. A module that a mutant changes
must not be loaded here; `install` refuses one that is.
"""

from __future__ import annotations

import gc

import pyarrow  # noqa: F401

from llog.formats.warm_up import warm_up

warm_up()
# The garbage collectors of the forked processes leave the shared pages alone.
gc.freeze()
