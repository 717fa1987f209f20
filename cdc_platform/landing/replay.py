"""Builds a landing table anew from its change log, beside the one that is served.

Belongs here: the replay. Does not: proving that both are equal (`convergence/rows.py`), or putting one in the
other's place.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

from cdc_platform.changelog.log import ChangeLog
from cdc_platform.lake.catalog import Lake
from cdc_platform.landing.position import LandingPosition
from cdc_platform.landing.sink import TableSink
from cdc_platform.registry.model import Landing


def replay(
    lake: Lake, log: ChangeLog, *, key: tuple[str, ...], into: str, policy: Landing | None = None
) -> LandingPosition:
    """Apply the log up to its present end to the table `into`, which is dropped first; return how far it came.

    `policy` is the table's: its types, its kinds.
    """
    if lake.load(into) is not None:
        lake.catalog.drop_table(into)
    sink = TableSink(lake, into, key=key, log=log, policy=policy, window_s=float("inf"))
    sink.catch_up()
    return sink.position
