"""Side outputs of an operator: checks and declares them on its node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.api.functions import OutputTag, OutputTags
from tidegate.api.watermarks import WatermarkStrategy
from tidegate.core.errors import ProgramError
from tidegate.core.words import kind_of
from tidegate.program.transformations import Transformation

if TYPE_CHECKING:
    from tidegate.api.streams import DataStream


def declare_strategy(node: Transformation, strategy: WatermarkStrategy, name: str) -> None:
    """Check a watermark strategy against the records of a node, and declare its side output."""
    if not isinstance(strategy, WatermarkStrategy):
        raise ProgramError(f"{name}: event time needs a WatermarkStrategy, got {strategy!r}")
    strategy.check_type(node.output_type, f"operator {name!r}")
    tag = strategy.missing
    if tag is None:
        return
    if not tag.record_type.is_object and tag.record_type != node.output_type:
        raise ProgramError(
            f"operator {name!r}: records without a timestamp are {node.output_type.describe()}, but side output "
            f"{tag.id!r} takes {tag.record_type.describe()}"
        )
    node.side_outputs[tag.id] = node.output_type


def declare_side_outputs(stream: DataStream[Any], tags: OutputTags) -> None:
    """Declare the side outputs of an operator; refuse what is not a tag, and a tag that is declared already."""
    for tag in (tags,) if isinstance(tags, OutputTag) else tags:
        if not isinstance(tag, OutputTag):
            raise ProgramError(f"side_outputs takes OutputTags, got {kind_of(tag)}: {tag!r}")
        if tag.id in stream._node.side_outputs:
            raise ProgramError(f"operator {stream._node.name!r} declares the side output {tag.id!r} twice")
        stream._node.side_outputs[tag.id] = tag.record_type
