"""`Environment`: where options come from, sources, and what a program holds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tidegate import BlackholeSink, ConfigurationError, Environment, ProgramError, SchemaError
from tidegate.api.environment import ambient
from tidegate.core.options import Options
from tidegate.program.sequences import NumberSequenceSource


class TestOptions:
    def test_each_place_wins_over_the_one_before(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "job.yaml"
        file.write_text(
            "parallelism: 2\nnetwork:\n  buffer_timeout: 7 ms\nprogress: 'off'\nsimulation.seed: 1\n"
        )
        monkeypatch.setattr(ambient, "arguments", ("--seed", "9"))
        env = Environment(config=file, parallelism=3, seed=2, args=["--parallelism", "4"])
        options = env.options
        assert (options.parallelism, options.buffer_timeout, options.progress) == (4, 7, "off")
        assert options.seed == 9
        assert options.origin(Options.parallelism) == "the command line"
        assert options.origin(Options.buffer_timeout) == str(file)

    def test_toml_works_as_well(self, tmp_path: Path) -> None:
        file = tmp_path / "job.toml"
        file.write_text('parallelism = 2\n[network]\nbuffer_timeout = "7 ms"\n')
        env = Environment(config=str(file))
        assert (env.options.parallelism, env.options.buffer_timeout) == (2, 7)

    def test_none_means_not_given(self) -> None:
        assert Environment(parallelism=None).options.parallelism == 1

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                {"paralelism": 2},
                r"there is no option 'paralelism' \(set in code\)\. Did you mean parallelism\?",
            ),
            ({"parallelism": 0}, "option parallelism cannot be 0"),
            ({"parallelism": 200, "max_parallelism": 128}, "parallelism .* must be at most max_parallelism"),
            ({"args": ["--paralelism", "2"]}, "Did you mean parallelism"),
            ({"args": ["parallelism=2"]}, "cannot use 'parallelism=2' on the command line"),
            ({"config": "no-such-file.yaml"}, "option file no-such-file.yaml cannot be read"),
            ({"config": "options.ini"}, r"must end in \.yaml, \.yml or \.toml"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            Environment(**arguments)


class TestSources:
    def test_from_source_needs_a_source(self) -> None:
        with pytest.raises(ProgramError, match=r"from_source needs a Source, got a str: 'in\.json'"):
            Environment().from_source("in.json")  # type: ignore[arg-type]
        with pytest.raises(ProgramError, match="from_source got the class NumberSequenceSource; give"):
            Environment().from_source(NumberSequenceSource)  # type: ignore[arg-type]

    def test_from_collection_finds_the_type_or_takes_it(self) -> None:
        env = Environment()
        assert env.from_collection([1, 2]).record_type.describe() == "int"
        assert env.from_collection(n for n in "ab").record_type.describe() == "str"
        assert env.from_collection([], type=int).record_type.describe() == "int"
        assert env.from_collection([]).record_type.is_object
        assert env.from_collection([1, "a"]).record_type.is_object

    def test_from_collection_refuses_values_that_do_not_fit(self) -> None:
        with pytest.raises(SchemaError, match="from_collection: expected int but got a str: 'a'"):
            Environment().from_collection([1, "a"], type=int)
        with pytest.raises(SchemaError, match="column 'value' is int64 but got an int"):
            Environment().from_collection([2**70])
        with pytest.raises(ProgramError, match="from_collection needs values to iterate over, got 5"):
            Environment().from_collection(5)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            (
                "abc",
                r"got one str, of which it would read the letters: 'abc'\. Pass \[value\] for one record, or list",
            ),
            (b"abc", r"got one bytes, of which it would read the bytes: b'abc'\. Pass \[value\]"),
            (
                {"a": 1},
                r"got one dict, of which it would read the keys: {'a': 1}\. Pass list\(d.items\(\)\) for pairs",
            ),
        ],
    )
    def test_from_collection_refuses_what_is_one_value(self, values: Any, message: str) -> None:
        with pytest.raises(ProgramError, match=message):
            Environment().from_collection(values)

    def test_from_sequence_refuses_what_is_no_range(self) -> None:
        with pytest.raises(ProgramError, match=r"end \(1\) must not be less than start \(5\)"):
            Environment().from_sequence(5, 1)
        with pytest.raises(ProgramError, match="start must be a 64-bit whole number"):
            Environment().from_sequence(0.5, 1)  # type: ignore[arg-type]

    def test_a_source_that_fixes_its_parallelism_refuses_another(self) -> None:
        class Single(NumberSequenceSource):
            fixed_parallelism = 1  # type: ignore[assignment]

        env = Environment(parallelism=4)
        assert env.from_source(Single(1, 2), parallelism=1)._node.parallelism == 1
        with pytest.raises(ProgramError, match="can only run with parallelism 1, got 2"):
            env.from_source(Single(1, 2), parallelism=2)


class TestPrograms:
    def test_the_name_is_the_arguments_then_the_options_then_the_scripts(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert Environment(job_name="a")._program("b").name == "b"
        assert Environment(job_name="a")._program(None).name == "a"
        for script, name in [
            ("jobs/pv_count.py", "pv_count"),
            ("-c", "job"),
            ("x/ipykernel_launcher.py", "job"),
        ]:
            monkeypatch.setattr(sys, "argv", [script])
            assert Environment()._program(None).name == name

    def test_a_program_that_is_run_takes_its_sinks_along(self) -> None:
        env = Environment()
        env.from_sequence(1, 2).print()
        assert len(env._take_program(None).sinks) == 1
        env.from_sequence(1, 2)
        assert env._take_program(None).sinks == ()

    def test_a_program_that_was_run_cannot_be_run_again_unless_it_is_built_again(self) -> None:
        env = Environment(runtime="in-process")
        for _ in range(2):
            env.from_sequence(1, 2).sink_to(BlackholeSink())
            env.execute()
            for again in (env.execute, env.execute_async, env.explain):
                with pytest.raises(
                    ProgramError, match=r"already executed.*Build the streams and their sinks again"
                ):
                    again()

    def test_one_that_never_had_a_sink_was_not_run(self) -> None:
        env = Environment(runtime="in-process")
        env.from_sequence(1, 2)
        for _ in range(2):
            with pytest.raises(ProgramError, match="no sink"):
                env.execute()

    def test_collecting_a_stream_leaves_the_other_sinks_for_later(self) -> None:
        env = Environment()
        numbers = env.from_sequence(1, 2)
        numbers.print()
        program = env._program(None, (numbers._collect_sink()._node,))
        assert [s.name for s in program.sinks] == ["collect"]
        assert program.transformations == ()
        assert [s.name for s in env._program(None).sinks] == ["print"]

    def test_what_was_collected_is_not_said_to_be_left_out_of_a_later_program(self) -> None:
        env = Environment(runtime="in-process")
        looked_at = env.from_collection([1, 2], name="looked at").map(abs, name="absolute")
        assert sorted(looked_at.execute_and_collect()) == [1, 2]
        env.from_collection([3], name="forgotten")
        env.from_collection([4]).print()
        plan = env.explain()
        assert "not run, because they lead to no sink: forgotten\n" in plan
        assert "looked at" not in plan
        assert "absolute" not in plan

    def test_the_plan_has_the_name_that_the_job_will_have(self) -> None:
        env = Environment(runtime="in-process")
        env.from_sequence(1, 2).print()
        assert env.explain(job_name="page views").startswith("job 'page views': 1 task")
        named = Environment(runtime="in-process", job_name="by option")
        named.from_sequence(1, 2).print()
        assert named.explain().startswith("job 'by option': 1 task")

    def test_writing_a_program_imports_no_runtime(self) -> None:
        import subprocess

        code = (
            "import sys, tidegate as t; e = t.Environment(); e.from_sequence(1, 2).print();"
            "print([m for m in sys.modules if m.startswith(('pyspark', 'tidegate.launch', 'tidegate.taskmanager',"
            "'tidegate.jobmanager', 'tidegate.operators', 'tidegate.spark'))])"
        )
        env = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
        result = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60
        )
        assert result.stdout == "[]\n"
