"""Every error that cdc_platform raises on purpose, split by what the caller does next.

    CdcError(what, *, where, action)   prints all three parts; keeps them as fields
    ├── ConfigError         the operator edits configuration or the source; never retried
    ├── UnavailableError    no answer, and nothing was committed; retry with back-off, up to a limit
    ├── ConflictError       another writer's commit won; read again, plan again, up to a limit
    ├── CommitUnknownError  the commit may have landed; read the table first, never retry blind
    ├── InvariantError      state breaks a rule we rely on; stop writing, call a person
    │   └── FencedError     a newer writer owns what we write; stop for good, a person decides who goes on
    └── LimitError          a bound that we set was reached; the action names the setting

Belongs here: the tree and the exit code of each branch. Does not: Dagster's view of it
(`orchestration/failures.py`). Messages hold keys, counts and ids, never a row's values.
"""


class CdcError(Exception):
    """An error with its place, what happened there, and what to do next."""

    exit_code = 1

    def __init__(self, what: str, *, where: str, action: str) -> None:
        super().__init__(f"{where}: {what}. {action}.")
        self.what = what
        self.where = where
        self.action = action

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with the keyword arguments: Dagster and multiprocessing carry errors across processes."""
        return _rebuild, (type(self), self.what, self.where, self.action)


def _rebuild(kind: type[CdcError], what: str, where: str, action: str) -> CdcError:
    return kind(what, where=where, action=action)


class ConfigError(CdcError):
    """A declaration, or the source's set-up, is wrong; an operator has to change it."""

    exit_code = 2


class UnavailableError(CdcError):
    """A service gave no answer and nothing was committed."""

    exit_code = 4


class ConflictError(CdcError):
    """Another writer's commit won."""

    exit_code = 4


class CommitUnknownError(CdcError):
    """A commit was sent and its outcome is not known."""

    exit_code = 4


class InvariantError(CdcError):
    """Stored state breaks a rule that the platform relies on."""

    exit_code = 5


class FencedError(InvariantError):
    """A newer owner has taken over what we write."""


class LimitError(CdcError):
    """A bound that we set was reached."""

    exit_code = 4
