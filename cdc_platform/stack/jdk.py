"""Which Java runs Spark and Debezium: $JAVA_HOME's, else the one on PATH; 17 or newer.

Belongs here: finding Java, and the line that says what to install. Does not: anything that needs a
package: `make setup` runs this file by its path with the system's Python before the environment exists.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

VERSION_MIN = 17
REMEDY = "Install one with `apt-get install openjdk-17-jre-headless` (Debian, Ubuntu), or set JAVA_HOME to it"


class JdkError(Exception):
    """No usable Java; the text says what was found."""


def java_home() -> str:
    """Return the home folder of a Java that is new enough."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")  # noqa: PTH118
    if java is None:
        raise JdkError(f"JAVA_HOME={home} holds no bin/java" if home else "no `java` on PATH")
    # One call answers both questions; the properties go to stderr.
    told = subprocess.run(
        [java, "-XshowSettings:properties", "-version"], capture_output=True, text=True, check=False
    ).stderr
    version, found = major_version(told), re.search(r"^\s*java\.home = (.+)$", told, re.MULTILINE)
    if version is None or found is None:
        raise JdkError(f"{java} does not tell its version")
    if version < VERSION_MIN:
        raise JdkError(f"{java} is Java {version}, and {VERSION_MIN} or newer is needed")
    return found[1]


def major_version(told: str) -> int | None:
    """Return 17 for `version "17.0.15"`, 8 for `version "1.8.0_412"`, None for anything else."""
    match = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(match[1]) if match else None


if __name__ == "__main__":
    try:
        java_home()
    except JdkError as error:
        sys.stderr.write(f"Java: {error}. {REMEDY}.\n")
        sys.exit(2)
