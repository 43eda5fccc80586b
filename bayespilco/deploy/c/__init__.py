"""A controller in C: one file and a header in C99, for machines without Python.

    export.save_c(controller, "controller.c")

The file has everything: filter, gate, policy, health, and the numbers that were learned. It allocates nothing and needs
`math.h` only. It is `deploy.controller` once more, and agrees with it to 1e-9 along whole episodes.

To read it, go down this list:

    common.c     the policy, `reset`, and what is known of the next state
    filter.c     update, gate, predict
    raw.c        instead, for a controller without a filter
    main.c       a program for testing, behind a macro
    writing      the numbers as C, and these parts put together
    cost         memory and operations of a step
    measuring    what single precision costs
"""

from bayespilco.deploy.c.cost import Cost, cost
from bayespilco.deploy.c.measuring import single_error
from bayespilco.deploy.c.writing import Source, identifier, source

__all__ = ["Cost", "Source", "cost", "identifier", "single_error", "source"]
