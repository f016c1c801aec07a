"""Expressions of one record are taken and give the same for every cut of batches; all others are refused.

Long because it is one table: an example of every method of `pl.Expr` and its namespaces.
"""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate import Environment, WatermarkStrategy
from tidegate.api.streams import DataStream
from tidegate.core.errors import ProgramError

DAY = dt.date(2024, 2, 28)
START = dt.datetime(2024, 1, 1)  # noqa: DTZ001 - a column without a zone
ROWS = 7
FRAME = pl.DataFrame(
    {
        "i": [3, None, 1, 3, -2, 0, 7],
        "j": [2, 2, None, 5, 1, 9, 2],
        "f": [1.5, None, -0.25, float("nan"), 1.5, 0.5, 2.0],
        "s": ["b", "a", None, "a 1", "", "12", "b"],
        "n": ["3", "4", "3", "5", "-1", "0", "77"],
        "b": [True, False, None, True, True, False, False],
        "x": [b"ab", b"", None, b"c", b"ab", b"zzz", b"0"],
        "d": [DAY + dt.timedelta(k) if k != 3 else None for k in range(ROWS)],
        "t": [START + dt.timedelta(hours=31 * k) for k in range(ROWS)],
        "u": [dt.timedelta(seconds=100 * k) for k in range(ROWS)],
        "l": [[1, 2], [], None, [3, None, 3], [4], [9, 1], [2]],
        "ls": [["a", "b"], [], None, ["c"], ["a"], ["b", None], [""]],
        "lb": [[True], [], None, [False, True], [True], [False], [None]],
        "a": pl.Series(
            [[1, 2], [3, 4], None, [5, None], [1, 2], [0, 0], [9, 8]], dtype=pl.Array(pl.Int64, 2)
        ),
        "as_": pl.Series([["a", "b"]] * 3 + [["c", None]] * 4, dtype=pl.Array(pl.String, 2)),
        "ab": pl.Series([[True, False]] * 3 + [[True, None]] * 4, dtype=pl.Array(pl.Boolean, 2)),
        "st": [{"p": k, "q": str(k)} for k in range(ROWS)],
        "h": ["68", "6869", "00", "ff", "", "0a", "61"],
        "js": ['{"p": 1}', "{}", None, '{"p": 2}', '{"p": null}', "{}", '{"p": 7}'],
    }
)
c = pl.col
i, j, f, s, b, x, d, t, u, l, a = (c(name) for name in "ijfsbxdtula")  # noqa: E741
E = c("n").replace({"77": "0"}).cast(pl.Enum(["3", "4", "5", "-1", "0"]))
P = pl.Struct({"p": pl.Int64})


def twice(v: Any) -> Any:
    return sum([v, v])


