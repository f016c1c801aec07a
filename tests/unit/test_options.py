"""The option registry: layers, spellings, refusals, files and the command line."""

from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tidegate.core.errors import ConfigurationError
from tidegate.core.option_types import integer
from tidegate.core.options import Option, Options, describe, find_option, register, split_arguments
from tidegate.program.option_files import options_from_file, read_options_file


def test_defaults_hold_where_nothing_is_set() -> None:
    options = Options()
    assert (options.parallelism, options.max_parallelism, options.buffer_timeout) == (1, 128, 10)
    assert options.heartbeat_timeout == 10_000
    assert options.slots_wait_timeout == 300_000
    assert options.chaining is True
    assert options.origin(Options.parallelism) == "default"


def test_each_layer_lies_over_the_one_before() -> None:
    options = Options()
    options = options.with_values(
        {"parallelism": 2, "network.buffer_timeout": "1 s", "progress": "off"}, "f.yaml"
    )
    options = options.with_keywords(parallelism=3, buffer_timeout=timedelta(milliseconds=7))
    options = options.with_arguments(["--option", "parallelism=4"])
    assert (options.parallelism, options.buffer_timeout, options.progress) == (4, 7, "off")
    assert options.origin(Options.parallelism) == "the command line"
    assert options.origin(Options.buffer_timeout) == "code"
    assert options.origin(Options.progress) == "f.yaml"


@pytest.mark.parametrize(
    "spelling",
    [
        "network.buffer_timeout",
        "network.buffer-timeout",
        "Network.Buffer_Timeout",
        "buffer_timeout",
        "buffer-timeout",
        "execution.buffer-timeout",
    ],
)
def test_an_option_is_found_in_every_spelling(spelling: str) -> None:
    assert find_option(spelling) is Options.buffer_timeout
    assert Options().with_values({spelling: 3}, "test").buffer_timeout == 3
    assert spelling in Options()


def test_nested_and_dotted_keys_are_the_same() -> None:
    nested = Options().with_values({"network": {"buffer_timeout": 5}, "execution": {"mini_batch": True}}, "a")
    dotted = Options().with_values({"network.buffer_timeout": 5, "execution.mini_batch": "yes"}, "b")
    assert nested == dotted
    assert hash(nested) == hash(dotted)
    assert nested.as_dict() == {"network.buffer_timeout": 5, "execution.mini_batch": True}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("network.bufer_timeout", "network.buffer_timeout"),
        ("paralelism", "parallelism"),
        ("heartbeat.intervall", "heartbeat.interval"),
        ("bufer_timeout", "buffer_timeout"),
    ],
)
def test_a_mistyped_key_is_refused_with_the_nearest_right_one(wrong: str, right: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"no option '{wrong}' \(set in job.yaml\). Did you mean {right}\?"
    ):
        Options().with_values({wrong: 1}, "job.yaml")


def test_a_key_near_to_none_is_refused_with_the_list() -> None:
    with pytest.raises(ConfigurationError, match=r"no option 'zzz'.*The options are: .*network\.buffer_size"):
        Options().with_values({"zzz": 1}, "job.yaml")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"network.buffer_timeout": "5 parsecs"},
            r"option network.buffer_timeout cannot be .5 parsecs. \(set in x.toml\): .parsecs. is not a unit",
        ),
        (
            {"parallelism": 0},
            r"option parallelism cannot be 0 \(set in x.toml\). Expected a whole number from 1",
        ),
        ({"parallelism": "two"}, "cannot be 'two'"),
        ({"parallelism": 1.5}, "cannot be 1.5"),
        ({"parallelism": True}, "cannot be True"),
        ({"parallelism": None}, "cannot be None"),
        ({"progress": "maybe"}, "Expected one of auto, on, off"),
        ({"chaining": "perhaps"}, "Expected true or false"),
        ({"chaining": 1}, "Expected true or false"),
        ({"buffer_size": 0}, "at least 1 B"),
        ({"heartbeat.interval": 0}, "at least 1 ms"),
        ({"job.name": 5}, "Expected a text"),
        (
            {"network": {"buffer_timeout": 1}, "buffer_timeout": 2},
            "is set twice in x.toml: as network.buffer_t",
        ),
        ({"network": 5}, "no option 'network'"),
        ({5: 1}, "5 .*is not the name of an option"),
    ],
)
def test_a_bad_value_names_key_value_place_and_form(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Options().with_values(values, "x.toml")


def test_options_that_do_not_fit_each_other_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"parallelism \(200, set in code\) must be at most max_par.*code"
    ):
        Options().with_keywords(parallelism=200, max_parallelism=128).checked()
    with pytest.raises(
        ConfigurationError, match=r"heartbeat.timeout \(100 ms, set in code\) must be more than"
    ):
        Options().with_keywords(heartbeat_timeout=100).checked()
    assert Options().with_keywords(parallelism=200, max_parallelism=256).checked().parallelism == 200
    assert Options().with_keywords(parallelism=200).checked().parallelism == 200, (
        "derived where it is not set"
    )


