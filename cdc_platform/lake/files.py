"""A table's live files as its manifests list them: from metadata alone, no data file is opened.

Belongs here: reading manifests through PyIceberg into plain values, and what any snapshot still reaches.
Does not: what the files say of a table's health (`maintenance/health.py`).
Rules: manifests are immutable, so one that was read is not read again (bounded cache, `_Kept`). Reading works on v2
with equality deletes and on v3 with deletion vectors, where PyIceberg's own `inspect` fails; a table whose schema has
a type that PyIceberg does not know (`variant`) is refused by `Lake.load` with a ConfigError.
Leans on PyIceberg's Avro parts (`avro.decoder`, `avro.resolver`, `avro.codecs`, the schemas in `manifest`), which
pyproject.toml therefore pins: its own reader resolves a manifest's schema anew for each file, 2 ms, and reads v3 as v2.
Units: `bytes` as in the manifest (file size; of a deletion vector its content size), `*_s` seconds.
"""

# pyarrow and pyiceberg carry few types; what comes from them is ours again at each function's signature.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeArgument=false, reportPrivateUsage=false

import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from cdc_platform.errors import CdcError, ConfigError, UnavailableError
from cdc_platform.lake.catalog import Lake

if TYPE_CHECKING:
    from pyiceberg.table import Table

T = TypeVar("T")
Content = Literal["data", "position_deletes", "equality_deletes"]
CACHED_MAX = 200_000  # Files and manifests held in memory, over all tables: about 100 MB.
_CONTENTS: tuple[Content, ...] = ("data", "position_deletes", "equality_deletes")  # By Iceberg's number.
_DELETED = 2  # Status of an entry that this snapshot has taken away.
_FILE_PATH = 2147483546  # Field id of `file_path` in position-delete files (Iceberg spec, "Reserved Field IDs").
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_MAGIC, _SYNC = b"Obj\x01", 16


@dataclass(frozen=True, slots=True)
class LiveFile:
    """One live data or delete file. A deletion vector is a position delete in a Puffin file."""

    content: Content
    path: str
    records: int
    bytes: int
    sequence_number: int  # Data sequence number.
    spec_id: int
    partition: tuple[object, ...]
    equality_ids: tuple[int, ...] = ()
    vector: bool = False
    names_from: str | None = None  # Position deletes: the range of data-file paths that it names, as text in the
    names_to: str | None = None  # manifest. Equal: that file alone. None: any file of its partition.
    file_bytes: int = 0  # Of the whole file: vectors share one, and it goes with the last of them.


@dataclass(frozen=True, slots=True)
class FileListing:
    """Everything that a scan of one snapshot has to plan with."""

    table: str
    snapshot_id: int
    format_version: int
    files: tuple[LiveFile, ...]
    unpartitioned_specs: frozenset[int]  # Deletes under these apply to every partition (equality deletes alone).
    manifests: int
    manifest_bytes: int
    metadata_bytes: int  # Of the metadata.json.
    planning_s: float  # Reading manifest list and manifests: what a scan's planning has to read at least. For what
    # was in memory, the seconds that its own reading took: so it does not fall because the cache answered.
    manifests_read: int = 0  # Now; the others were in memory.
    spec_id: int | None = None  # That new files are written under; None: nobody said.
    specs: int = 1  # That the table has, in use or not.


