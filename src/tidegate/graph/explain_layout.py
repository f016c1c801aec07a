"""A layered layout after Sugiyama: boxes in columns from left to right, edges routed between them.

1. Layers: a box is one layer after the last of its inputs (longest path).
2. Waypoints: a link over several layers gets a dummy cell in each layer that it passes.
3. Order: each layer is sorted by the barycenters of its neighbours, sweeping forward and backward, to avoid crossings.
4. Places: each cell is pulled to the mean of its neighbours; order and gaps are kept by isotonic regression (pool
   adjacent violators).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

SWEEPS = 8
MOST_WAYPOINTS = 4_000
"""With more pieces than this, long edges are drawn straight: the drawing is unreadable anyway."""


class Box(NamedTuple):
    """Something to place."""

    width: float
    height: float


class Link(NamedTuple):
    """An edge between two boxes; the ports are distances from their tops, the label needs `label_width` beside it."""

    source: int
    target: int
    source_port: float
    target_port: float
    label_width: float = 0.0


class Point(NamedTuple):
    """A place in the drawing."""

    x: float
    y: float


class Layout(NamedTuple):
    """Where everything is: the upper left corner of each box, the points that each link passes."""

    corners: list[Point]
    routes: list[list[Point]]
    width: float
    height: float


@dataclass(eq=False)
class _Cell:
    """A box, or a place where a long link passes a layer (`box` is None)."""

    box: int | None
    width: float
    height: float
    layer: int
    y: float = 0.0
    left: list[tuple[_Cell, float, float]] = field(default_factory=list)
    """Neighbours in the layer before: the cell, the port here, the port there."""
    right: list[tuple[_Cell, float, float]] = field(default_factory=list)


def lay_out(boxes: Sequence[Box], links: Sequence[Link], gap_x: float, gap_y: float) -> Layout:
    """Place boxes (sources left, in an order in which every link goes from a lower to a higher index)."""
    if not boxes:
        return Layout([], [], 0, 0)
    layers = _layers(len(boxes), links)
    cells = [_Cell(i, b.width, b.height, layers[i]) for i, b in enumerate(boxes)]
    columns: list[list[_Cell]] = [[] for _ in range(max(layers) + 1)]
    for cell in cells:
        columns[cell.layer].append(cell)
    paths = _split_long_links(cells, columns, links)
    _reduce_crossings(columns)
    _place(columns, gap_y)
    lefts = _column_positions(columns, paths, links, gap_x)
    top = min(c.y for column in columns for c in column)
    for column in columns:
        for cell in column:
            cell.y -= top
    corners = [Point(lefts[c.layer], c.y) for c in cells]
    routes = [_route(path, link, lefts, columns) for path, link in zip(paths, links, strict=True)]
    width = lefts[-1] + max(c.width for c in columns[-1])
    height = max(c.y + c.height for column in columns for c in column)
    return Layout(corners, routes, width, height)


def _layers(count: int, links: Sequence[Link]) -> list[int]:
    """Every box after all its inputs; a box without inputs just before its first user."""
    layer = [0] * count
    inputs: list[list[int]] = [[] for _ in range(count)]
    users: list[list[int]] = [[] for _ in range(count)]
    for link in links:
        inputs[link.target].append(link.source)
        users[link.source].append(link.target)
    for i in range(count):
        layer[i] = max((layer[s] + 1 for s in inputs[i]), default=0)
    for i in range(count):
        if not inputs[i] and users[i]:
            layer[i] = min(layer[u] for u in users[i]) - 1
    return layer


def _split_long_links(
    cells: list[_Cell], columns: list[list[_Cell]], links: Sequence[Link]
) -> list[list[_Cell]]:
    pieces = sum(cells[link.target].layer - cells[link.source].layer - 1 for link in links)
    paths = []
    for link in links:
        source, target = cells[link.source], cells[link.target]
        path = [source]
        if pieces <= MOST_WAYPOINTS:
            for layer in range(source.layer + 1, target.layer):
                waypoint = _Cell(None, 0, 10, layer)
                columns[layer].append(waypoint)
                path.append(waypoint)
        path.append(target)
        for i, (a, b) in enumerate(itertools.pairwise(path)):
            a_port = link.source_port if i == 0 else a.height / 2
            b_port = link.target_port if i == len(path) - 2 else b.height / 2
            a.right.append((b, a_port, b_port))
            b.left.append((a, b_port, a_port))
        paths.append(path)
    return paths


def _reduce_crossings(columns: list[list[_Cell]]) -> None:
    """Order each layer by the barycenters of its neighbours, sweeping forward and backward."""
    for column in columns:
        for place, cell in enumerate(column):
            cell.y = place
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        for column in columns if forward else reversed(columns):
            ranks = {id(c): _barycenter(c, forward) for c in column}
            column.sort(key=lambda c: ranks[id(c)])
            for place, cell in enumerate(column):
                cell.y = place


def _barycenter(cell: _Cell, forward: bool) -> float:
    neighbours = cell.left if forward else cell.right
    if not neighbours:
        return cell.y
    # The ports break ties between links that leave one box, so that these do not cross.
    return sum(n.y + far / (n.height + 1) * 0.5 for n, _, far in neighbours) / len(neighbours)


def _place(columns: list[list[_Cell]], gap: float) -> None:
    """Give every cell a vertical position: stacked at first, then pulled towards its neighbours in the same order."""
    for column in columns:
        y = 0.0
        for cell in column:
            cell.y = y
            y += cell.height + gap
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        for column in columns if forward else reversed(columns):
            wishes = [_wish(cell, forward) for cell in column]
            _settle(column, wishes, gap)


def _wish(cell: _Cell, forward: bool) -> float:
    neighbours = (cell.left or cell.right) if forward else (cell.right or cell.left)
    if not neighbours:
        return cell.y
    return sum(n.y + far - near for n, near, far in neighbours) / len(neighbours)


def _settle(column: list[_Cell], wishes: list[float], gap: float) -> None:
    """As near to the wishes as order and gaps allow, by isotonic regression: cells that push each other are a block.

    The blocks are found by the pool adjacent violators algorithm.
    """
    offsets, offset = [], 0.0
    for cell in column:
        offsets.append(offset)
        offset += cell.height + gap
    blocks: list[tuple[float, int]] = []
    for wish, shift in zip(wishes, offsets, strict=True):
        mean, size = wish - shift, 1
        while blocks and blocks[-1][0] > mean:
            other, other_size = blocks.pop()
            mean = (mean * size + other * other_size) / (size + other_size)
            size += other_size
        blocks.append((mean, size))
    starts = [mean for mean, size in blocks for _ in range(size)]
    for cell, start, shift in zip(column, starts, offsets, strict=True):
        cell.y = start + shift


def _column_positions(
    columns: list[list[_Cell]], paths: list[list[_Cell]], links: Sequence[Link], gap: float
) -> list[float]:
    """The left side of each column, with room before it for the labels of the links that start there."""
    label = [0.0] * len(columns)
    for path, link in zip(paths, links, strict=True):
        label[path[0].layer] = max(label[path[0].layer], link.label_width)
    lefts, x = [], 0.0
    for i, column in enumerate(columns):
        lefts.append(x)
        x += max((c.width for c in column), default=0.0) + gap + label[i]
    return lefts


def _route(path: list[_Cell], link: Link, lefts: list[float], columns: list[list[_Cell]]) -> list[Point]:
    points = [Point(lefts[path[0].layer] + path[0].width, path[0].y + link.source_port)]
    for waypoint in path[1:-1]:
        y = waypoint.y + waypoint.height / 2
        width = max((c.width for c in columns[waypoint.layer]), default=0.0)
        points += [Point(lefts[waypoint.layer], y), Point(lefts[waypoint.layer] + width, y)]
    points.append(Point(lefts[path[-1].layer], path[-1].y + link.target_port))
    return points