def test_an_error_names_what_the_user_wrote() -> None:
    """A keyword argument in code, a key or an alias in a file."""
    for values, said in (
        ({"checkpoint_interval": "soon"}, r"option checkpoint_interval cannot be 'soon' \(set in code\)"),
        ({"restart_attempts": -1}, r"option restart_attempts cannot be -1"),
        ({"chekpoint_interval": 1}, r"no option 'chekpoint_interval' .* mean checkpoint_interval\?"),
        ({"qqqq": 1}, r"The options are: .*, checkpoint_dir, "),
        (
            {"heartbeat_timeout": 100},
            r"heartbeat_timeout \(100 ms.* than heartbeat_interval \(500 ms, set in def",
        ),
        ({"resume": "latest"}, r"option resume \(latest, set in code\) needs checkpoint_dir: "),
        (
            {"checkpoint_interval": "1 s", "checkpoint_mode": "at_most_once"},
            r"option checkpoint_interval \(1 s, set in code\) cannot be combined with checkpoint_mode \(at_most_once",
        ),
    ):
        with pytest.raises(ConfigurationError, match=said):
            Options().with_keywords(**values).checked()
    for values, said in (
        ({"checkpoint.interval": "soon"}, r"option checkpoint\.interval cannot be 'soon' \(set in x\.toml\)"),
        ({"checkpoint": {"interval": "soon"}}, r"option checkpoint\.interval cannot be 'soon'"),
        (
            {"execution.checkpointing.interval": "soon"},
            r"option execution\.checkpointing\.interval cannot be",
        ),
        ({"heartbeat.timeout": 100}, r"heartbeat\.timeout \(100 ms.* than heartbeat\.interval "),
        ({"resume": "latest"}, r"needs checkpoint\.dir: "),
    ):
        with pytest.raises(ConfigurationError, match=said):
            Options().with_values(values, "x.toml").checked()


def test_a_keyword_of_none_is_not_given() -> None:
    assert Options().with_keywords(parallelism=None).parallelism == 1


def test_options_cannot_be_changed() -> None:
    options: Any = Options()
    with pytest.raises(AttributeError, match="immutable"):
        options.parallelism = 2
    with pytest.raises(AttributeError, match="immutable"):
        options.anything = 2


def test_options_survive_pickling() -> None:
    options = Options().with_keywords(parallelism=2, job_name="clicks")
    copy = pickle.loads(pickle.dumps(options))
    assert copy == options
    assert copy.origin(Options.job_name) == "code"
    assert pickle.loads(pickle.dumps(Options.parallelism)) is Options.parallelism


def test_options_read_as_a_mapping() -> None:
    options = Options().with_keywords(parallelism=2)
    assert options["parallelism"] == 2
    assert len(options) == len(list(options)) == len(describe())
    assert "nothing" not in options
    assert repr(options) == "Options(parallelism=2)"


