"""The one error for input that cannot be used."""

from pathlib import Path


class BadInput(Exception):  # noqa: N818 - the name is public and says what it is
    """A file or folder that is refused: which one, why, and what to do. The command line exits with 3."""

    def __init__(self, path: str | Path, reason: str, remedy: str) -> None:
        super().__init__(f"{path}: {reason}; {remedy}")
        self.path = Path(path)
        self.reason = reason
        self.remedy = remedy

    def __reduce__(self) -> tuple[type["BadInput"], tuple[Path, str, str]]:
        return BadInput, (self.path, self.reason, self.remedy)