@dataclass(frozen=True, slots=True)
class Reach:
    """Which files and metadata each snapshot reaches. Paths are as `normal_path` has them, with their bytes.

    A file is reached through a live entry: one that a snapshot took away is not that snapshot's.
    """

    table: str
    head_id: int | None
    manifests_of: Mapping[int, frozenset[str]]  # By snapshot.
    files_in: Mapping[str, Mapping[str, int]]  # Live data and delete files, by manifest.
    manifest_bytes: Mapping[str, int]
    own_metadata: Mapping[int, Mapping[str, int]]  # Manifest list and statistics files, by snapshot.

    def files(self, snapshot_ids: Iterable[int]) -> dict[str, int]:
        """Data and delete files that at least one of these snapshots reaches."""
        return {p: n for m in self._manifests(snapshot_ids) for p, n in self.files_in[m].items()}

    def metadata(self, snapshot_ids: Iterable[int]) -> dict[str, int]:
        """Manifest lists, manifests and statistics files that at least one of these snapshots reaches."""
        ids = list(snapshot_ids)
        manifests = {m: self.manifest_bytes[m] for m in self._manifests(ids)}
        return manifests | {p: n for i in ids for p, n in self.own_metadata[i].items()}

    def only(self, snapshot_ids: Iterable[int]) -> tuple[dict[str, int], dict[str, int]]:
        """Files and metadata that would be free if these snapshots went: no other snapshot here reaches them."""
        gone = set(snapshot_ids)
        stay = [i for i in self.manifests_of if i not in gone]
        kept_files, kept_metadata = self.files(stay), self.metadata(stay)
        return (
            {p: n for p, n in self.files(gone).items() if p not in kept_files},
            {p: n for p, n in self.metadata(gone).items() if p not in kept_metadata},
        )

    def needed(self, first_id: int) -> list[str]:
        """Files and metadata that any snapshot reaches, each once, those of `first_id` before all others."""
        first = self.metadata([first_id]) | self.files([first_id])
        return list(first | self.metadata(self.manifests_of) | self.files(self.manifests_of))

    @property
    def history_bytes(self) -> int:
        """Of data and delete files that older snapshots hold and the head does not reach."""
        live = self.files([self.head_id] if self.head_id is not None else [])
        return sum(n for p, n in self.files(self.manifests_of).items() if p not in live)

    def _manifests(self, snapshot_ids: Iterable[int]) -> set[str]:
        return set[str]().union(*(self.manifests_of[i] for i in snapshot_ids))


def normal_path(path: str) -> str:
    """One text for a place, whoever wrote it: Java writes `file:/x`, Python `file:///x`, Hadoop's clients `s3a://`.

    A store's authority (bucket, container) stays as it is, and so does a path within it: `a//b` is another key.
    """
    found = _SCHEME.match(path)
    scheme, rest = (found[1].lower(), path[found.end() :]) if found else ("", path)
    if scheme in {"", "file"}:
        authority = ""
        if scheme and rest.startswith("//"):
            authority, _, rest = rest[2:].partition("/")
        host = "" if authority in {"", "localhost"} else f"//{authority}"
        return f"file:{host}" + re.sub("/+", "/", f"/{rest}")
    return f"{'s3' if scheme in {'s3a', 's3n'} else scheme}:{rest}"


def same_path(one: str, other: str) -> bool:
    """Whether two texts name the same place."""
    return normal_path(one) == normal_path(other)


def live_files(lake: Lake, table: str) -> FileListing | None:
    """The files of the table's head; None when there is no such table, or it has no snapshot yet."""
    loaded = lake.load(table)
    return None if loaded is None else listing_of(table, loaded)


def reachable(lake: Lake, table: str, snapshot_ids: Iterable[int] | None = None) -> Reach | None:
    """What these snapshots reach, all that the table has unless told; None when there is no such table.

    Reads each manifest that any of them has, once. Raises UnavailableError when a snapshot is no longer there.
    """
    loaded = lake.load(table)
    return None if loaded is None else reach_of(table, loaded, snapshot_ids)


