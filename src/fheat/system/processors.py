"""How many processors this process may use."""

import os


def processors() -> int:
    """Return the number of processors that this process may use, and at least 1.

    A job of a cluster or a container is often bound to a few of the processors of its machine; where the system cannot
    say so, all count.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
