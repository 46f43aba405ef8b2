"""Runs for tests: settings by their short names, and a run with what tests look at close by."""

from fheat.training.run_folder import RunFolder
from fheat.training.settings_sources import from_flat, make_settings, nest
from fheat.training.train import begin, finish
from fheat.training.trainer import Observer

SMALL = {"labelled": 2, "network": "miniature", "patch_size": (16, 16, 16)}
"""Settings with which an iteration takes ten milliseconds."""
SMALL_WORDS = ["--labelled", "2", "--network", "miniature", "--patch-size", "16", "16", "16", "--device", "cpu"]
"""The same for the command line."""


def settings_of(**values):
    """Return settings from short names, dotted names and those from before there were sections."""
    return make_settings(from_flat(values))


def changed(settings, **values):
    """Return the settings with some of them changed."""
    sections = settings.model_dump()
    for section, content in nest(values).items():
        sections[section] |= content
    return make_settings(sections)


def content_of(folder):
    """Return the content of every file of a run folder by path, without who wrote it last."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and ".claims" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


class StopAfter(Observer):
    """Asks a run to stop after an iteration."""

    def __init__(self, iteration):
        self.iteration = iteration

    def before(self, trainer):
        if trainer.done == self.iteration - 1:
            trainer.stop()


class Run:
    """A run in its folder, prepared as `fheat.train` prepares it, and not yet begun."""

    def __init__(self, settings, folder, *, resume=False, device="cpu", **options):
        self.settings, self.folder = settings, RunFolder(folder)
        self.trainer = begin(settings, self.folder, resume=resume, device=device, **options)
        self.folder.release()  # a test may leave a run and begin again, in one process
        self.step, self.stop, self.scans = self.trainer.step, self.trainer.stop, self.trainer.prepared.scans

    def train(self):
        finish(self.trainer, self.folder)
        return self.folder.path / "final"

    @property
    def done(self):
        return self.trainer.done

    @done.setter
    def done(self, iterations):
        self.trainer.done = iterations

    @property
    def best(self):
        return self.trainer.best