def listing_of(name: str, table: "Table") -> FileListing | None:
    """`live_files` of a table that is loaded already."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return None
    manifests = _manifest_list(name, table, snapshot, keep=True)
    files: list[LiveFile] = []
    planning_s, read = manifests.took_s, 0
    for one in manifests.items:
        live, fresh = _live(name, table, one)
        files += live.items
        planning_s += live.took_s
        read += fresh
    with _translated(name, table.metadata_location):
        metadata_bytes = len(table.io.new_input(table.metadata_location))
    return FileListing(
        table=name,
        snapshot_id=snapshot.snapshot_id,
        format_version=table.metadata.format_version,
        files=tuple(files),
        unpartitioned_specs=_unpartitioned(table),
        manifests=len(manifests.items),
        manifest_bytes=sum(one.bytes for one in manifests.items),
        metadata_bytes=metadata_bytes,
        planning_s=planning_s,
        manifests_read=read,
        spec_id=table.spec().spec_id,
        specs=len(table.specs()),
    )


def reach_of(name: str, table: "Table", snapshot_ids: Iterable[int] | None = None) -> Reach:
    """`reachable` of a table that is loaded already."""
    metadata = table.metadata
    snapshots = {s.snapshot_id: s for s in metadata.snapshots}
    ids = list(snapshots if snapshot_ids is None else snapshot_ids)
    if lost := [i for i in ids if i not in snapshots]:
        raise UnavailableError(
            f"snapshot {lost[0]} is no longer there ({len(lost)} of {len(ids)})", where=name, action="Plan it again"
        )
    own: dict[int, dict[str, int]] = {i: {} for i in ids}
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        if statistics.snapshot_id in own:
            own[statistics.snapshot_id][normal_path(statistics.statistics_path)] = statistics.file_size_in_bytes
    manifests_of: dict[int, frozenset[str]] = {}
    files_in: dict[str, dict[str, int]] = {}
    sizes: dict[str, int] = {}
    normal: dict[str, str] = {}
    for snapshot_id in ids:
        # Lists of older snapshots repeat each other: kept, they would push out manifests.
        manifests = _manifest_list(
            name, table, snapshots[snapshot_id], keep=snapshot_id == metadata.current_snapshot_id
        )
        own[snapshot_id][normal_path(snapshots[snapshot_id].manifest_list)] = manifests.bytes
        for one in manifests.items:
            if one.path not in normal:
                path = normal[one.path] = normal_path(one.path)
                sizes[path] = one.bytes
                files_in[path] = {normal_path(f.path): f.file_bytes for f in _live(name, table, one)[0].items}
        manifests_of[snapshot_id] = frozenset(normal[one.path] for one in manifests.items)
    return Reach(name, metadata.current_snapshot_id, manifests_of, files_in, sizes, own)


def _unpartitioned(table: "Table") -> frozenset[int]:
    """Specs without a partition: also those whose fields are all gone (`void`), as Java has it and PyIceberg not."""
    from pyiceberg.transforms import VoidTransform

    specs = table.specs().items()
    return frozenset(i for i, spec in specs if all(isinstance(f.transform, VoidTransform) for f in spec.fields))


# What was read.


@dataclass(frozen=True, slots=True)
class _Manifest:
    """A manifest as a manifest list has it."""

    path: str
    bytes: int
    spec_id: int
    sequence_number: int
    files: int | None  # Live ones; None when the writer did not count.


@dataclass(frozen=True, slots=True)
class _Read(Generic[T]):
    """What a metadata file holds, its size, and how long its reading took."""

    items: tuple[T, ...]
    bytes: int
    took_s: float


@dataclass
class _Kept:
    """Metadata files as they were read, the least recently used forgotten first. For any number of threads.

    Bounded by the items in them; a file that has none counts as one. Two threads may both read the same file.
    """

    items_max: int
    _held: OrderedDict[object, _Read[Any]] = field(default_factory=OrderedDict[object, _Read[Any]])
    _items: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: object, read: Callable[[], _Read[Any]]) -> tuple[_Read[Any], bool]:
        """What is held under `key`, else what `read` returns; and whether it had to be read."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key], False
        made = read()
        with self._lock:
            if key not in self._held:
                self._held[key] = made
                self._items += max(1, len(made.items))
            while self._items > self.items_max:
                _, gone = self._held.popitem(last=False)
                self._items -= max(1, len(gone.items))
        return made, True

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._held.clear()
            self._items = 0

    @property
    def items(self) -> int:
        """How many are held."""
        return self._items


