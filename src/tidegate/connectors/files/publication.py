"""Publishing: gives finished files their visible names exactly once, despite crashes and consumers.

A visible file belongs to its consumer, who may move or delete it at once. So before a committer renames the first file
of a checkpoint, it durably notes which files it is about to publish. A recovery then decides:

| hidden file | noted or visible | conclusion                                                      |
|-------------|------------------|-----------------------------------------------------------------|
| there       | either           | not published, or only in part: publish it                      |
| gone        | yes              | published, and perhaps consumed since: nothing to do            |
| gone        | no               | lost: raise                                                     |

An object store renames by copying and deleting. If a job dies between the two and a consumer removes the copy before
the job has recovered, the file appears once more, under the same name.

A subtask publishes its own files in order, so its note about them is one number; its note about files that it publishes
for others in a recovery is a list of names. Notes of an earlier attempt are kept while a checkpoint of that attempt is
retained.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from tidegate.api.sink import Committer, WriterContext
from tidegate.connectors.files.output_directory import OutputDirectory, OutputDirectoryError, named_errors
from tidegate.connectors.files.output_names import (
    OwnerName,
    PartName,
    PublishedName,
    parse_part,
    parse_published,
)
from tidegate.core.errors import TargetLostError
from tidegate.core.failpoints import failpoint
from tidegate.snapshot.checksums import checksum

_MOST_LINES: Final = 1000
"""A local file of notes is rewritten after so many lines; until then a line is appended, which costs the disk less."""


class PendingFile(msgspec.Struct, frozen=True):
    """The committable of a `FileSink`: the visible name of a file that is finished and still hidden."""

    name: str

    def __post_init__(self) -> None:
        if parse_part(self.name) is None:
            raise ValueError(f"{self.name!r} is not the name of a part file")

    @property
    def part(self) -> PartName:
        part = parse_part(self.name)
        assert part is not None, "checked in __post_init__"
        return part


class PublishedNote(msgspec.Struct, frozen=True, tag_field="format", tag="tidegate-published-1"):
    """What a subtask has published in an attempt, or is about to publish."""

    below: int
    """It covers the subtask's own files with smaller numbers."""
    recovered: tuple[str, ...] = ()
    """The visible names of the covered files that the subtask took over from earlier attempts."""

    def covers(self, name: PublishedName, part: PartName) -> bool:
        """Whether this note, stored under `name`, says that the file was published."""
        own = (part.job, part.attempt, part.subtask) == name
        return part.number < self.below if own else str(part) in self.recovered

    def __or__(self, other: PublishedNote) -> PublishedNote:
        names = dict.fromkeys([*self.recovered, *other.recovered])
        return PublishedNote(max(self.below, other.below), tuple(names))


def encode_note(note: PublishedNote) -> bytes:
    """A line: JSON, a space, its checksum."""
    data = msgspec.json.encode(note)
    return b"%s %s\n" % (data, checksum(data).encode())


def decode_notes(lines: bytes) -> PublishedNote:
    """All notes of a file merged. An incomplete line is ignored: its publication never began."""
    found = PublishedNote(0)
    for line in lines.split(b"\n"):
        data, _, sum_ = line.rpartition(b" ")
        if sum_ == checksum(data).encode():
            try:
                found |= msgspec.json.decode(data, type=PublishedNote)
            except msgspec.MsgspecError:
                continue
    return found