@pytest.mark.parametrize(
    ("words", "values", "rest"),
    [
        (["--option", "network.buffer_timeout=5 ms"], {"network.buffer_timeout": "5 ms"}, []),
        (["-o", "parallelism=2", "input.json"], {"parallelism": "2"}, ["input.json"]),
        (["--option=parallelism=2"], {"parallelism": "2"}, []),
        (["--buffer-timeout", "0"], {"network.buffer_timeout": "0"}, []),
        (["--network.buffer_timeout=1 s"], {"network.buffer_timeout": "1 s"}, []),
        (["--option", "job.name=a=b"], {"job.name": "a=b"}, []),
        (["--mini-batch"], {"execution.mini_batch": "true"}, []),
        (["--mini-batch", "in.json"], {"execution.mini_batch": "true"}, ["in.json"]),
        (["--chaining", "false", "x"], {"pipeline.operator_chaining": "false"}, ["x"]),
        (["--parallelism", "2", "--", "--parallelism", "3"], {"parallelism": "2"}, ["--parallelism", "3"]),
    ],
)
def test_the_command_line_is_split(words: list[str], values: dict[str, object], rest: list[str]) -> None:
    assert split_arguments(words) == (values, rest)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--option", "paralelism=2"], "Did you mean parallelism"),
        (["--paralelism", "2"], "Did you mean parallelism"),
        (["--option", "parallelism"], "needs key=value, but got 'parallelism'"),
        (["--option"], "needs key=value"),
        (["--parallelism"], "option parallelism needs a value"),
        (["--parallelism", "--chaining"], "option parallelism needs a value"),
        (["--parallelism", "2", "-o", "parallelism=3"], "set twice on the command line"),
    ],
)
def test_a_wrong_command_line_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        split_arguments(words)


def test_a_program_keeps_its_own_arguments() -> None:
    words = ["--input", "a.json", "--parallelism", "2", "--verbose"]
    assert split_arguments(words, known_only=True) == (
        {"parallelism": "2"},
        ["--input", "a.json", "--verbose"],
    )
    with pytest.raises(ConfigurationError, match=r"cannot use 'a\.json'"):
        Options().with_arguments(["a.json"])


def test_a_yaml_and_a_toml_file_say_the_same(tmp_path: Path) -> None:
    yaml, toml = tmp_path / "job.yaml", tmp_path / "job.toml"
    yaml.write_text(
        "parallelism: 2\nprogress: on\nnetwork:\n  buffer-timeout: 5 ms\nheartbeat.interval: 1 s\n"
    )
    toml.write_text(
        'parallelism = 2\nprogress = "on"\n"heartbeat.interval" = "1 s"\n[network]\nbuffer-timeout = 5\n'
    )
    options = options_from_file(yaml)
    assert options == options_from_file(toml)
    assert (options.parallelism, options.progress, options.buffer_timeout) == (2, "on", 5)
    assert options.origin(Options.parallelism) == str(yaml)


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    file = tmp_path / "job.yml"
    file.write_text("# nothing yet\n")
    assert options_from_file(file) == Options()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "a: [1", "is not YAML: .*line"),
        ("a.toml", "a = =\n", "is not TOML: .*line 1"),
        ("a.ini", "", "must end in .yaml, .yml or .toml"),
        ("a.yaml", "- 1\n- 2\n", "must hold keys and values .* not a list"),
        ("a.yaml", "network:\n  a: 1\n  a: 2\n", "sets 'a' twice, in line 2 and in line 3"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, name: str, text: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=rf"(?s){name}.*{message}"):
        read_options_file(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"gone\.yaml cannot be read"):
        read_options_file(tmp_path / "gone.yaml")


def test_every_option_is_described_and_its_default_reads_back() -> None:
    rows = describe()
    assert [row.key for row in rows] == sorted(row.key for row in rows)
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        option = find_option(row.key)
        assert row.help.endswith(".")
        assert row.name.isidentifier()
        if row.default != "''":
            assert option.parse(row.default, "test") == option.default


def test_two_options_cannot_share_a_spelling() -> None:
    with pytest.raises(ValueError, match="parallelism already means parallelism"):
        register(Option("test.parallelism", integer(1), 1, "Never.", aliases=["parallelism"]))
    with pytest.raises(ValueError, match="cannot be a keyword argument"):
        register(Option("test.a-b", integer(1), 1, "Never."))
