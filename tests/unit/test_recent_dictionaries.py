"""What is kept for recent dictionaries: found by their values, and not for ever."""

from __future__ import annotations

import pyarrow as pa

from tidegate.records.recent_dictionaries import RecentDictionaries


def words(*values: str | None) -> pa.Array:
    return pa.array(values, pa.string())


def test_a_dictionary_is_found_by_its_values_in_their_order():
    recent: RecentDictionaries[int] = RecentDictionaries()
    assert recent.find(words("a")) is None
    for n, dictionary in enumerate([words("a", "b"), words("b", "a"), words("a"), words("a", None), words()]):
        assert recent.find(dictionary) is None
        recent.keep(dictionary, n)
    assert recent.find(pa.array(["x", "b", "a"]).slice(1)) == 1
    assert recent.find(words("a", None)) == 3
    assert recent.find(words("a", "")) is None
    assert recent.find(words()) == 4
    assert recent.find(pa.array(["a", "b"], pa.large_string())) is None


def test_the_one_not_asked_for_the_longest_goes():
    recent: RecentDictionaries[int] = RecentDictionaries()
    for n in range(16):
        recent.keep(words(str(n)), n)
    assert recent.find(words("0")) == 0
    recent.keep(words("new"), 16)
    assert recent.find(words("1")) is None
    assert [recent.find(words(str(n))) for n in (0, 2, 15)] == [0, 2, 15]


def test_large_ones_do_not_pile_up_but_the_last_is_always_kept():
    recent: RecentDictionaries[int] = RecentDictionaries()
    large = [pa.array([f"{n}-{i}" * 10 for i in range(40_000)]) for n in range(2)]
    recent.keep(words("small"), 7)
    for n, dictionary in enumerate(large):
        recent.keep(dictionary, n)
    assert [recent.find(d) for d in (*large, words("small"))] == [None, 1, None]


def test_what_is_kept_does_not_hold_the_memory_that_the_dictionary_came_in():
    recent: RecentDictionaries[int] = RecentDictionaries()
    before = pa.total_allocated_bytes()
    frame = pa.array(["x" * 1000] * 10_000)
    recent.keep(frame.slice(5, 2), 1)
    recent.keep(frame.cast(pa.string_view()).slice(5, 2), 2)
    del frame
    assert recent.find(pa.array(["x" * 1000] * 2)) == 1
    assert recent.find(pa.array(["x" * 1000] * 2, pa.string_view())) is None, (
        "views hold what they are views of"
    )
    assert pa.total_allocated_bytes() - before < 100_000
