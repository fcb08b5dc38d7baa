"""Goal: Python gets the answers, the errors and the program of the command line.

Method: the wheel is installed, and each answer is held against what the installed program prints.
"""

import copy
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path

import pytest

import collcast

ROOT = Path(__file__).parents[3]
SCRIPT = Path(sysconfig.get_path("scripts")) / "collcast"
DATA = ROOT / "tests" / "data"


def program(*words):
    return subprocess.run([SCRIPT, *map(str, words)], capture_output=True, text=True, cwd=ROOT)


def test_a_forecast_is_that_of_the_program():
    result = collcast.forecast("aws-p5", nodes=2, collective="all_reduce", sizes="1M:64M:8")
    printed = program("sweep", "aws-p5", "--nodes", 2, "-c", "all_reduce", "-s", "1M:64M:8", "--format", "json")
    assert result.json == json.loads(printed.stdout)
    assert result.ok and result.json["predicted"] and [r["size_bytes"] for r in result.table()] == [1 << 20, 8 << 20, 64 << 20]
    assert "over 16 ranks" in repr(result) and result.verdict
    # Lists are joined, numbers are words, pairs are variables.
    forced = collcast.sweep("h200x4", size=[1024, "1M"], env={"NCCL_ALGO": "Ring"}, algorithm=["ring", "tree"])
    assert [row["algorithm"] for row in forced.table()] == ["ring", "ring", "tree", "tree"]


def test_shares_are_percent_for_people_and_fractions_for_programs():
    result = collcast.validate(DATA / "h200x4_bench" / "nccl_channels_4.csv", topology="h200x4")
    share = result.table("groups")[0]["median_abs_error"]
    shown = f"{100 * share:.1f}"
    for text in (str(result), result.to_html()):
        assert 0 < share < 1 and "median %" in text and shown in text and f"{share:.4f}" not in text
    assert pickle.loads(pickle.dumps(result)).to_html() == result.to_html()


def test_tables_go_to_pandas_and_arrow():
    result = collcast.forecast("h200x4", sizes="1M:16M:4")
    frame = result.to_pandas()
    assert list(frame["size_bytes"]) == [1 << 20, 4 << 20, 16 << 20] and frame["time_us"].dtype.kind == "f"
    assert result.to_arrow().column_names == list(frame.columns)
    assert result.to_arrow()["time_us"].to_pylist() == list(frame["time_us"])
    with pytest.raises(collcast.Error, match="there is no table `row`; there are rows") as raised:
        result.to_pandas("row")
    assert raised.value.code == 2
    # A column without a value is of the type that the schema names.
    assert not any(column["instead_of"] for column in result.table())
    assert str(result.to_arrow().schema.field("instead_of").type) == "string"


def test_values_of_python_and_numpy_are_words():
    import numpy
    import pandas

    sizes = [1 << 20, 4 << 20]
    wanted = collcast.sweep("h200x4", sizes=sizes, env={"NCCL_P2P_DISABLE": 1}).json["rows"]
    for given in (numpy.array(sizes), pandas.Series(sizes), (size for size in sizes), [numpy.int64(size) for size in sizes]):
        for yes in (True, numpy.bool_(True)):
            assert collcast.sweep("h200x4", sizes=given, env={"NCCL_P2P_DISABLE": yes}).json["rows"] == wanted
            given = sizes
    assert collcast.forecast("h200x4", size=numpy.float32(1024), in_place=numpy.bool_(True)).table()[0]["size_bytes"] == 1024
    log = DATA / "h200x4" / "all_reduce_Ring_Simple.log"
    assert collcast.validate([log], topology="h200x4").json == collcast.validate(log, topology="h200x4").json


def test_answers_and_errors_are_pickled():
    result = collcast.forecast("h200x4", sizes="1M:16M:4")
    linted = collcast.lint(DATA / "lint" / "numbers.bad.env")
    for one in (result, linted, collcast.topo("list")):
        for again in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
            assert (repr(again), again.json, again.tables) == (repr(one), one.json, one.tables)
            assert (again.code, again.notes, again.to_html()) == (one.code, one.notes, one.to_html())
    with pytest.raises(collcast.Error) as raised:
        collcast.forecast("dgx-h1000")
    again = pickle.loads(pickle.dumps(raised.value))
    assert (type(again), str(again), again.code) == (collcast.Error, str(raised.value), 2)


