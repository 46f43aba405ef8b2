"""The texts and tables of the documentation that are computed from stored results, one file per subject.

A page names a function in `<!--text NAME: ARGUMENT: ARGUMENT-->`; every public function of these files can be named.
"""

from collections.abc import Callable
from inspect import getmembers, isfunction

from pages import (
    analyses,
    demo,
    evidence,
    gates,
    methods,
    mixers,
    models,
    networks,
    recipe,
    reproduced,
    simulation,
    study,
    timing,
    training,
    trust,
)

SUBJECTS = (
    *(analyses, demo, evidence, gates, methods, mixers, models, networks, recipe, reproduced, simulation, study),
    *(timing, training, trust),
)
TEXTS: dict[str, Callable[..., str]] = {
    name: function
    for subject in SUBJECTS
    for name, function in getmembers(subject, isfunction)
    if function.__module__ == subject.__name__ and not name.startswith("_")
}
