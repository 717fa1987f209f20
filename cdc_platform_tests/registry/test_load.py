"""tables.yaml: what is accepted, and for each wrong entry the file, the line, the path and the remedy."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from cdc_platform.errors import ConfigError
from cdc_platform.registry.load import load_registry
from cdc_platform.registry.maintenance import BUILT_IN, Maintenance
from cdc_platform.registry.model import Table

GOOD = """\
deployment: shop
sources:
  db: {postgres: {embedded: shop}}
tables:
  orders:
    source: db.public.orders
    key: [id]
    owners: ["team:a"]
    convergence: {sums: [id], distribution: status, within: 90s}
    landing: {window: 500ms}
    curated: {contract: [status], freshness: 2h}
"""


def load(tmp_path: Path, text: str) -> object:
    file = tmp_path / "tables.yaml"
    file.write_text(text)
    return load_registry(file)


def test_durations_have_units_and_defaults_are_filled(tmp_path: Path) -> None:
    (tmp_path / "tables.yaml").write_text(GOOD)
    orders = load_registry(tmp_path / "tables.yaml").tables["orders"]
    assert orders.landing.window == timedelta(milliseconds=500)
    assert orders.convergence.within == timedelta(seconds=90)
    assert orders.curated.freshness == timedelta(hours=2)


def test_the_projects_own_registry_loads_with_two_tables() -> None:
    registry = load_registry(Path(__file__).parents[2] / "tables.yaml")
    assert {name: t.key for name, t in registry.tables.items()} == {
        "orders": ("order_id",),
        "order_items": ("order_id", "line_no"),
    }


@pytest.mark.parametrize(
    ("old", "new", "where", "what", "action"),
    [
        ("key: [id]", "keys: [id]", ":7: tables.orders.keys", "not known (1 more", "Did you mean `key`"),
        ("    key: [id]\n", "", ":5: tables.orders.key", "Field required", "Add `key`"),
        (
            "    key: [id]\n",
            "    key: [id]\n    kye: [id]\n",
            ":8: tables.orders.kye",
            "not known",
            "Did you mean `key`",
        ),
        ("key: [id]", "key: []", ":7: tables.orders.key", "at least 1 item", "Correct"),
        ("key: [id]", "key: [id, id]", ":5: tables.orders", "`key` names a column twice", "Correct"),
        ("window: 500ms", "window: 500", ":10: tables.orders.landing.window", "a number and a unit", "Correct"),
        ("window: 500ms", "window: 0s", ":10: tables.orders.landing.window", "greater than", "Correct"),
        ('["team:a"]', '["a"]', ":8: tables.orders.owners[0]", "pattern", "Correct"),
        ('["team:a"]', "[]", ":8: tables.orders.owners", "at least 1 item", "Correct"),
        (
            "db.public",
            "db2.public",
            ":1: (top level)",
            "source `db2`, which `sources` does not declare (declared: db)",
            "",
        ),
        ("[status], f", "[id], f", ":5: tables.orders", "`curated.contract` names the key column `id`", "Correct"),
        (
            "[status], f",
            "[total], f",
            ":5: tables.orders",
            "compares `status`, which `curated.contract` leaves out",
            "",
        ),
        ("{embedded: shop}", "{}", ":3: sources.db.postgres", "exactly one of `embedded", "Correct"),
        ("deployment: shop", "deployment: My-Shop", ":1: deployment", "pattern", "Correct"),
        ("    key: [id]\n", "    key: [id]\n    key: [nr]\n", ":8", "`key` is given twice", "Correct this line"),
        ("deployment: shop", "deployment: [", "tables.yaml:", "not valid YAML", "Correct this line"),
    ],
)
def test_a_wrong_entry_stops_the_load_where_it_stands(
    tmp_path: Path, old: str, new: str, where: str, what: str, action: str
) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, GOOD.replace(old, new))
    assert str(tmp_path / "tables.yaml") in raised.value.where
    assert where in raised.value.where
    assert what in raised.value.what
    assert action in raised.value.action


@pytest.mark.parametrize("source", ["db", "other"])
def test_two_tables_of_one_name_are_refused_for_their_assets_would_be_one(tmp_path: Path, source: str) -> None:
    again = GOOD.replace("tables:", "  other: {postgres: {embedded: other}}\ntables:")
    again += f'  again: {{source: {source}.public.orders, key: [id], owners: ["team:a"]}}\n'
    with pytest.raises(ConfigError, match="tables `orders` and `again` both read"):
        load(tmp_path, again)


def test_a_missing_file_says_where_to_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--project"):
        load_registry(tmp_path / "tables.yaml")


@pytest.mark.parametrize(
    ("types", "what"),
    [
        ("{dates: clamp}", "`types` names `dates`, which is no family of types: use numeric, date, timestamp"),
        ("{numeric: clamp}", "`types.numeric` is `clamp`, allowed are: error, null, string"),
        ("{array: string}", "`types.array` is `string`, allowed are: error, null"),
        ("{date: null}", 'the policy null is a word here: write it in quotes, "null"'),
        ("{date: skip}", "Input should be 'error', 'null', 'clamp' or 'string'"),
    ],
)
def test_a_policy_that_a_family_of_types_does_not_have_is_refused(tmp_path: Path, types: str, what: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, GOOD.replace("{window: 500ms}", f"{{types: {types}}}"))
    assert what in raised.value.what
    assert ":10: tables.orders.landing" in raised.value.where


def test_a_policy_is_declared_for_a_family_or_a_column(tmp_path: Path) -> None:
    load(tmp_path, GOOD.replace("{window: 500ms}", '{types: {date: clamp, numeric: "null", column.at: string}}'))
    orders = load_registry(tmp_path / "tables.yaml").tables["orders"]
    assert orders.landing.types == {"date": "clamp", "numeric": "null", "column.at": "string"}
    assert orders.named_columns["landing.types"] == ("at",)


@pytest.mark.parametrize(
    ("landing", "what"),
    [
        ("{partition_by: ['day()']}", "should match pattern"),
        ("{partition_by: ['bucket(id)']}", "should match pattern"),
        ("{partition_by: ['bucket(0, id)']}", "should match pattern"),
        ("{partition_by: ['week(at)']}", "should match pattern"),
        ("{partition_by: ['bucket(4, id)', id]}", "`partition_by` names column `id` twice"),
        ("{mode: append}", "'upsert' or 'before_image'"),
        ("{shards: 0}", "greater than or equal to 1"),
        ("{dead_letters_max_share: 2}", "less than or equal to 1"),
        ("{change_type: {column: after}}", "`column: after` is the name of another part of the record"),
        ("{change_type: {map: {I: insert}}}", "Input should be 'create', 'update'"),
        ("{change_type: {map: {I: create}}}", "`map` has no value that means `delete`"),
    ],
)
def test_a_policy_of_landing_that_can_not_be_is_refused(tmp_path: Path, landing: str, what: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, GOOD.replace("{window: 500ms}", landing))
    assert what in raised.value.what
    assert ":10: tables.orders.landing" in raised.value.where


def test_partition_columns_are_those_that_the_table_may_not_lose(tmp_path: Path) -> None:
    fields = "[region, 'bucket(16, id)', 'truncate( 4,code )', 'day(placed at)']"
    load(tmp_path, GOOD.replace("{window: 500ms}", f"{{partition_by: {fields}}}"))
    orders = load_registry(tmp_path / "tables.yaml").tables["orders"]
    assert orders.named_columns["landing.partition_by"] == ("region", "id", "code", "placed at")


def tables(tmp_path: Path, text: str) -> Mapping[str, Table]:
    (tmp_path / "tables.yaml").write_text(text)
    return load_registry(tmp_path / "tables.yaml").tables


LANDING, CURATED = "landing: {window: 500ms}", "curated: {contract: [status], freshness: 2h}"


def declaring(classes: str, landing: str = "", curated: str = "") -> str:
    """The good registry with these classes, and more in the table's stages."""
    assert GOOD.count(LANDING) == GOOD.count(CURATED) == 1
    text = GOOD.replace(LANDING, f"landing: {{window: 500ms, {landing}}}" if landing else LANDING)
    text = text.replace(CURATED, f"curated: {{contract: [status], {curated}}}" if curated else CURATED)
    return text + (f"maintenance:\n  {classes}\n" if classes else "")


