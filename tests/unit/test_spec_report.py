"""The specification report: which rows it counts, and how it refuses a wrong id."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.spec_report import load_rows, nearest_id


@pytest.fixture
def run_spec(pytester: pytest.Pytester):
    """Runs a test module with the plugin in a pytest of its own and gives its result."""

    def run(source: str, *args: str) -> pytest.RunResult:
        pytester.makepyfile(source)
        return pytester.runpytest_inprocess("-p", "tests.plugins.spec_report", "--spec-report", *args)

    return run


def test_rows_are_the_118_of_the_specification():
    numbers_per_part = {"S0": 40, "S1": 7, "S2": 14, "S3": 40, "S4": 17}
    expected = [f"{part}-{n}" for part, last in numbers_per_part.items() for n in range(1, last + 1)]
    rows = load_rows()
    assert list(rows) == expected
    assert len(rows) == 118
    assert all(title.strip() for title in rows.values())


def test_passing_test_shows_all_its_rows_and_the_total_is_the_last_line(run_spec):
    result = run_spec(
        """
        import pytest

        @pytest.mark.spec("S3-16", "S3-14")
        @pytest.mark.spec("S3-15")
        def test_chain():
            pass
        """
    )
    assert result.ret == 0
    assert result.outlines[-1] == "spec: 3 of 118 rows shown"
    shown, _, missing = "\n".join(result.outlines).partition("not shown:")
    assert all(f"  {row} " in shown for row in ("S3-14", "S3-15", "S3-16"))
    assert "passed: test_passing" in shown
    assert "::test_chain" in shown
    assert "  S3-16 " not in missing
    assert "  S3-17 " in missing


def test_row_with_one_failing_test_is_not_shown(run_spec):
    result = run_spec(
        """
        import pytest

        @pytest.mark.spec("S0-1", "S0-2")
        def test_good():
            pass

        @pytest.mark.spec("S0-1")
        def test_bad():
            assert 1 == 2
        """
    )
    assert result.ret == 1
    assert result.outlines[-1] == "spec: 1 of 118 rows shown"
    missing = "\n".join(result.outlines).partition("not shown:")[2]
    assert "FAILED: " in missing
    assert "::test_bad" in missing


def test_one_failing_parameter_spoils_the_row(run_spec):
    result = run_spec(
        """
        import pytest

        @pytest.mark.spec("S0-1")
        @pytest.mark.parametrize("n", [1, 2, 3])
        def test_numbers(n):
            assert n != 2
        """
    )
    assert result.outlines[-1] == "spec: 0 of 118 rows shown"


@pytest.mark.parametrize(
    "body",
    [
        "pytest.skip('no broker')",
        "pytest.xfail('not yet')",
    ],
)
def test_skipped_or_expected_to_fail_does_not_count(run_spec, body):
    result = run_spec(
        f"""
        import pytest

        @pytest.mark.spec("S0-14")
        def test_kafka():
            {body}
        """
    )
    assert result.outlines[-1] == "spec: 0 of 118 rows shown"
    assert any("did not run: " in line for line in result.outlines)


def test_failing_teardown_spoils_the_row(run_spec):
    result = run_spec(
        """
        import pytest

        @pytest.fixture
        def leaky():
            yield
            raise RuntimeError("left a thread")

        @pytest.mark.spec("S0-1")
        def test_clean(leaky):
            pass
        """
    )
    assert result.outlines[-1] == "spec: 0 of 118 rows shown"


def test_deselected_test_does_not_count(run_spec):
    result = run_spec(
        """
        import pytest

        @pytest.mark.spec("S0-1")
        def test_one():
            pass

        @pytest.mark.spec("S0-2")
        def test_two():
            pass
        """,
        "-k",
        "test_two",
    )
    assert result.outlines[-1] == "spec: 1 of 118 rows shown"


def test_unknown_id_stops_collection_and_names_the_nearest(run_spec):
    result = run_spec(
        """
        import pytest

        @pytest.mark.spec("S3-161")
        def test_chain():
            pass
        """
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = "\n".join(result.errlines + result.outlines)
    assert "::test_chain: no row 'S3-161' in the specification. Did you mean 'S3-16'?" in text
    assert "rows shown" not in text


def test_mark_without_an_id_is_refused(run_spec):
    result = run_spec(
        """
        import pytest

        @pytest.mark.spec
        def test_chain():
            pass
        """
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "takes one or more row ids" in "\n".join(result.errlines + result.outlines)


@pytest.mark.parametrize(
    ("wrong", "right"), [("s3-16", "S3-16"), ("S3_16", "S3-16"), ("S316", "S3-16"), ("S1-71", "S1-7")]
)
def test_nearest_id_is_the_one_meant(wrong, right):
    assert nearest_id(wrong, load_rows()) == right


class TestInTwoProcesses:
    """The same with pytest-xdist, whose workers know the marks and whose controller reports."""

    @pytest.fixture
    def run_spec(self, pytester: pytest.Pytester, monkeypatch):
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))

        def run(source: str) -> pytest.RunResult:
            pytester.makepyfile(test_one=source, test_two="def test_without_mark(): pass")
            plugin = ("-p", "tests.plugins.spec_report", "--spec-report")
            return pytester.runpytest_subprocess(*plugin, "-n", "2", "--dist", "loadfile")

        return run

    def test_rows_are_shown_by_what_the_workers_ran(self, run_spec):
        result = run_spec(
            """
            import pytest

            @pytest.mark.spec("S3-16", "S3-14")
            def test_good():
                pass

            @pytest.mark.spec("S3-14")
            def test_bad():
                assert 1 == 2

            @pytest.mark.spec("S3-15")
            def test_skipped():
                pytest.skip("no broker")
            """
        )
        assert result.ret == 1
        assert result.outlines[-1] == "spec: 1 of 118 rows shown"
        report = "\n".join(result.outlines)
        for line in (
            "passed: test_one.py::test_good",
            "FAILED: test_one.py::test_bad",
            "did not run: test_one.py::test_skipped",
        ):
            assert line in report

    def test_unknown_id_stops_the_run_and_names_the_nearest(self, run_spec):
        result = run_spec(
            """
            import pytest

            @pytest.mark.spec("S3-161")
            def test_chain():
                raise SystemExit("must not run")
            """
        )
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        text = "\n".join(result.errlines + result.outlines)
        assert "::test_chain: no row 'S3-161' in the specification. Did you mean 'S3-16'?" in text
        assert "must not run" not in text
        assert "rows shown" not in text