class FileCommitter(Committer):
    """Publishes pending files, in order.

    1. Check the mark of the driver: without it the directory belongs to another job or driver.
    2. List the hidden files that are there; the others must have been published.
    3. Note those that are there.
    4. Give each its visible name; an existing file is never replaced.
    """

    def __init__(self, directory: OutputDirectory, context: WriterContext, owner: OwnerName) -> None:
        self._directory = directory
        self._context = context
        self._owner = owner
        self._name = PublishedName(context.job_id, context.attempt, context.subtask_index)
        self._note = PublishedNote(0)
        self._lines = 0
        self._commits = 0

    def commit(self, committables: Sequence[PendingFile]) -> None:
        parts = [self._part(pending) for pending in committables]
        with named_errors(
            lambda: (
                f"operator {self._context.operator_name!r} cannot publish files in {self._directory.show()}"
            )
        ):
            check_owner(self._directory, self._owner)
            sizes = self._directory.sizes(part.hidden("pending") for part in parts)
            there = [part for part, size in zip(parts, sizes, strict=True) if size is not None]
            self._refuse_lost([part for part, size in zip(parts, sizes, strict=True) if size is None])
            if there:
                self._take_note(there)
                failpoint("sink.publish.noted")
            for part in there:
                self._publish(part)
                failpoint("sink.publish.moved")
            self._directory.sync()
            # The commit of recovered files does not count: their checkpoint is of an earlier attempt.
            self._commits += any(part.attempt == self._context.attempt for part in parts)
            if self._commits == self._context.checkpoints_retained:
                self._forget_earlier_attempts()

    def _part(self, pending: PendingFile) -> PartName:
        part = pending.part
        if part.job != self._context.job_id:
            raise OutputDirectoryError(
                f"operator {self._context.operator_name!r} cannot publish {pending.name}: it is a file of job "
                f"{part.job}, but this is job {self._context.job_id}. Restore an unchanged checkpoint"
            )
        return part

    def _refuse_lost(self, gone: Sequence[PartName]) -> None:
        visible = self._directory.sizes(map(str, gone)) if gone else []
        gone = [part for part, size in zip(gone, visible, strict=True) if size is None]
        if not gone:
            return
        notes = self._notes()
        lost = [part for part in gone if not any(note.covers(name, part) for name, note in notes)]
        if lost:
            raise OutputDirectoryError(
                f"{self._directory.show(lost[0].hidden('pending'))} is gone: its records are part of a completed "
                f"checkpoint, it was never published, and so they are lost ({len(lost)} such files). Were hidden files "
                f"deleted from the directory? Restore them, or start again without state"
            )

    def _notes(self) -> Iterable[tuple[PublishedName, PublishedNote]]:
        found = [(self._name, self._note)]
        for text in self._directory.names():
            name = parse_published(text)
            if name is None or text != str(name) or name.job != self._context.job_id:
                continue
            found.append((name, decode_notes(self._directory.read(text) or b"")))
        return found

    def _take_note(self, parts: Sequence[PartName]) -> None:
        own = [part for part in parts if (part.job, part.attempt, part.subtask) == self._name]
        recovered = [str(part) for part in parts if (part.job, part.attempt, part.subtask) != self._name]
        new = PublishedNote(max((part.number + 1 for part in own), default=0), tuple(recovered))
        self._note |= new
        if self._directory.is_local and self._lines < _MOST_LINES:
            self._directory.append(str(self._name), encode_note(new))
            self._lines += 1
        else:
            self._directory.put(str(self._name), encode_note(self._note))
            self._lines = 1

    def _publish(self, part: PartName) -> None:
        hidden, visible = part.hidden("pending"), str(part)
        try:
            self._directory.move_new(hidden, visible)
        except FileNotFoundError:
            pass  # another subtask or attempt that commits the same checkpoint was faster
        except FileExistsError:
            size, taken = self._directory.sizes([hidden, visible])
            if size is None:
                return  # another subtask or attempt was faster
            if self._directory.is_local or size != taken:
                raise OutputDirectoryError(
                    f"operator {self._context.operator_name!r} cannot publish {self._directory.show(hidden)}: there is "
                    f"another file {visible}, which is not replaced. Move that one away; the job then continues"
                ) from None
            self._directory.delete(
                hidden
            )  # an earlier committer copied the file and crashed before it deleted this

    def _forget_earlier_attempts(self) -> None:
        """Delete the notes of earlier attempts: every retained checkpoint is of this attempt now."""
        if not self._context.attempt:
            return
        for text in self._directory.names():
            name = parse_published(text)
            if name and name.job == self._context.job_id and name.attempt < self._context.attempt:
                self._directory.delete(text)


def check_owner(directory: OutputDirectory, owner: OwnerName) -> None:
    """Raise if this driver no longer owns the directory."""
    if not directory.exists(str(owner)):
        raise TargetLostError(
            f"job {owner.job} may not write to {directory.show()} any more: its mark {owner} is gone. Another job has "
            f"taken the directory with overwrite=True, another driver has taken the job, or hidden files were deleted. "
            f"Nothing is published. Stop the other one, or name another directory"
        )
