"""Versions as engines print them, and which of them may do what to which table."""

import pytest

from cdc_platform.errors import ConfigError
from cdc_platform.maintenance.gates import Engine, Facts, Version, refusal, require, version_of


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("1.12.0", (1, 12, 0)),
        ("v1.9", (1, 9, 0)),
        ("1.10.2-amzn-1", (1, 10, 2)),
        ("1.12.0-SNAPSHOT", (1, 12, -1)),
        ("1.12.0-rc2", (1, 12, -1)),
        ("1.12.0+build.7", (1, 12, 0)),
        ("1.10.0-amzn-0+3", (1, 10, 0)),
        ("1.12.0 (commit 1a2b3c)", (1, 12, 0)),
        ("unspecified", None),
        ("", None),
        ("1" * 5000 + ".2", None),
    ],
)
def test_versions_are_compared_as_numbers(text: str, version: Version | None) -> None:
    assert version_of(text) == version


@pytest.mark.parametrize(
    "mark",
    (
        *("rc2", "~rc1", "_SNAPSHOT", "SNAPSHOT", " SNAPSHOT", "-20261101.120000-7", "-nightly", "-dev", "-next"),
        *(
            "-0.rc1",
            ".dev0",
            ".rc1",
            "-M1",
            "-preview1",
            "-beta.1",
            "-amzn-0-SNAPSHOT",
            "-rc1+build",
            "-never-heard-of",
        ),
    ),
)
def test_what_no_known_build_is_marked_with_is_a_pre_release(mark: str) -> None:
    assert version_of(f"1.12.0{mark}") == (1, 12, -1)
    assert refusal("rewrite_manifests", Facts(3), Engine(f"1.12.0{mark}", "4.1.4")) is not None
    assert refusal("rewrite_manifests", Facts(3), Engine(f"1.12.1{mark}", "4.1.4")) is None  # What fixed it is out.


@pytest.mark.parametrize(
    ("iceberg", "operation", "facts", "names"),
    [
        ("1.11.0", "rewrite_manifests", Facts(3), "1.12.0"),
        ("1.12.0-SNAPSHOT", "rewrite_manifests", Facts(3), "1.12.0"),
        ("1.9.2", "rewrite_data_files", Facts(3), "1.10.0"),
        ("1.9.2", "expire_snapshots", Facts(2, refs=2), "1.10.0"),
        ("1.6.1", "rewrite_data_files", Facts(2), "1.7.0"),
        ("1.11.0", "rewrite_data_files", Facts(2, mixed_specs=True), "deleted rows come back; 1.12.0 does not"),
        ("1.12.0-SNAPSHOT", "rewrite_data_files", Facts(2, mixed_specs=True), "deleted rows come back"),
        ("unspecified", "rewrite_manifests", Facts(3), "unknown"),
        ("1.12.0", "rewrite_position_delete_files", Facts(3), "touches no deletion vector"),
        ("1.12.0", "expire_snapshots", Facts(2, properties={"gc.enabled": "FALSE"}), "gc.enabled"),
        ("1.12.0", "rewrite_data_files", Facts(4), "format version 4"),
    ],
)
def test_what_is_known_to_harm_is_refused_with_the_reason(
    iceberg: str, operation: str, facts: Facts, names: str
) -> None:
    reason = refusal(operation, facts, Engine(iceberg, "4.1.4"))  # type: ignore[arg-type]
    assert reason is not None and names in reason
    with pytest.raises(ConfigError, match=operation):
        require(operation, "landing.t", facts, Engine(iceberg, "4.1.4"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("iceberg", "operation", "facts"),
    [
        ("1.12.0", "rewrite_manifests", Facts(3)),
        ("1.11.0", "rewrite_manifests", Facts(2)),
        ("1.10.0", "rewrite_data_files", Facts(3)),
        ("1.9.2", "rewrite_data_files", Facts(2)),
        ("1.9.2", "expire_snapshots", Facts(2, refs=1)),
        ("unspecified", "rewrite_manifests", Facts(2)),
        ("1.12.0", "rewrite_position_delete_files", Facts(3, position_delete_files=1)),
    ],
)
def test_the_neighbour_of_each_refused_case_is_let_through(iceberg: str, operation: str, facts: Facts) -> None:
    assert refusal(operation, facts, Engine(iceberg, "4.1.4")) is None  # type: ignore[arg-type]