ACCEPTED: dict[str, list[pl.Expr]] = {
    "abs": [i.abs()],
    "add": [i + j, i.add(1)],
    "alias": [i.alias("z")],
    "and_": [b & True],
    "arccos": [f.arccos()],
    "arccosh": [f.arccosh()],
    "arcsin": [f.arcsin()],
    "arcsinh": [f.arcsinh()],
    "arctan": [f.arctan()],
    "arctanh": [f.arctanh()],
    "bin_intervals": [i.bin_intervals([1, 3], labels=["p", "q", "r"])],
    "bitwise_count_ones": [i.bitwise_count_ones()],
    "bitwise_count_zeros": [i.bitwise_count_zeros()],
    "bitwise_leading_ones": [i.bitwise_leading_ones()],
    "bitwise_leading_zeros": [i.bitwise_leading_zeros()],
    "bitwise_trailing_ones": [i.bitwise_trailing_ones()],
    "bitwise_trailing_zeros": [i.bitwise_trailing_zeros()],
    "cast": [
        i.cast(pl.String),
        E,
        s.cast(pl.Int64, strict=False),
        i.cast(pl.Decimal(10, 2)),
        s.cast(pl.Categorical),
    ],
    "cbrt": [f.cbrt()],
    "ceil": [f.ceil()],
    "clip": [i.clip(0, j)],
    "cos": [f.cos()],
    "cosh": [f.cosh()],
    "cot": [f.cot()],
    "degrees": [f.degrees()],
    "eq": [i == j],
    "eq_missing": [i.eq_missing(j)],
    "erf": [f.erf()],
    "erfc": [f.erfc()],
    "exclude": [pl.all().exclude("i", "l").is_null()],
    "exp": [f.exp()],
    "fill_nan": [f.fill_nan(0)],
    "fill_null": [i.fill_null(j), i.fill_null(strategy="zero")],
    "floor": [f.floor()],
    "floordiv": [i // 2],
    "ge": [i >= j],
    "gt": [i > j],
    "hash": [s.hash(1)],
    "is_between": [i.is_between(0, j)],
    "is_close": [f.is_close(j)],
    "is_finite": [f.is_finite()],
    "is_in": [i.is_in([1, 3]), i.is_in(l), s.is_in(pl.Series(["a", "b"])), s.is_in({"a"})],
    "is_infinite": [f.is_infinite()],
    "is_nan": [f.is_nan()],
    "is_not_nan": [f.is_not_nan()],
    "is_not_null": [i.is_not_null()],
    "is_null": [i.is_null()],
    "le": [i <= j],
    "log": [f.log()],
    "log10": [f.log10()],
    "log1p": [f.log1p()],
    "lt": [i < j],
    "map_elements": [i.map_elements(twice, return_dtype=pl.Int64)],
    "map_batches": [i.map_batches(twice, return_dtype=pl.Int64, is_elementwise=True)],
    "mod": [i % 2],
    "mul": [i * j],
    "ne": [i != j],
    "ne_missing": [i.ne_missing(j)],
    "neg": [-i],
    "not_": [~b],
    "or_": [b | False],
    "pipe": [i.pipe(lambda e: e + 1)],
    "pow": [i**2, f.pow(j)],
    "radians": [f.radians()],
    "reinterpret": [i.reinterpret(signed=False)],
    "repeat_by": [s.repeat_by(2)],
    "replace": [i.replace({3: 4}), i.replace(pl.Series([1]), pl.Series([2])), i.replace([1, 3], 0)],
    "replace_strict": [i.replace_strict({3: 4}, default=j)],
    "round": [f.round(1)],
    "round_sig_figs": [f.round_sig_figs(1)],
    "set_sorted": [i.set_sorted()],
    "sign": [f.sign()],
    "sin": [f.sin()],
    "sinh": [f.sinh()],
    "sqrt": [f.sqrt()],
    "sub": [i - j],
    "tan": [f.tan()],
    "tanh": [f.tanh()],
    "to_physical": [d.to_physical(), E.to_physical()],
    "truediv": [i / j],
    "truncate": [f.truncate()],
    "truncdiv": [i.truncdiv(2)],
    "xor": [b ^ True],
    "str.contains": [s.str.contains("a|b")],
    "str.contains_any": [s.str.contains_any(["a", "2"])],
    "str.count_matches": [s.str.count_matches("a")],
    "str.decode": [c("h").str.decode("hex")],
    "str.encode": [s.str.encode("hex")],
    "str.ends_with": [s.str.ends_with(c("n"))],
    "str.escape_regex": [s.str.escape_regex()],
    "str.extract": [s.str.extract(r"(\d)")],
    "str.extract_all": [s.str.extract_all(r"\d")],
    "str.extract_groups": [s.str.extract_groups(r"(\d)(.)?")],
    "str.extract_many": [s.str.extract_many(["a", "1"])],
    "str.find": [s.str.find("1")],
    "str.find_many": [s.str.find_many(["a", "1"])],
    "str.head": [s.str.head(1)],
    "str.json_decode": [c("js").str.json_decode(P)],
    "str.json_path_match": [c("js").str.json_path_match("$.p")],
    "str.len_bytes": [s.str.len_bytes()],
    "str.len_chars": [s.str.len_chars()],
    "str.normalize": [s.str.normalize()],
    "str.pad_end": [s.str.pad_end(3)],
    "str.pad_start": [s.str.pad_start(3)],
    "str.replace": [s.str.replace("a", c("n"))],
    "str.replace_all": [s.str.replace_all("a", "z")],
    "str.replace_many": [s.str.replace_many({"a": "z"})],
    "str.reverse": [s.str.reverse()],
    "str.slice": [s.str.slice(1)],
    "str.split": [s.str.split(" ")],
    "str.split_exact": [s.str.split_exact(" ", 1)],
    "str.splitn": [s.str.splitn(" ", 2)],
    "str.starts_with": [s.str.starts_with("a")],
    "str.strip_chars": [s.str.strip_chars("a")],
    "str.strip_chars_end": [s.str.strip_chars_end("a")],
    "str.strip_chars_start": [s.str.strip_chars_start("a")],
    "str.strip_prefix": [s.str.strip_prefix("a")],
    "str.strip_suffix": [s.str.strip_suffix("1")],
    "str.strptime": [s.str.strptime(pl.Date, "%Y", strict=False)],
    "str.tail": [s.str.tail(1)],
    "str.to_date": [s.str.to_date("%d %m %Y", strict=False)],
    "str.to_datetime": [s.str.to_datetime("%d %m %Y", strict=False)],
    "str.to_decimal": [c("n").str.to_decimal(scale=2)],
    "str.to_integer": [c("n").str.to_integer()],
    "str.to_lowercase": [s.str.to_lowercase()],
    "str.to_time": [s.str.to_time("%H", strict=False)],
    "str.to_titlecase": [s.str.to_titlecase()],
    "str.to_uppercase": [s.str.to_uppercase()],
    "str.zfill": [s.str.zfill(3)],
    "dt.add_business_days": [d.dt.add_business_days(j.fill_null(0), holidays=[DAY], roll="forward")],
    "dt.base_utc_offset": [t.dt.replace_time_zone("Europe/Berlin").dt.base_utc_offset()],
    "dt.cast_time_unit": [t.dt.cast_time_unit("ms")],
    "dt.century": [t.dt.century()],
    "dt.combine": [t.dt.combine(dt.time(1))],
    "dt.convert_time_zone": [t.dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo")],
    "dt.date": [t.dt.date()],
    "dt.day": [d.dt.day()],
    "dt.days_in_month": [d.dt.days_in_month()],
    "dt.dst_offset": [t.dt.replace_time_zone("Europe/Berlin").dt.dst_offset()],
    "dt.epoch": [t.dt.epoch("ms")],
    "dt.hour": [t.dt.hour()],
    "dt.is_business_day": [d.dt.is_business_day(holidays=[DAY])],
    "dt.is_leap_year": [d.dt.is_leap_year()],
    "dt.iso_year": [d.dt.iso_year()],
    "dt.microsecond": [t.dt.microsecond()],
    "dt.millennium": [t.dt.millennium()],
    "dt.millisecond": [t.dt.millisecond()],
    "dt.minute": [t.dt.minute()],
    "dt.month": [t.dt.month()],
    "dt.month_end": [t.dt.month_end()],
    "dt.month_start": [t.dt.month_start()],
    "dt.nanosecond": [t.dt.nanosecond()],
    "dt.offset_by": [t.dt.offset_by("1mo")],
    "dt.ordinal_day": [t.dt.ordinal_day()],
    "dt.quarter": [t.dt.quarter()],
    "dt.replace": [t.dt.replace(month=1)],
    "dt.replace_time_zone": [t.dt.replace_time_zone("UTC")],
    "dt.round": [t.dt.round("1d")],
    "dt.second": [t.dt.second()],
    "dt.strftime": [t.dt.strftime("%H")],
    "dt.time": [t.dt.time()],
    "dt.timestamp": [t.dt.timestamp("ms")],
    "dt.to_string": [t.dt.to_string("%d")],
    "dt.total_days": [u.dt.total_days()],
    "dt.total_hours": [u.dt.total_hours()],
    "dt.total_microseconds": [u.dt.total_microseconds()],
    "dt.total_milliseconds": [u.dt.total_milliseconds()],
    "dt.total_minutes": [u.dt.total_minutes()],
    "dt.total_nanoseconds": [u.dt.total_nanoseconds()],
    "dt.total_seconds": [u.dt.total_seconds()],
    "dt.truncate": [t.dt.truncate("1d")],
    "dt.week": [t.dt.week()],
    "dt.weekday": [t.dt.weekday()],
    "dt.year": [t.dt.year()],
    "list.agg": [l.list.agg(pl.element().sum())],
    "list.all": [c("lb").list.all()],
    "list.any": [c("lb").list.any()],
    "list.arg_max": [l.list.arg_max()],
    "list.arg_min": [l.list.arg_min()],
    "list.concat": [l.list.concat(l)],
    "list.contains": [l.list.contains(i)],
    "list.count_matches": [l.list.count_matches(3)],
    "list.diff": [l.list.diff()],
    "list.drop_nulls": [l.list.drop_nulls()],
    "list.eval": [
        l.list.eval(pl.element().rank()),
        l.list.eval(pl.element().sort()),
        l.list.eval(pl.element() + 1),
    ],
    "list.filter": [l.list.filter(pl.element() > 1)],
    "list.first": [l.list.first()],
    "list.gather": [l.list.gather([0], null_on_oob=True)],
    "list.gather_every": [l.list.gather_every(2)],
    "list.get": [l.list.get(0, null_on_oob=True)],
    "list.head": [l.list.head(1)],
    "list.item": [l.list.head(1).list.item(allow_empty=True)],
    "list.join": [c("ls").list.join("-")],
    "list.last": [l.list.last()],
    "list.len": [l.list.len()],
    "list.max": [l.list.max()],
    "list.mean": [l.list.mean()],
    "list.median": [l.list.median()],
    "list.min": [l.list.min()],
    "list.n_unique": [l.list.n_unique()],
    "list.reverse": [l.list.reverse()],
    "list.set_difference": [l.list.set_difference([1])],
    "list.set_intersection": [l.list.set_intersection([1])],
    "list.set_symmetric_difference": [l.list.set_symmetric_difference(l)],
    "list.set_union": [l.list.set_union(l)],
    "list.shift": [l.list.shift()],
    "list.slice": [l.list.slice(1)],
    "list.sort": [l.list.sort()],
    "list.std": [l.list.std()],
    "list.sum": [l.list.sum()],
    "list.tail": [l.list.tail(1)],
    "list.to_array": [pl.concat_list(i, j).list.to_array(2)],
    "list.to_struct": [l.list.to_struct(fields=["p", "q"])],
    "list.unique": [l.list.unique(maintain_order=True)],
    "list.var": [l.list.var()],
    "arr.agg": [a.arr.agg(pl.element().sum())],
    "arr.all": [c("ab").arr.all()],
    "arr.any": [c("ab").arr.any()],
    "arr.arg_max": [a.arr.arg_max()],
    "arr.arg_min": [a.arr.arg_min()],
    "arr.contains": [a.arr.contains(i)],
    "arr.count_matches": [a.arr.count_matches(1)],
    "arr.dot": [a.arr.dot(a)],
    "arr.eval": [a.arr.eval(pl.element() * 2)],
    "arr.first": [a.arr.first()],
    "arr.get": [a.arr.get(0)],
    "arr.head": [a.arr.head(1)],
    "arr.join": [c("as_").arr.join("-")],
    "arr.last": [a.arr.last()],
    "arr.len": [a.arr.len()],
    "arr.max": [a.arr.max()],
    "arr.mean": [a.arr.mean()],
    "arr.median": [a.arr.median()],
    "arr.min": [a.arr.min()],
    "arr.n_unique": [a.arr.n_unique()],
    "arr.reverse": [a.arr.reverse()],
    "arr.shift": [a.arr.shift()],
    "arr.slice": [a.arr.slice(0, 1)],
    "arr.sort": [a.arr.sort()],
    "arr.std": [a.arr.std()],
    "arr.sum": [a.arr.sum()],
    "arr.tail": [a.arr.tail(1)],
    "arr.to_list": [a.arr.to_list()],
    "arr.to_struct": [a.arr.to_struct(fields=["p", "q"])],
    "arr.unique": [a.arr.unique(maintain_order=True)],
    "arr.var": [a.arr.var()],
    "struct.drop": [c("st").struct.drop(["p"])],
    "struct.eval": [c("st").struct.eval(pl.field("p") + 1)],
    "struct.field": [c("st").struct.field("p")],
    "struct.json_encode": [c("st").struct.json_encode()],
    "struct.rename_fields": [c("st").struct.rename_fields(["v", "w"])],
    "struct.unnest": [c("st").struct.unnest()],
    "struct.with_fields": [c("st").struct.with_fields(pl.field("p") + 1)],
    "cat.ends_with": [E.cat.ends_with("1")],
    "cat.len_bytes": [E.cat.len_bytes()],
    "cat.len_chars": [s.cast(pl.Categorical).cat.len_chars()],
    "cat.physical": [E.cat.physical()],
    "cat.slice": [E.cat.slice(0, 1)],
    "cat.starts_with": [E.cat.starts_with("-")],
    "bin.contains": [x.bin.contains(b"a")],
    "bin.decode": [x.bin.encode("hex").str.encode("hex")],
    "bin.encode": [x.bin.encode("hex")],
    "bin.ends_with": [x.bin.ends_with(b"b")],
    "bin.get": [x.bin.get(0, null_on_oob=True)],
    "bin.head": [x.bin.head(1)],
    "bin.reinterpret": [x.bin.head(1).bin.reinterpret(dtype=pl.UInt8)],
    "bin.size": [x.bin.size()],
    "bin.slice": [x.bin.slice(0, 1)],
    "bin.starts_with": [x.bin.starts_with(b"a")],
    "bin.tail": [x.bin.tail(1)],
    "name.keep": [i.alias("z").name.keep()],
    "name.map": [i.name.map(str.upper)],
    "name.map_fields": [c("st").name.map_fields(str.upper)],
    "name.prefix": [i.name.prefix("p")],
    "name.prefix_fields": [c("st").name.prefix_fields("p")],
    "name.replace": [i.name.replace("i", "k")],
    "name.strip_prefix": [c("as_").name.strip_prefix("a")],
    "name.strip_suffix": [c("as_").name.strip_suffix("_")],
    "name.suffix": [i.name.suffix("p")],
    "name.suffix_fields": [c("st").name.suffix_fields("p")],
    "name.to_lowercase": [i.name.to_lowercase()],
    "name.to_uppercase": [i.name.to_uppercase()],
    "pl.all_horizontal": [pl.all_horizontal(b, i > 1)],
    "pl.any_horizontal": [pl.any_horizontal(b, i > 1)],
    "pl.arctan2": [pl.arctan2(f, j)],
    "pl.business_day_count": [pl.business_day_count(pl.lit(DAY), d, holidays=[DAY])],
    "pl.coalesce": [pl.coalesce(i, j, 0)],
    "pl.concat_arr": [pl.concat_arr(i, j)],
    "pl.concat_list": [pl.concat_list(i, j)],
    "pl.concat_str": [pl.concat_str(s, c("n"), separator="-")],
    "pl.date": [pl.date(2024, pl.lit(1), j)],
    "pl.date_ranges": [pl.date_ranges(d, d)],
    "pl.datetime": [pl.datetime(2024, 1, j)],
    "pl.duration": [pl.duration(days=j)],
    "pl.escape_regex": [i + 1],  # a function of text, not of columns
    "pl.format": [pl.format("{}-{}", i, s)],
    "pl.from_epoch": [pl.from_epoch(j)],
    "pl.int_ranges": [pl.int_ranges(0, j)],
    "pl.lit": [i + pl.lit(1), pl.lit([1, 3]).list.contains(i)],
    "pl.max_horizontal": [pl.max_horizontal(i, j)],
    "pl.mean_horizontal": [pl.mean_horizontal(i, j)],
    "pl.min_horizontal": [pl.min_horizontal(i, j)],
    "pl.nth": [pl.nth(0) + 1],
    "pl.struct": [pl.struct(i, j)],
    "pl.sum_horizontal": [pl.sum_horizontal(i, j), pl.sum_horizontal(c(pl.Int64))],
    "pl.time": [pl.time(j)],
    "pl.when": [pl.when(i > 1).then(j).when(b).then(0).otherwise(i), pl.when(b).then(s)],
    "pl.sql_expr": [pl.sql_expr("i + 1")],
}
"""An example for each method (and function) that computes a row from that row."""

REFUSED: dict[str, list[Callable[[], pl.Expr]]] = {
    "all": [lambda: b.all()],
    "any": [lambda: b.any()],
    "append": [lambda: i.append(j)],
    "approx_n_unique": [lambda: i.approx_n_unique()],
    "approx_quantile": [lambda: f.approx_quantile(0.5)],
    "arg_max": [lambda: i.arg_max()],
    "arg_min": [lambda: i.arg_min()],
    "arg_sort": [lambda: i.arg_sort()],
    "arg_true": [lambda: b.arg_true()],
    "arg_unique": [lambda: i.arg_unique()],
    "backward_fill": [lambda: i.backward_fill()],
    "bin_intervals": [lambda: i.bin_intervals(2, labels=["p", "q"])],
    "bin_quantiles": [lambda: f.bin_quantiles([0.5], labels=["p", "q"])],
    "bin_ranks": [lambda: f.bin_ranks(2, labels=["p", "q"])],
    "bitwise_and": [lambda: i.bitwise_and()],
    "bitwise_or": [lambda: i.bitwise_or()],
    "bitwise_xor": [lambda: i.bitwise_xor()],
    "bottom_k": [lambda: i.bottom_k(1)],
    "bottom_k_by": [lambda: i.bottom_k_by(j, k=1)],
    "cat.physical": [lambda: s.cast(pl.Categorical).cat.physical()],
    "to_physical": [lambda: s.cast(pl.Categorical).to_physical()],
    "count": [lambda: i.count()],
    "cum_count": [lambda: i.cum_count()],
    "cum_max": [lambda: i.cum_max()],
    "cum_min": [lambda: i.cum_min()],
    "cum_prod": [lambda: i.cum_prod()],
    "cum_sum": [lambda: i.cum_sum()],
    "cumulative_eval": [lambda: i.cumulative_eval(pl.element().sum())],
    "diff": [lambda: i.diff()],
    "dot": [lambda: i.dot(j)],
    "drop_nans": [lambda: f.drop_nans()],
    "drop_nulls": [lambda: i.drop_nulls()],
    "entropy": [lambda: f.entropy()],
    "ewm_mean": [lambda: f.ewm_mean(alpha=0.5)],
    "ewm_mean_by": [lambda: f.ewm_mean_by(t, half_life="1d")],
    "ewm_std": [lambda: f.ewm_std(alpha=0.5)],
    "ewm_sum": [lambda: f.ewm_sum(alpha=0.5)],
    "ewm_sum_by": [lambda: f.ewm_sum_by(t, half_life="1d")],
    "ewm_var": [lambda: f.ewm_var(alpha=0.5)],
    "explode": [lambda: l.explode()],
    "extend_constant": [lambda: i.extend_constant(1, 2)],
    "fill_null": [
        lambda: i.fill_null(strategy="forward"),
        lambda: i.fill_null(strategy="mean"),
        lambda: i.fill_null(j.last()),
    ],
    "filter": [lambda: i.filter(b)],
    "first": [lambda: i.first()],
    "forward_fill": [lambda: i.forward_fill()],
    "gather": [lambda: i.gather([0])],
    "gather_every": [lambda: i.gather_every(2)],
    "get": [lambda: i.get(0)],
    "gt": [lambda: f > f.mean()],
    "has_nulls": [lambda: i.has_nulls()],
    "head": [lambda: i.head(1)],
    "hist": [lambda: f.hist(bin_count=2)],
    "implode": [lambda: i.implode()],
    "index_of": [lambda: i.index_of(3)],
    "inspect": [lambda: i.inspect()],
    "interpolate": [lambda: i.interpolate()],
    "interpolate_by": [lambda: i.interpolate_by(t)],
    "is_duplicated": [lambda: i.is_duplicated()],
    "is_empty": [lambda: i.is_empty()],
    "is_first_distinct": [lambda: i.is_first_distinct()],
    "is_in": [lambda: i.is_in(j), lambda: i.is_in(j.implode())],
    "is_last_distinct": [lambda: i.is_last_distinct()],
    "is_sorted": [lambda: i.is_sorted()],
    "is_unique": [lambda: i.is_unique()],
    "item": [lambda: i.item()],
    "kurtosis": [lambda: f.kurtosis()],
    "last": [lambda: i.last()],
    "len": [lambda: i.len()],
    "limit": [lambda: i.limit(1)],
    "lower_bound": [lambda: i.lower_bound()],
    "map_batches": [lambda: i.map_batches(twice, return_dtype=pl.Int64)],
    "max": [lambda: i.max()],
    "max_by": [lambda: i.max_by(j)],
    "mean": [lambda: i.mean()],
    "median": [lambda: i.median()],
    "min": [lambda: i.min()],
    "min_by": [lambda: i.min_by(j)],
    "mode": [lambda: i.mode()],
    "n_unique": [lambda: i.n_unique()],
    "nan_max": [lambda: f.nan_max()],
    "nan_min": [lambda: f.nan_min()],
    "null_count": [lambda: i.null_count()],
    "over": [lambda: i.sum().over(s), lambda: i.over(s)],
    "pct_change": [lambda: i.pct_change()],
    "peak_max": [lambda: i.peak_max()],
    "peak_min": [lambda: i.peak_min()],
    "pipe_with_dtype": [lambda: i.pipe_with_dtype(lambda e, _: e)],
    "product": [lambda: i.product()],
    "quantile": [lambda: f.quantile(0.5)],
    "rank": [lambda: i.rank()],
    "replace": [lambda: i.replace(j, 0)],
    "replace_strict": [lambda: i.replace_strict(j, i, default=0)],
    "reshape": [lambda: i.reshape((-1, 1))],
    "reverse": [lambda: i.reverse()],
    "rle": [lambda: i.rle()],
    "rle_id": [lambda: i.rle_id()],
    "rolling": [lambda: i.sum().rolling("t", period="2d")],
    "rolling_map": [lambda: f.rolling_map(lambda v: v.sum(), 2)],
    "rolling_quantile": [lambda: f.rolling_quantile(0.5, window_size=2)],
    "rolling_quantile_by": [lambda: f.rolling_quantile_by(t, "2d", quantile=0.5)],
    "sample": [lambda: i.sample(1)],
    "search_sorted": [lambda: i.search_sorted(3), lambda: i.search_sorted(j)],
    "shift": [lambda: i.shift(), lambda: i.shift(1, fill_value=0)],
    "shuffle": [lambda: i.shuffle(seed=1)],
    "skew": [lambda: f.skew()],
    "slice": [lambda: i.slice(0, 1)],
    "sort": [lambda: i.sort()],
    "sort_by": [lambda: i.sort_by(j)],
    "std": [lambda: f.std()],
    "sum": [lambda: i.sum(), lambda: i + i.sum(), lambda: pl.all_horizontal(i > i.sum(), b)],
    "tail": [lambda: i.tail(1)],
    "top_k": [lambda: i.top_k(1)],
    "top_k_by": [lambda: i.top_k_by(j, k=1)],
    "unique": [lambda: i.unique()],
    "unique_counts": [lambda: i.unique_counts()],
    "upper_bound": [lambda: i.upper_bound()],
    "value_counts": [lambda: i.value_counts()],
    "var": [lambda: f.var()],
    "str.join": [lambda: s.str.join(",")],
    "str.strptime": [lambda: s.str.strptime(pl.Date, strict=False)],
    "str.to_date": [lambda: s.str.to_date(strict=False)],
    "str.to_datetime": [lambda: s.str.to_datetime(strict=False)],
    "list.explode": [lambda: l.list.explode()],
    "list.eval": [lambda: l.list.eval(pl.element().shuffle()), lambda: l.reverse().list.eval(pl.element())],
    "list.sample": [lambda: l.list.sample(fraction=1.0, seed=1)],
    "arr.explode": [lambda: a.arr.explode()],
    "struct.with_fields": [lambda: c("st").struct.with_fields(pl.field("p").sum())],
    "name.keep": [lambda: i.sum().alias("z").name.keep()],
    "pl.arange": [lambda: pl.arange(0, pl.len())],
    "pl.arg_sort_by": [lambda: pl.arg_sort_by(i)],
    "pl.arg_where": [lambda: pl.arg_where(b)],
    "pl.concat_list": [lambda: pl.concat_list(i, j.first())],
    "pl.corr": [lambda: pl.corr(f, j)],
    "pl.cov": [lambda: pl.cov(f, j)],
    "pl.cum_fold": [lambda: pl.cum_fold(pl.lit(0), lambda p, q: p + q, [i, j])],
    "pl.cum_reduce": [lambda: pl.cum_reduce(lambda p, q: p + q, [i, j])],
    "pl.cum_sum_horizontal": [lambda: pl.cum_sum_horizontal(i, j)],
    "pl.date_range": [lambda: pl.date_range(pl.date(2024, 1, 1), pl.date(2024, 1, 7))],
    "pl.datetime_range": [lambda: pl.datetime_range(pl.date(2024, 1, 1), pl.date(2024, 1, 7))],
    "pl.fold": [lambda: pl.fold(pl.lit(0), lambda p, q: p + q, [i, j])],
    "pl.int_range": [lambda: pl.int_range(0, pl.len())],
    "pl.len": [lambda: pl.len(), lambda: i + pl.len()],
    "pl.linear_space": [lambda: pl.linear_space(0, 1, 3)],
    "pl.lit": [lambda: i + pl.lit(pl.Series([1] * ROWS)), lambda: pl.lit(pl.Series([1]))],
    "pl.map_batches": [lambda: pl.map_batches([i, j], lambda v: v[0], return_dtype=pl.Int64)],
    "pl.map_groups": [lambda: pl.map_groups([i], lambda v: v[0], return_dtype=pl.Int64, returns_scalar=True)],
    "pl.ones": [lambda: pl.ones(3)],
    "pl.reduce": [lambda: pl.reduce(lambda p, q: p + q, [i, j])],
    "pl.repeat": [lambda: pl.repeat(1, 3)],
    "pl.rolling_corr": [lambda: pl.rolling_corr(f, j, window_size=2)],
    "pl.rolling_cov": [lambda: pl.rolling_cov(f, j, window_size=2)],
    "pl.row_index": [lambda: pl.row_index()],
    "pl.time_range": [lambda: pl.time_range(dt.time(1), dt.time(5))],
    "pl.when": [lambda: pl.when(i > i.mean()).then(1), lambda: pl.when(b).then(j.sum()).otherwise(0)],
    "pl.zeros": [lambda: pl.zeros(3)],
}
REFUSED |= {
    f"rolling_{name}": [lambda name=name: getattr(f, f"rolling_{name}")(2)]
    for name in ("kurtosis", "max", "mean", "median", "min", "rank", "skew", "std", "sum", "var")
}
REFUSED |= {
    f"rolling_{name}_by": [lambda name=name: getattr(f, f"rolling_{name}_by")(t, "2d")]
    for name in ("max", "mean", "median", "min", "rank", "std", "sum", "var")
}

NAMESPACES = {"str", "dt", "list", "arr", "struct", "cat", "bin", "name"}
NO_EXPRESSION = {"deserialize", "meta", "ext", "map", *NAMESPACES}
"""Members that make no expression here: namespaces, and those of types that streams do not have."""
ELSEWHERE = {"cut", "qcut", "list.to_map", "cat.to"}
"""Deprecated, or of types that streams do not have."""


def stream(env: Environment | None = None, frame: pl.DataFrame = FRAME) -> DataStream:
    env = env or Environment(runtime="in-process", parallelism=1)
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    return env.from_collection(table.to_pylist(), type=table.schema)


STREAM = stream()


def cuts(size: int) -> Iterator[pl.DataFrame]:
    for start in range(0, ROWS, size):
        yield FRAME.slice(start, size)


def test_every_method_of_an_expression_is_known_to_be_taken_or_refused() -> None:
    members = {m for m in dir(pl.Expr) if not m.startswith("_")} - NO_EXPRESSION
    for space in NAMESPACES:
        members |= {f"{space}.{m}" for m in dir(getattr(pl.col("i"), space)) if not m.startswith("_")}
    unknown = members - ACCEPTED.keys() - REFUSED.keys() - ELSEWHERE
    assert not unknown, (
        f"this polars has more methods: put an example of each into ACCEPTED or REFUSED: {unknown}"
    )


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_accepted_gives_the_same_for_every_cut_of_batches(name: str) -> None:
    for expression in ACCEPTED[name]:
        STREAM.select(expression)
        STREAM.with_columns(expression)
        whole = FRAME.select(expression)
        assert whole.height == ROWS
        for size in (1, 2, 3):
            parts = [part.select(expression) for part in cuts(size)]
            assert pl.concat(parts).equals(whole, null_equal=True), f"{expression} in batches of {size}"


@pytest.mark.parametrize("name", REFUSED)
def test_what_looks_at_more_than_one_record_is_refused_by_name_with_something_to_use_instead(
    name: str,
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expressions = [make() for make in REFUSED[name]]
    for expression in expressions:
        for use in (STREAM.select, STREAM.with_columns):
            with pytest.raises(ProgramError, match=r"is not computed from one record alone.*Instead: "):
                use(expression, *([] if use == STREAM.with_columns else [i.alias("beside")]))


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        (f > f.mean(), 'col("f").mean() in [(col("f")) > (col("f").mean())]'),
        (i.sort() > 1, 'col("i").sort(asc)'),
        (i.shift() > 1, "shift"),
        (i.cum_sum() > 1, "cum_sum"),
        (i.rank() > 1, "rank"),
        (i.sum().over(s) > 1, "over"),
        (pl.len() > 1, "len()"),
        (i.is_unique(), "is_unique"),
    ],
)
def test_filter_and_timestamps_refuse_them_too_and_name_the_part_to_blame(
    expression: pl.Expr, named: str
) -> None:
    with pytest.raises(ProgramError) as refused:
        STREAM.filter(expression)
    assert str(refused.value).startswith("filter: ")
    assert named in str(refused.value)
    stamped = WatermarkStrategy.bounded("1 s", expression.cast(pl.Int64))
    with pytest.raises(ProgramError) as refused:
        STREAM.assign_timestamps_and_watermarks(stamped)
    assert named in str(refused.value)


def test_an_expression_that_is_nested_too_deep_for_the_check_is_refused_with_a_way_out() -> None:
    deep = i
    for _ in range(1_000):
        deep = deep + 1
    with pytest.raises(ProgramError, match=r"nested too deep.*sum_horizontal"):
        STREAM.select(deep)


def test_a_function_that_lies_about_being_row_wise_fails_the_operator_instead_of_moving_timestamps() -> None:
    first = i.map_batches(lambda v: v.head(1), return_dtype=pl.Int64, is_elementwise=True)
    with pytest.raises(Exception, match=r"1.*(7|height)"):
        list(stream().select(first).execute_and_collect())


NUMBERS = st.recursive(
    st.sampled_from(
        [i, j, f, l.list.sum(), s.str.len_chars(), t.dt.hour(), c("st").struct.field("p"), pl.lit(2)]
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner, inner).map(lambda p: pl.when(p[0] > p[1]).then(p[2]).otherwise(p[0])),
        st.tuples(inner, inner).map(lambda p: pl.max_horizontal(*p)),
        st.tuples(inner, inner).map(lambda p: pl.coalesce(*p)),
        inner.map(lambda e: e.fill_null(0).abs()),
        inner.map(lambda e: e.cast(pl.Int64, strict=False).is_in([2, 3]).cast(pl.Int64)),
        inner.map(lambda e: e.clip(0, 3)),
    ),
    max_leaves=6,
)
ACROSS = st.sampled_from(
    [pl.Expr.sum, pl.Expr.cum_sum, pl.Expr.shift, pl.Expr.rank, pl.Expr.reverse, pl.Expr.first, pl.Expr.sort]
)


