"""The command line: each command, and one clear line for each mistake."""

import subprocess
import sys

import pytest

import dnnarray as dnn
from dnnarray import _versions
from dnnarray.__main__ import main
from dnnarray._call.arrays import engine_of
from dnnarray._cuda.core import requirements
from dnnarray._select import tuning


def _explained(capsys, *arguments):
    assert main(["explain", *arguments]) == 0
    return capsys.readouterr().out.rstrip("\n")


def test_explain_prints_what_the_function_gives(capsys):
    expected = str(dnn.explain("relu", dnn.Spec((2, 3), "float32")))
    assert _explained(capsys, "relu", "2,3:float32") == expected
    assert _explained(capsys, "relu", "2,3") == expected


def test_options_and_named_arrays(capsys):
    specs = dnn.Spec((2, 5, 3), "float64"), dnn.Spec((2, 3), "int64"), dnn.Spec((5,), "float64")
    expected = str(dnn.explain("cross_entropy", *specs, reduction="sum", axis=-2))
    words = ("2,5,3:float64", "2,3:int64", "--reduction", "sum", "--axis", "-2")
    assert _explained(capsys, "cross_entropy", *words, "--weight", "5") == expected
    assert _explained(capsys, "cross_entropy", "2,5,3:float64", "2,3:int64", "5", *words[2:]) == expected
    assert _explained(capsys, "cross_entropy", *words, "--weight=5", "--label-smoothing=0.0") == expected


