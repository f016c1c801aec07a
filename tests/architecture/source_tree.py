"""Where the source is, and the check of its imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "tidegate"


def lint_imports(*, import_path: Path) -> subprocess.CompletedProcess[str]:
    """Checks the contracts of pyproject.toml against the package `tidegate` found on import_path."""
    command = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    return subprocess.run(
        [sys.executable, "-c", command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(import_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