def test_a_table_that_says_nothing_has_the_built_in_class_of_each_stage(tmp_path: Path) -> None:
    orders = tables(tmp_path, GOOD)["orders"]
    assert orders.maintenance("landing") == BUILT_IN["hot"].policy
    assert orders.maintenance("curated") == BUILT_IN["standard"].policy == Maintenance()
    assert orders.maintenance("landing").rewrite_after_commits == 10


def test_an_override_changes_what_it_gives_and_nothing_else(tmp_path: Path) -> None:
    orders = tables(
        tmp_path,
        declaring(
            "nightly: {like: hot, rewrite_small_files: 7, quiet_hours: ['08:00-18:00']}",
            "maintenance: {class: nightly, min_interval: 2m}",
            "maintenance: audit",
        ),
    )["orders"]
    hot = BUILT_IN["hot"].policy
    assert orders.maintenance("landing") == hot.model_copy(
        update={
            "rewrite_small_files": 7,
            "quiet_hours": ("08:00-18:00",),
            "min_interval": timedelta(minutes=2),
        }
    )
    assert orders.maintenance("curated") == BUILT_IN["audit"].policy


def test_a_figure_that_is_given_at_its_general_default_is_still_given(tmp_path: Path) -> None:
    default = Maintenance().rewrite_after_commits
    orders = tables(tmp_path, declaring("", f"maintenance: {{rewrite_after_commits: {default}}}"))["orders"]
    assert BUILT_IN["hot"].policy.rewrite_after_commits != default
    assert orders.maintenance("landing").rewrite_after_commits == default
    assert orders.maintenance("landing").keep_snapshots_for == BUILT_IN["hot"].policy.keep_snapshots_for


