"""Ships tidegate itself to the executors of a cluster, so that only its dependencies must be installed there."""

from __future__ import annotations

import atexit
import logging
import re
import shutil
import tempfile
import threading
import weakref
import zipfile
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

_lock = threading.Lock()
_shipped: weakref.WeakSet[Any] = weakref.WeakSet()


def ship_package(spark: Any) -> None:
    """Send this package to the executors of a session, once per session; a local master needs nothing."""
    classic = hasattr(spark, "_jsparkSession")
    if classic and re.fullmatch(r"local(\[.*\])?", spark.sparkContext.master):
        return
    with _lock:
        receiver = spark.sparkContext if classic else spark
        if receiver in _shipped:
            return
        # Spark serves this file to later executors too, so it must stay until this process ends.
        folder = tempfile.mkdtemp(prefix="tidegate-package-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        archive = Path(folder) / "tidegate_package.zip"
        write_archive(archive)
        if classic:
            receiver.addPyFile(str(archive))
        else:
            receiver.addArtifacts(str(archive), pyfile=True)
        _shipped.add(receiver)


def write_archive(target: Path) -> None:
    """Write the package as a zip file that executors can import."""
    package = Path(__file__).resolve().parent.parent
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(package.rglob("*")):
            if file.suffix in (".py", ".typed") or file.name == "py.typed":
                archive.write(file, Path("tidegate") / file.relative_to(package))