CACHE = _Kept(CACHED_MAX)


def _manifest_list(name: str, table: "Table", snapshot: Any, *, keep: bool) -> _Read[_Manifest]:
    path = snapshot.manifest_list
    if not path:
        raise ConfigError(
            f"snapshot {snapshot.snapshot_id} has no manifest list (format version 1)",
            where=name,
            action="Upgrade the table to format version 2 and commit to it once",
        )

    def read() -> _Read[_Manifest]:
        began = time.perf_counter()
        with _translated(name, path):
            text = _bytes(table, path)
            found = tuple(
                _Manifest(
                    path=one[_LIST["manifest_path"]],
                    bytes=one[_LIST["manifest_length"]],
                    spec_id=one[_LIST["partition_spec_id"]],
                    sequence_number=one[_LIST["sequence_number"]],
                    files=_sum(one[_LIST["added_files_count"]], one[_LIST["existing_files_count"]]),
                )
                for one in _records(text, "manifest_list")
            )
        return _Read(found, len(text), time.perf_counter() - began)

    return CACHE.get(path, read)[0] if keep else read()


def _live(name: str, table: "Table", manifest: _Manifest) -> tuple[_Read[LiveFile], bool]:
    """Live files of a manifest, and whether it had to be read. One without any is not opened, as planning does."""
    if manifest.files == 0:
        return _Read((), manifest.bytes, 0.0), False

    def read() -> _Read[LiveFile]:
        began = time.perf_counter()
        with _translated(name, manifest.path):
            text = _bytes(table, manifest.path)
            entries = (e for e in _records(text, "manifest") if e[_ENTRY["status"]] != _DELETED)
            live = tuple(_file(entry, manifest) for entry in entries)
        if manifest.files not in {None, len(live)}:
            raise UnavailableError(
                f"a manifest has {len(live)} live files where its manifest list says {manifest.files}",
                where=f"{name}: {manifest.path}",
                action="Compare with Spark's `.files` metadata table; nothing is decided on these figures",
            )
        return _Read(live, len(text), time.perf_counter() - began)

    # A sequence number that is inherited comes from the list: a retried commit may list the file under another one.
    return CACHE.get((manifest.path, manifest.sequence_number), read)


def _file(entry: Any, manifest: _Manifest) -> LiveFile:
    stored = entry[_ENTRY["data_file"]]
    content = _CONTENTS[stored[_FILE["content"]] or 0]
    offset_size = stored[_FILE["content_size_in_bytes"]]
    vector = content == "position_deletes" and stored[_FILE["file_format"]].upper() == "PUFFIN"
    sequence_number = entry[_ENTRY["sequence_number"]]
    names_from, names_to = _names(stored) if content == "position_deletes" else (None, None)
    file_bytes = stored[_FILE["file_size_in_bytes"]]
    return LiveFile(
        content=content,
        path=stored[_FILE["file_path"]],
        records=stored[_FILE["record_count"]],
        bytes=file_bytes if not vector or offset_size is None else offset_size,
        sequence_number=manifest.sequence_number if sequence_number is None else sequence_number,
        spec_id=manifest.spec_id,
        partition=tuple(_hashable(value) for value in stored[_FILE["partition"]]._data),
        equality_ids=tuple(stored[_FILE["equality_ids"]] or ()),
        vector=vector,
        names_from=names_from,
        names_to=names_to,
        file_bytes=file_bytes,
    )


def _names(stored: Any) -> tuple[str | None, str | None]:
    """The range of data-file paths that position deletes name. Bounds may be cut anywhere, even within a letter."""
    if (referenced := stored[_FILE["referenced_data_file"]]) is not None:
        return referenced, referenced
    bounds = ((stored[_FILE[name]] or {}).get(_FILE_PATH) for name in ("lower_bounds", "upper_bounds"))
    lower, upper = (None if bound is None else bound.decode(errors="ignore") for bound in bounds)
    return lower, upper