def test_classes_start_from_one_another_in_any_order(tmp_path: Path) -> None:
    classes = "a: {like: b, alarm_at: 9}\n  b: {like: c, rewrite_small_files: 8}\n  c: {like: audit, alarm_at: 2}"
    found = tables(tmp_path, declaring(classes, curated="maintenance: a"))["orders"].maintenance("curated")
    assert (found.alarm_at, found.rewrite_small_files, found.keep_snapshots_for) == (9, 8, timedelta(days=90))


@pytest.mark.parametrize(
    "landing", ["rewrite_after_commits: 20", "rewrite_after_commits: 20, maintenance: {rewrite_after_commits: 20}"]
)
def test_the_short_cut_is_the_key_of_its_name(tmp_path: Path, landing: str) -> None:
    assert tables(tmp_path, declaring("", landing))["orders"].maintenance("landing").rewrite_after_commits == 20


@pytest.mark.parametrize("hours", ["['22:00-06:00']", "['00:00-23:59']", "['00:00-12:00', '13:00-00:00']", "[]"])
def test_quiet_hours_may_be_any_part_of_the_day(tmp_path: Path, hours: str) -> None:
    tables(tmp_path, declaring(f"a: {{quiet_hours: {hours}}}"))


@pytest.mark.parametrize(
    "keys", ["orphans_min_age: 24h", "target_file_mb: 1024", "group_mb_max: 102400", "rewrite_by: model"]
)
def test_figures_at_their_bounds_are_accepted(tmp_path: Path, keys: str) -> None:
    tables(tmp_path, declaring(f"a: {{{keys}}}"))