def verdict(nodes):
    return collcast.forecast("dgx-h100", nodes=nodes, sizes="1M:64M:2").verdict


def test_forked_processes_answer():
    here = [verdict(1), verdict(2)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(verdict, [1, 2]).get(timeout=60) == here


def test_processes_of_its_own_answer_or_raise(tmp_path, monkeypatch):
    with pytest.raises(collcast.Error) as raised:
        collcast.bench("h200x2", size="1K", backend="nccl-p2p")
    printed = program("bench", "h200x2", "--size", "1K", "--backend", "nccl-p2p")
    assert raised.value.code == printed.returncode != 0
    assert str(raised.value) in printed.stderr.replace("\n  | ", "\n")
    # The process of a host with GPUs, in words.
    rows = collcast.bench("h200x2", size="1K", batches=3)
    (tmp_path / "rows.json").write_text(rows._report.json())
    other = tmp_path / "collcast"
    other.write_text(f'#!/bin/sh\n[ "$1 $2" = "bench --format=json" ] || exit 9\necho "note: here" >&2\ncat {tmp_path}/rows.json\n')
    other.chmod(0o755)
    monkeypatch.setattr(collcast, "_program", lambda: str(other))
    found = collcast.bench("h200x2", size="1K", backend="nccl-p2p")
    assert found.json == rows.json and found.ok and found.notes == "note: here\n"
    with pytest.raises(collcast.Error, match="leave `output` out"):
        collcast.bench("h200x2", size="1K", backend="nccl-p2p", output=tmp_path / "rows.csv")
    # Nothing to start: not python, which would run a file of the name `bench`.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(collcast, "_program", lambda: None)
    for name in ("bench", "bench-worker"):
        (tmp_path / name).write_text("open('ran', 'w')")
    for backend in ("nccl-p2p", "nccl"):
        with pytest.raises(collcast.Error, match="install the wheel with pip") as raised:
            collcast.bench("h200x2", size="1K", backend=backend, ranks=2)
        assert raised.value.code == 3 and not (tmp_path / "ran").exists()


def test_what_has_no_other_place_is_a_warning(monkeypatch):
    monkeypatch.setenv("COLLCAST_NODES", "2")
    with pytest.warns(UserWarning, match="--nodes 2 is from COLLCAST_NODES") as told:
        collcast.convert("h200x2", size="1K", algorithm="ring")
    assert told[0].filename == __file__
    monkeypatch.delenv("COLLCAST_NODES")
    monkeypatch.setenv("COLLCAST_NODS", "2")
    with pytest.warns(UserWarning, match="did you mean COLLCAST_NODES?"):
        result = collcast.forecast("h200x2", size="1K")
    assert "COLLCAST_NODS sets nothing" in result.notes


def test_options_are_those_of_commands_within():
    assert "output" in collcast.options("topo") and "topology" in collcast.options("profile")
    assert "    output: " in collcast.topo.__doc__


def test_a_notebook_shows_a_page_with_pictures(tmp_path):
    result = collcast.forecast("h200x4", sizes="1M:16M:4")
    assert "<svg" in result.to_html() and result._repr_html_().startswith("<iframe srcdoc=")
    result.save(tmp_path / "page.html")
    result.save(tmp_path / "result.json")
    # Markdown of the program has fewer columns: an answer in Python holds those of programs.
    result.save(tmp_path / "saved.md")
    assert (tmp_path / "saved.md").read_text().startswith("### ")
    for name in ("saved.csv", "saved.xml"):
        result.save(tmp_path / name)
        collcast.forecast("h200x4", sizes="1M:16M:4", output=tmp_path / f"written_{name}")
        assert (tmp_path / name).read_text() == (tmp_path / f"written_{name}").read_text()
    with pytest.raises(collcast.Error, match="no answer as .png"):
        result.save(tmp_path / "picture.png")
    with pytest.raises(collcast.Error, match="there is no `output`"):
        collcast.forecast("h200x4", format="csv")
    again = program("report", tmp_path / "result.json", "-o", tmp_path / "again.html")
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize(
    "ask",
    [
        lambda: collcast.simulate("h200x4", size="64M"),
        lambda: collcast.plan("llama3-8b", on="dgx-h100", gpus=16),
        lambda: collcast.transfer("dgx-h100", **{"from": "gpu:0", "to": "gpu:9"}, size="1G"),
        lambda: collcast.validate(DATA / "h200x4" / "all_reduce_Ring_Simple.log", topology="h200x4"),
        lambda: collcast.compare(DATA / "h200x4" / "nccl.csv", where_a=["in_place=0"], where_b=["in_place=1"]),
        lambda: collcast.trace(DATA / "trace" / "ddp_0.json.gz", DATA / "trace" / "ddp_1.json.gz"),
        lambda: collcast.tune("h200x4", measurements=DATA / "h200x4" / "nccl.csv", launch="graph"),
        lambda: collcast.lint(DATA / "lint" / "numbers.bad.env"),
        lambda: collcast.topo("list"),
    ],
)
def test_every_question_has_an_answer(ask):
    result = ask()
    assert isinstance(result, collcast.Result) and result.tables and result.to_pandas().shape[0] > 0
    assert result.json["schema"].startswith("collcast/")


def test_errors_have_the_text_of_the_program():
    with pytest.raises(collcast.Error) as raised:
        collcast.forecast("dgx-h1000")
    printed = program("sweep", "dgx-h1000")
    assert raised.value.code == printed.returncode == 2
    assert str(raised.value).strip() == printed.stderr.removeprefix("error: ").strip()
    with pytest.raises(collcast.Error, match="did you mean `nodes`?"):
        collcast.forecast("dgx-h100", nods=2)
    with pytest.raises(collcast.Error, match="takes a value"):
        collcast.forecast("dgx-h100", nodes=True)
    with pytest.raises(collcast.Error, match="of type object"):
        collcast.forecast("dgx-h100", nodes=object())
    with pytest.raises(collcast.Error, match="invalid value"):
        collcast.forecast("dgx-h100", nodes="many")
    # A value that looks like an option is none.
    with pytest.raises(collcast.Error, match="--help"):
        collcast.forecast("--help")


def test_the_answer_no_is_no_error():
    slow = collcast.trace(*(DATA / "trace" / f"fsdp_{rank}.json.gz" for rank in (0, 1)), topology="dgx-b200", gpus=2)
    assert not slow.ok and slow.code == 1 and slow.json["verdict"]["status"] == "failed"


def test_other_threads_run_meanwhile():
    turns, done = 0, threading.Event()

    def count():
        nonlocal turns
        while not done.is_set():
            turns += 1
            time.sleep(0.001)

    other = threading.Thread(target=count)
    other.start()
    collcast.forecast("dgx-h100", nodes=4, sizes="1M:64M:2")
    done.set()
    other.join()
    assert turns > 5


def test_ctrl_c_stops_an_answer():
    # What a shell starts in the background ignores SIGINT, and so do its children.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import collcast; "
        "collcast.forecast('dgx-h100', nodes=512, collective='all_reduce', sizes='8:8G:2', algorithm='best')"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    time.sleep(3)
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors and child.returncode != 0


def test_the_console_script_is_the_program():
    version = program("--version")
    assert version.returncode == 0 and version.stdout == f"collcast {collcast.__version__}\n"
    table = program("sweep", "h200x4", "-s", "64M")
    assert table.returncode == 0 and "all_reduce over 4 ranks" in table.stdout
    assert program("sweep", "--nodes", "x").returncode == 2


def test_the_stubs_are_those_of_the_program():
    sys.path.insert(0, os.fspath(Path(__file__).parent))
    import stubs

    package = Path(__file__).parents[1] / "package" / "collcast" / "__init__.pyi"
    assert package.read_text() == stubs.stubs(), "write them anew: python stubs.py > package/collcast/__init__.pyi"