@given(NUMBERS, st.sampled_from([1, 2, 3]))
def test_any_accepted_expression_gives_the_same_for_every_batch_size(expression: pl.Expr, size: int) -> None:
    made = [i.alias("beside"), expression.alias("made")]
    STREAM.select(*made)
    parts = pl.concat([part.select(made) for part in cuts(size)])
    assert parts.equals(FRAME.select(made), null_equal=True)


@given(NUMBERS, ACROSS, NUMBERS)
def test_one_part_that_looks_across_records_is_found_anywhere(
    inside: pl.Expr, across: Callable[[pl.Expr], pl.Expr], beside: pl.Expr
) -> None:
    with pytest.raises(ProgramError, match="not computed from one record alone"):
        STREAM.with_columns(pl.max_horizontal(beside, across(inside) + 1).alias("made"))


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_a_program_of_accepted_expressions_gives_the_same_for_every_batch_size(rows: int) -> None:
    env = Environment(runtime="in-process", parallelism=1, batch_rows=rows)
    made = (
        stream(env)
        .with_columns(l.list.eval(pl.element().rank()).list.sum().alias("ranks"), (i + j).alias("both"))
        .filter(pl.col("both").is_null() | (pl.col("both") > 0))
        .select("both", "ranks", pl.when(b).then(s).otherwise(c("n")).alias("text"))
    )
    got = [tuple(row) for row in made.execute_and_collect()]
    assert got == [
        (5, 3.0, "b"),
        (None, 0.0, "4"),
        (None, None, "3"),
        (8, 3.0, "a 1"),
        (9, 3.0, "0"),
        (9, 1.0, "77"),
    ]