def _hashable(value: object) -> object:
    """A partition value that equals itself: NaN does, and -0.0 is not 0.0, as in Java's comparison."""
    return repr(value) if isinstance(value, float) else value


def _sum(*counts: int | None) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


# Avro, through PyIceberg's decoder. Every field is read, for it skips slower than it reads.

# Places of the fields in PyIceberg's schemas of version 3, which a test compares with them.
_LIST = {
    "manifest_path": 0,
    "manifest_length": 1,
    "partition_spec_id": 2,
    "sequence_number": 4,
    "added_files_count": 7,
    "existing_files_count": 8,
}
_ENTRY = {"status": 0, "sequence_number": 2, "data_file": 4}
_FILE = {
    "content": 0,
    "file_path": 1,
    "file_format": 2,
    "partition": 3,
    "record_count": 4,
    "file_size_in_bytes": 5,
    "lower_bounds": 10,
    "upper_bounds": 11,
    "equality_ids": 14,
    "referenced_data_file": 17,
    "content_size_in_bytes": 19,
}


@lru_cache(maxsize=512)  # A table has one schema for each kind of manifest, spec and version of its writer.
def _reader(schema: str, kind: str) -> Any:
    """PyIceberg's reader of a file with this Avro schema, as the newest version's fields."""
    from pyiceberg.avro.resolver import resolve_reader
    from pyiceberg.manifest import MANIFEST_ENTRY_SCHEMAS, MANIFEST_LIST_FILE_SCHEMAS
    from pyiceberg.utils.schema_conversion import AvroSchemaConversion

    wanted = (MANIFEST_ENTRY_SCHEMAS if kind == "manifest" else MANIFEST_LIST_FILE_SCHEMAS)[3]
    return resolve_reader(AvroSchemaConversion().avro_to_iceberg(json.loads(schema)), wanted)


def _records(text: bytes, kind: str) -> Iterator[Any]:
    """Records of an Avro container file (Avro specification, "Object Container Files")."""
    from pyiceberg.avro.codecs import AVRO_CODEC_KEY, KNOWN_CODECS
    from pyiceberg.avro.decoder import new_decoder

    decoder: Any = new_decoder(text)
    if decoder.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("no Avro file")
    header: dict[str, bytes] = {}
    while (count := decoder.read_int()) != 0:  # Bounded by the file: reading past its end raises.
        if count < 0:
            decoder.read_int()
        for _ in range(abs(count)):
            key = decoder.read_utf8()
            header[key] = decoder.read_bytes()
    sync = decoder.read(_SYNC)
    reader = _reader(header["avro.schema"].decode(), kind)
    codec = KNOWN_CODECS[header.get(AVRO_CODEC_KEY, b"null").decode()]  # type: ignore[index]
    while decoder.tell() < len(text):
        count = decoder.read_int()
        block = decoder.read_bytes()
        if decoder.read(_SYNC) != sync:
            raise ValueError("a block does not end as it should")
        within = new_decoder(codec.decompress(block) if codec is not None else block)
        for _ in range(count):
            yield reader.read(within)


def _bytes(table: "Table", path: str) -> bytes:
    with table.io.new_input(path).open() as stream:
        return stream.read()


@contextmanager
def _translated(table: str, path: str) -> Generator[None]:
    """What reading a metadata file raises: gone or no answer, or nothing that we can read."""
    try:
        yield
    except CdcError:
        raise
    except OSError as error:
        raise UnavailableError(
            "a metadata file can't be read",
            where=f"{table}: {path}",
            action="Try again: expiry may have taken it meanwhile; else check the store",
        ) from error
    except Exception as error:  # The decoder meets broken bytes anywhere: EOFError, ValueError, KeyError, IndexError.
        raise UnavailableError(
            f"a metadata file is not as Iceberg's specification has it ({type(error).__name__})",
            where=f"{table}: {path}",
            action="Read the table in Spark: if that fails too, roll it back; else report it with this file",
        ) from error
