"""Runs a Java program with the Flink of an environment: what apache-flink brings along are Flink's own jars.

Standard library only. Needs a JDK.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path


class JavaMissing(Exception):
    """There is no compiler; the message says what to install."""


def compiled(source: Path, classes: Path, libraries: Path, heap: str = "1g") -> list[str]:
    """Compile the source file into `classes`; the command that runs its main class, to be followed by arguments.

    `libraries` is the site-packages directory that has pyflink.
    """
    if shutil.which("javac") is None:
        raise JavaMissing(
            f"{source.name} cannot be compiled: there is no javac. Install a JDK, version 17 or newer."
        )
    flink = libraries / "pyflink"
    jars = f"{flink / 'lib'}{os.sep}*"
    # Flink's own settings for Java 17 and later.
    opens = re.findall(r"--add-(?:opens|exports)=\S+", (flink / "conf" / "config.yaml").read_text())
    subprocess.run(["javac", "-nowarn", "-d", str(classes), "-cp", jars, str(source)], check=True)
    return ["java", f"-Xmx{heap}", *opens, "-cp", f"{classes}{os.pathsep}{jars}", source.stem]
