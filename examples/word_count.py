"""Word count: lines become words, and words are counted as they arrive.

    python examples/word_count.py [FILE] [--parallelism 2] [any tidegate option]

Every word gives one result: the word's count so far. The count is the state. The table at the end shows the last one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from tidegate import Environment, FileSource

TEXT = """\
There is a tide in the affairs of men,
Which, taken at the flood, leads on to fortune;
Omitted, all the voyage of their life
Is bound in shallows and in miseries.
On such a full sea are we now afloat,
And we must take the current when it serves,
Or lose our ventures."""


def words(line: str) -> Iterator[str]:
    """The words of a line, in lower case."""
    yield from re.findall(r"[a-z]+", line.lower())


def main(arguments: list[str]) -> None:
    """Count the words of a file, or of the text above."""
    file = arguments.pop(0) if arguments and not arguments[0].startswith("--") else None
    env = Environment(parallelism=2, args=arguments)
    lines = env.from_source(FileSource(file, "text")) if file else env.from_collection(TEXT.splitlines())
    counts = lines.flat_map(words).key_by("value").count()

    # The last count of each word wins.
    latest = {row.value: row.count for row in counts.execute_and_collect("word count")}
    for word, count in sorted(latest.items(), key=lambda item: (-item[1], item[0]))[:5]:
        print(f"{count:4} {word}")


if __name__ == "__main__":
    main(sys.argv[1:])
