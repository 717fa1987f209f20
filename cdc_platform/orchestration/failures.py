"""What an error of ours means to Dagster: retry, or a person.

Belongs here: the map of the CdcError tree, and the metadata an operator reads. Does not: how often a retry is
made (the asset's RetryPolicy within a run; `attempts.py` between runs).
Retried: UnavailableError and ConflictError left nothing behind; after a CommitUnknownError every operation
here reads the tables again before it acts, so its retry is not blind. Anything that is not a CdcError is a
mistake of ours and is raised as it is.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from cdc_platform.errors import CdcError, CommitUnknownError, ConflictError, UnavailableError

_RETRIED = (UnavailableError, ConflictError, CommitUnknownError)


@contextmanager
def as_failure() -> Iterator[None]:
    """Turn a CdcError into the Failure that Dagster retries, or does not."""
    try:
        yield
    except CdcError as error:
        raise dg.Failure(
            str(error),
            metadata={"where": error.where, "what": error.what, "action": error.action},
            allow_retries=isinstance(error, _RETRIED),
        ) from error