IN_LANDING, IN_CLASSES = ":10: tables.orders.landing", ":13: maintenance."


@pytest.mark.parametrize(
    ("classes", "landing", "where", "what", "action"),
    [
        ("hot: {}", "", IN_CLASSES + "hot", "`hot` is a built-in class: declare one of another name", "Correct"),
        ("a: {like: b}", "", IN_CLASSES + "a.like", "no class is called `b` (known: audit, hot, standard)", "Correct"),
        ("a: {like: a}", "", IN_CLASSES + "a.like", "in a circle: a → a", "Correct"),
        ("c: {like: a}\n  a: {like: b}\n  b: {like: a}", "", ":14: maintenance.a.like", "a → b → a", "Correct"),
        ("a: {quiet_hours: ['8-18']}", "", IN_CLASSES + "a.quiet_hours[0]", 'write hours as "22:00-06:00"', "Correct"),
        (
            "a: {quiet_hours: ['24:00-06:00']}",
            "",
            IN_CLASSES + "a.quiet_hours[0]",
            'write hours as "22:00-06:00"',
            "Correct",
        ),
        ("a: {quiet_hours: '08:00-18:00'}", "", IN_CLASSES + "a.quiet_hours", "write a list, also of one", "Correct"),
        ("a: {reads_per_hour: .inf}", "", IN_CLASSES + "a.reads_per_hour", "finite number", "Correct"),
        ("a: {alarm_at: .nan}", "", IN_CLASSES + "a.alarm_at", "finite number", "Correct"),
        ("a: {target_file_mb: 100000000000}", "", IN_CLASSES + "a.target_file_mb", "less than or equal to", "Correct"),
        ("a: {quiet_hours: ['08:00-08:00']}", "", IN_CLASSES + "a.quiet_hours[0]", "same minute", "Correct"),
        ("a: {quiet_hours: ['00:00-12:00', '12:00-00:00']}", "", IN_CLASSES + "a", "cover the whole day", "Correct"),
        ("a: {orphans_min_age: 23h}", "", IN_CLASSES + "a.orphans_min_age", "equal to 1 day", "Correct"),
        ("a: {rewrite_after_commit: 9}", "", IN_CLASSES + "a.rew", "not known", "`rewrite_after_commits`?"),
        ("a: {target_file_mb: 1025}", "", IN_CLASSES + "a", "raise `group_mb_max` to 1025 at least", "Correct"),
        ("a: {group_mb_max: 102401}", "", IN_CLASSES + "a", "raise `run_mb_max` to 102401 at least", "Correct"),
        ("a: {}", "maintenance: b", IN_LANDING + ".maintenance", "(known: a, audit, hot, standard)", "Correct"),
        ("", "maintenance: {class: b}", IN_LANDING + ".maintenance.class", "no class is called `b`", "Correct"),
        ("", "maintenance: {clas: hot}", IN_LANDING + ".maintenance.clas", "not known", "Did you mean `class`"),
        ("", "maintenance: {like: hot}", IN_LANDING + ".maintenance.like", "not known", "Known here: alarm_at, class"),
        (
            "a: {group_mb_max: 200}",
            "maintenance: {class: a, target_file_mb: 201}",
            IN_LANDING + ".maintenance",
            "`target_file_mb` is 201 and `group_mb_max` is 200",
            "Correct",
        ),
        (
            "",
            "rewrite_after_commits: 20, maintenance: {rewrite_after_commits: 21}",
            IN_LANDING,
            "`rewrite_after_commits` is 20 and in `maintenance` 21: remove one",
            "Correct",
        ),
    ],
)
def test_a_wrong_maintenance_stops_the_load_where_it_stands(
    tmp_path: Path, classes: str, landing: str, where: str, what: str, action: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, declaring(classes, landing))
    assert where in raised.value.where
    assert what in raised.value.what
    assert action in raised.value.action