def test_an_array_left_out_and_one_without_axes(capsys):
    specs = dnn.Spec((), "float16"), dnn.Spec((4, 2), "float16"), dnn.Spec((4,), "int32")
    expected = str(dnn.explain("nll_loss_backward", *specs, None))
    assert _explained(capsys, "nll_loss_backward", "():float16", "4,2", "4:int32", "-") == expected


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"dnnarray {dnn.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cross_entrpy", "2,3"), "no operation is called 'cross_entrpy'. Did you mean 'cross_entropy'"),
        (
            ("relu", "2,3", "--device", "cpu"),
            "--device is no option of the call; write it before the operation's name.",
        ),
        (("zzzzz", "2,3"), "no operation is called 'zzzzz'. dir(dnnarray) lists them."),
        (("relu", "2,x"), "'2,x' is no array; write SHAPE[:DTYPE]"),
        (("relu", "2,3:float33"), "Spec: dtype is 'float33'"),
        (("relu", "2,3:int32"), "relu: x is int32; expected float64"),
        (("relu", "2,-3"), "Spec: shape is (2, -3)"),
        (("relu",), "relu: x is missing"),
        (("relu", "2", "3"), "relu: takes 1 arrays (x), got 2."),
        (("relu", "2", "--slope", "3"), "unknown or repeated argument 'slope'"),
        (("relu", "2", "--slope"), "--slope has no value"),
        (("cross_entropy", "2,3", "2:int64", "--axis", "7"), "cross_entropy: axis is 7"),
        (("cross_entropy", "2,3", "2:int64", "--reduction", "avg"), "cross_entropy: reduction is 'avg'"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments, message, capsys):
    assert main(["explain", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("dnnarray: ")
    assert message in captured.err


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["explain"]])
def test_argparse_refuses_the_rest(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: python -m dnnarray" in capsys.readouterr().err


def test_info_prints_versions(capsys):
    assert main(["info"]) == 0
    assert capsys.readouterr().out.startswith("dnnarray")


@pytest.mark.parametrize(("ok", "code"), [(True, 0), (False, 1)])
def test_check_tells_by_its_exit_code(ok, code, monkeypatch, capsys):
    monkeypatch.setattr(dnn, "check", lambda: _versions.Report((_versions.Item("thing", ok, "found"),)))
    assert main(["check"]) == code
    assert "thing: found" in capsys.readouterr().out


def test_as_a_module():
    command = [sys.executable, "-W", "error", "-m", "dnnarray", "explain", "relu", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("relu: float32[4]")


def test_an_integer_stands_for_an_array_where_the_function_takes_one(capsys):
    specs = (dnn.Spec((1, 2, 3, 4), "float32"),) * 3
    expected = str(dnn.explain("attention", *specs, causal=True, causal_offset=3))
    assert _explained(capsys, "attention", *["1,2,3,4"] * 3, "--causal", "True", "--causal-offset", "3") == expected


@pytest.mark.parametrize(
    "arguments",
    [("relu", "9" * 400), ("softmax", "4,4", "--axis", "{[1]}"), ("relu", "4", "--help"), ("relu", "-", "-h")],
)
def test_nonsense_is_a_clear_line_too(arguments, capsys):
    assert main(["explain", *arguments]) == 2
    assert capsys.readouterr().err.startswith("dnnarray: ")


def test_an_unknown_algorithm_is_named(capsys):
    assert main(["explain", "relu", "4", "--algorithm", "magic"]) == 2
    assert "relu: algorithm is 'magic'; expected one of 'elementwise'" in capsys.readouterr().err


def test_bench_measures_every_algorithm(capsys):
    assert main(["bench", "linear_cross_entropy", "4,3", "5,3", "4:int64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "linear_cross_entropy: float32[4, 3], float32[5, 3], int64[4]"
    assert {line.split()[0] for line in lines[1:]} == {"blocks", "small_blocks"}


def test_tune_remembers_and_cache_shows_and_clears(capsys, own_caches):
    assert main(["cache"]) == 0
    assert "no measured times" in capsys.readouterr().out
    assert main(["tune", "linear_cross_entropy", "4,3", "5,3", "4:int64"]) == 0
    assert f"remembered in {own_caches}" in capsys.readouterr().out
    assert main(["cache"]) == 0
    assert "1 measured calls" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert "removed" in capsys.readouterr().out
    assert not list(own_caches.glob("tuning_*.json"))


def test_tune_and_cache_say_what_could_not_be_written_or_removed(capsys, own_caches, pytestconfig):
    if pytestconfig.getoption("--compiled"):
        pytest.skip("what is remembered is made up there")
    table = tuning.path_of(engine_of(()).device())
    own_caches.mkdir(0o700)
    table.mkdir()  # neither read, nor written, nor removed
    with pytest.warns(UserWarning, match="cannot be read"):
        assert main(["tune", "linear_cross_entropy", "4,3", "5,3", "4:int64"]) == 2
    told = capsys.readouterr()
    assert "blocks" in told.out
    assert "remembered" not in told.out
    assert f"nothing is remembered in {own_caches}" in told.err
    assert main(["cache", "clear"]) == 1
    assert f"{table.name}: cannot be removed" in capsys.readouterr().out
    table.rmdir()
    table.write_text("{")
    assert main(["cache", "clear"]) == 0
    assert main(["tune", "linear_cross_entropy", "4,3", "5,3", "4:int64"]) == 0


_SCRIPT = """
import sys
import numpy as np
import dnnarray as dnn
x = np.ones((2, 8, 9, 5), np.float32).transpose(0, 3, 1, 2)
for _ in range(3):
    y = dnn.conv(x, np.ones((4, 5, 3, 3), np.float32), None, padding=((1, 1), (0, 2)), activation="relu")
dnn.dropout(y, p=0.25, seed=3)
dnn.attention(*[np.ones((1, 2, 3, 4), np.float16)] * 3, causal_offset=1, causal=True)
dnn.layer_norm(np.float64(3) * np.ones((2, 2)))
try:
    dnn.relu(np.ones(2, int))
except TypeError:
    pass
assert sys.argv[1:] == ["--words", "of the script"]
"""


@pytest.fixture
def recorded(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DNNARRAY_CACHE_DIR", str(tmp_path / "cache"))
    script, file = tmp_path / "script.py", tmp_path / "calls.txt"
    script.write_text(_SCRIPT)
    for _ in range(2):  # the second time adds nothing
        assert main(["record", str(file), str(script), "--words", "of the script"]) == 0
        assert f"4 kinds of calls in {file}" in capsys.readouterr().out
    return file


def test_record_writes_what_a_script_calls(recorded):
    assert recorded.read_text().splitlines() == [
        "conv 2,5,8,9:float32@0,2,3,1 4,5,3,3:float32 --padding '((1,1),(0,2))' --activation relu",
        "dropout 2,4,8,9:float32@0,2,3,1 --p 0.25 --seed 0",
        "attention 1,2,3,4:float16 1,2,3,4:float16 1,2,3,4:float16 --causal_offset 1 --causal True",
        "layer_norm 2,2:float64",
    ]


def test_commands_take_a_file_of_calls(recorded, capsys):
    memory_order = dnn.Spec((2, 4, 8, 9), "float32", (288, 1, 36, 4))
    assert main(["tune", str(recorded)]) == 0
    out = capsys.readouterr().out
    assert "[1/4] conv" in out
    assert "[4/4] layer_norm" in out
    assert main(["explain", str(recorded)]) == 0
    assert str(dnn.explain("dropout", memory_order, p=0.25, seed=0)) in capsys.readouterr().out
    recorded.write_text("# a comment\n\nrelu 4\nrelu 4,x\nsoftmax 4,4\n")
    assert main(["explain", str(recorded)]) == 2
    captured = capsys.readouterr()
    assert "'4,x' is no array" in captured.err
    assert "[3/3] softmax" in captured.out


def test_record_needs_a_script_and_a_folder(tmp_path, capsys):
    assert main(["record", str(tmp_path / "calls.txt"), str(tmp_path / "none.py")]) == 2
    assert "there is no script" in capsys.readouterr().err
    script = tmp_path / "script.py"
    script.write_text("")
    assert main(["record", str(tmp_path / "none" / "calls.txt"), str(script)]) == 2
    assert "record is" in capsys.readouterr().err
    assert main(["record", str(tmp_path / "calls.txt"), str(script)]) == 0
    assert "0 kinds of calls" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["2,3@0", "2,3@0,0", "2,3@a", "2,3@2,1"])
def test_an_order_of_axes_names_each_once(word, capsys):
    assert main(["explain", "relu", word]) == 2
    assert "dnnarray: '2,3@" in capsys.readouterr().err


def test_specs_may_be_asked_of_the_other_engine(capsys):
    if requirements.problem():
        assert main(["explain", "--device", "cuda", "relu", "4"]) == 2
        assert "specs_on='cuda' asks for a CUDA device" in capsys.readouterr().err
    else:
        assert main(["explain", "--device", "cuda", "relu", "4"]) == 0
