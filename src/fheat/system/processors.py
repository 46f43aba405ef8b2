"""How many processors this process may use."""

import os


def processors() -> int:
    """Return the number of processors that this process is bound to; where the system cannot say so, of all.

    A job of a cluster is often bound to a few processors of its machine. A container's share of their time is another
    limit, which does not count here.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
