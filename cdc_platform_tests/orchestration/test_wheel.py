"""An installed wheel, outside the clone and in an environment of its own, loads the definitions."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
REPOSITORY = Path(__file__).parents[2]


def test_a_wheel_outside_the_clone_loads_the_definitions(tmp_path: Path) -> None:
    """The dependencies are lent to the new environment by a path; the project itself comes from the wheel."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    shutil.copytree(REPOSITORY / "cdc_platform", source / "cdc_platform", ignore=shutil.ignore_patterns("__pycache__"))

    def run(*command: str, cwd: Path = tmp_path) -> str:
        done = subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, timeout=300)
        return done.stdout

    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source))
    [wheel] = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", str(tmp_path / "env"))
    python = tmp_path / "env" / "bin" / "python"
    run(str(python), "-m", "pip", "install", "--no-deps", "--no-index", str(wheel))
    [site] = (tmp_path / "env" / "lib").glob("python*/site-packages")
    # A path alone, not this environment's .pth files: those would bring the clone along.
    (site / "lent.pth").write_text(str(Path(pytest.__file__).parents[1]))
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(REPOSITORY / "tables.yaml", project)
    script = (
        "import cdc_platform, dagster as dg; from cdc_platform.definitions import defs\n"
        "loaded = defs(); dg.Definitions.validate_loadable(loaded)\n"
        "from importlib.resources import files; assert files('cdc_platform.demo').joinpath('bookshop.sql').is_file()\n"
        "print(cdc_platform.__file__, len(list(loaded.resolve_all_asset_specs())))"
    )
    where, assets = run(str(python), "-c", script, cwd=project).strip().splitlines()[-1].rsplit(" ", 1)
    assert where.startswith(str(site))
    assert int(assets) == 2 * (5 + 9) + 1  # Each table: its stages and its maintenance; the platform.
