"""The report as files and text: what it says, that it is safe, and that it does not depend on when it is made."""

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.figures.palette import ALGORITHMS, on_dark, styles
from analysis.report import __main__ as report
from analysis.report.page import as_script_data, shown_number
from meanq.rundir.reader import find_runs
from tests.synthetic_runs import gaussian_q, write_run

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}%{x} $\\frac{1$"
STEPS = range(20, 101, 20)


def write_study(
    root: Path, labels: dict[str, int], envs: tuple[str, ...] = ("game",), seeds: int = 4, **more: Any
) -> None:
    """labels: members."""
    generator = np.random.default_rng(0)
    for env in envs:
        for i, (label, members) in enumerate(labels.items()):
            for seed in range(seeds):
                returns = {step: (1 + i) * step / 30 + generator.uniform(0, 0.3, 2) for step in STEPS}
                q = {step: gaussian_q(generator, 6, members, 3, 0.3, 0.5, 1.0) for step in STEPS}
                write_run(root, env, label, seed, returns, 1.5, 1.0, q=q, **more)


def make(root: Path, *options: str) -> str:
    report.main([str(root), *options])
    return (root / "report" / "index.html").read_text()


class Page(HTMLParser):
    """Tags, with their attributes, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])


def section(text: str, name: str) -> str:
    found = re.search(rf'<section id="{name}">(.*?)</section>', text, re.DOTALL)
    assert found
    return html.unescape(re.sub(r"<[^>]+>", " ", found[1]))


def about_runs(text: str) -> str:
    """The notes above everything, with their tag."""
    found = re.search(r'<details class="about"( open)?>.*?<nav', text, re.DOTALL)
    return found[0] if found else ""


def not_there(text: str) -> str:
    found = re.search(r"<summary>Not in this report: .*?</ul>\s*</details>", text, re.DOTALL)
    return html.unescape(found[0]) if found else ""


def test_a_study_has_every_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = {"dqn": 1, "dqn_no_target": 1, "meanq": 5, "rainbow": 1, "rainbow_large": 1, "meanq_rainbow": 5}
    write_study(tmp_path, labels, ("breakout", "other"))
    text = make(tmp_path)
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path}/report/index.html: 48 runs, 6 labels, 2 games\n"
    page = Page(text)
    names = re.findall(r'<section id="(\w+)">', text)
    assert names == [
        *("summary", "curves", "study", "mechanism", "aggregates", "findings", "figures", "cost", "runs"),
        "configurations",
    ], "what the user trained comes first"
    assert [attributes["href"] for tag, attributes in page.tags if tag == "a"][:10] == [f"#{name}" for name in names]
    assert "48 runs, 6 labels, 2 games (48 finished)" in page.text
    for name in ("F1.", "F2.", "F3.", "F4.", "F5.", "F6.", "F7.", "F8."):
        assert name in section(text, "findings")
    assert "bias of dqn below dqn_no_target" in section(text, "findings")
    assert "interquartile mean" in section(text, "aggregates")
    missing = re.findall(r"<li>(.*?)</li>", not_there(text))
    assert [line.split(":")[0] for line in missing] == [
        *("State of the networks", "Against the true values", "Beside the paper's tables")
    ]
    assert "nan" not in section(text, "summary").lower().split()


def test_the_state_of_networks_has_a_card_per_label(tmp_path: Path) -> None:
    write_study(tmp_path, {"dqn": 1, "meanq": 3, "rainbow": 1})
    for directory in find_runs([tmp_path], []):
        if "rainbow" not in directory.parts:  # which is an older run
            dormant, rank = 0.25 if "meanq" in directory.parts else 0.5, 7 + int(directory.name[-1])
            rows = f"0,0,0,9\n{STEPS[-1]},{dormant},{dormant / 2},{rank}\n"
            (directory / "diagnosis.csv").write_text(f"step,dormant,dormant_conv0,feature_rank\n{rows}")
    text = make(tmp_path)
    card = pd.read_csv(tmp_path / "report/tables/diagnosis.csv").set_index(["label", "measure"])
    assert set(card.index.get_level_values(0)) == {"dqn", "meanq"}
    for label, dormant in (("dqn", 0.5), ("meanq", 0.25)):
        game = card.columns[0]
        assert card.loc[(label, "dormant units"), game] == dormant
        assert card.loc[(label, "dormant units of a layer, conv0"), game] == dormant / 2
        assert card.loc[(label, "rank of features"), game] == 8.5, "seeds 0 to 3"
    assert ("meanq", "effective size") in card.index and ("dqn", "effective size") not in card.index
    assert section(text, "diagnosis").count("rank of features") == 3, "explained once, and on both cards"


def test_files_beside_the_page_are_those_it_links_to(tmp_path: Path) -> None:
    write_study(tmp_path, {"dqn": 1, "meanq": 3})
    page = Page(make(tmp_path))
    directory = tmp_path / "report"
    linked = {a["href"] for tag, a in page.tags if tag == "a" and not str(a["href"]).startswith("#")}
    written = {str(path.relative_to(directory)) for path in directory.rglob("*.*")} - {"index.html"}
    assert linked == written
    assert {"tables/summary.csv", "figures/study.svg", "figures/study.png", "figures/study.csv"} <= written


def test_numbers_are_those_of_the_runs(tmp_path: Path) -> None:
    for seed, value in enumerate((2.0, 4.0, 6.0)):
        write_run(tmp_path, "game", "dqn", seed, {50: value, 100: 2 * value}, values=3.0, discounted=1.0, seconds=600)
    make(tmp_path)
    (row,) = pd.read_csv(tmp_path / "report/tables/summary.csv").to_dict("records")
    assert (row["runs"], row["step"], row["return"], row["normalised return"]) == (3, 100, 8.0, 0.8)
    assert (row["bias"], row["AUC"], row["normalised AUC"]) == (2.0, 6.0, 0.6)
    assert (row["return high"] - row["return low"]) / 2 == pytest.approx(4.30265 * 4 / 3**0.5, rel=1e-4)
    assert pd.read_csv(tmp_path / "report/tables/cost.csv")["minutes per run"].tolist() == [10.0]
    page = Page((tmp_path / "report/index.html").read_text())
    curve = next(chart for chart in page.data["charts"] if chart["y"] == "return")
    (series,) = curve["series"]
    assert (series["label"], series["x"], series["y"], series["n"]) == ("dqn", [50, 100], [4.0, 8.0], [3, 3])
    assert [run["y"] for run in series["runs"]] == [[2.0, 4.0], [4.0, 8.0], [6.0, 12.0]]
    assert series["low"] == [2.0, 4.0]


def test_the_bias_is_that_of_the_option(tmp_path: Path) -> None:
    write_run(tmp_path, returns={100: 1.0}, values=3.0, discounted=1.0, first_life=2.5)
    text = make(tmp_path, "--bias", "first_life")
    (row,) = pd.read_csv(tmp_path / "report/tables/summary.csv").to_dict("records")
    assert row["bias"] == 0.5
    assert f"meanq report {tmp_path} --bias first_life" in text


def test_nothing_of_a_run_is_ever_executed(tmp_path: Path) -> None:
    for seed in range(2):
        directory = write_run(tmp_path, "game", "x", seed, {10: 1.0, 20: 2.0}, q={10: np.ones((4, 2, 3))},
                              overrides={"study": HOSTILE, "env.name": HOSTILE, "algo.bootstrap": HOSTILE})  # fmt: skip
        config = directory / "config.yaml"
        config.write_text(config.read_text().replace("label: x\n", f"label: {json.dumps(HOSTILE)}\n"))
    (directory / "status.json").write_text(json.dumps({"state": HOSTILE, "reason": HOSTILE, "traceback": HOSTILE}))
    meta = dict.fromkeys(("host", "device", "threads", "commit"), HOSTILE)
    (directory / "meta.json").write_text(json.dumps(meta))
    text = make(tmp_path)
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 3
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert "<script>alert" not in text and "<img src=x" not in text
    assert {look["label"] for look in page.data["looks"]} == {HOSTILE}
    title = re.findall(r"<title>(.*?)</title>", text, re.DOTALL)[0]
    assert html.unescape(title) == f"Report: {HOSTILE}"  # as text it is there, to the letter
    assert {a.get("data-label") for tag, a in page.tags if tag == "tr" and "data-label" in a} == {HOSTILE}


def test_script_data_cannot_leave_its_script() -> None:
    data = {"label": "</script><!--<script>&\u2028"}
    text = as_script_data(data)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == data


def test_nothing_comes_from_elsewhere(tmp_path: Path) -> None:
    write_study(tmp_path, {"dqn": 1, "meanq": 3})
    page = Page(make(tmp_path))
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    assert str(policy).startswith("default-src 'none'; script-src 'sha256-")
    assert not {"link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        for name in ("src", "href", "action"):
            assert not re.match(r"\s*(\w+:)?//", str(attributes.get(name, ""))), attributes


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    write_study(tmp_path / "runs", {"dqn": 1, "meanq": 3})
    for out in ("first", "second"):
        report.main([str(tmp_path / "runs"), "--out", str(tmp_path / out)])
    first = {path.relative_to(tmp_path / "first"): path for path in (tmp_path / "first").rglob("*.*")}
    assert len(first) > 20
    for name, path in first.items():
        assert path.read_bytes() == (tmp_path / "second" / name).read_bytes(), name


def test_problems_come_first_and_failures_before_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_study(tmp_path, {"dqn": 1}, seeds=3)
    write_run(tmp_path, label="dqn", seed=7, returns={10: 1.0}, overrides={"total_steps": 100}, state="interrupted")
    failed = write_run(tmp_path, label="dqn", seed=8, returns={10: 1.0}, overrides={"total_steps": 100})
    reason = {"state": "failed", "reason": "ValueError: no", "traceback": "Traceback (most recent call last): ..."}
    (failed / "status.json").write_text(json.dumps(reason))
    (tmp_path / "game" / "empty" / "seed_0").mkdir(parents=True)
    text = make(tmp_path)
    assert '<details class="about" open>' in text and "About these runs: 1 failed run, 1 skipped directory" in text
    lines = re.findall(r"<li>(.*?)</li>", about_runs(text))
    assert "seed 8: failed, evaluated up to step 10 of 100: ValueError: no" in lines[0]
    assert lines[1] == f"skipped {tmp_path}/game/empty/seed_0: no config.yaml"
    assert any("seed 7: interrupted" in line for line in lines[2:])
    assert "Traceback (most recent call last)" in about_runs(text)
    errors = capsys.readouterr().err
    assert "analysis: skipped" in errors and errors.count("seed 8: failed") == 1


def test_a_mean_is_drawn_only_where_every_run_has_a_number(tmp_path: Path) -> None:
    write_run(tmp_path, seed=0, returns={10: 1.0, 20: 2.0, 30: 3.0})
    write_run(tmp_path, seed=1, returns={10: 3.0, 20: 4.0}, overrides={"total_steps": 30}, state="failed")
    page = Page(make(tmp_path))
    (series,) = next(chart for chart in page.data["charts"] if chart["y"] == "return")["series"]
    assert series["y"] == [2.0, 3.0, None]
    assert series["runs"][0]["y"] == [1.0, 2.0, 3.0]


def test_one_run(tmp_path: Path) -> None:
    directory = write_run(tmp_path, returns={10: 1.0, 20: 2.0}, q={10: np.ones((4, 1, 3))})
    report.main([str(directory)])  # the page goes beside the run, not into it
    text = (directory.parent / "report" / "index.html").read_text()
    assert "one run only" in about_runs(text) and '<details class="about">' in text, "folded, since nothing failed"
    assert "How members differ: it takes probes of an ensemble" in not_there(text)
    assert sorted(path.name for path in directory.iterdir()) == [
        *("config.yaml", "evaluations.csv", "meta.json", "probes.npz", "status.json", "timings.csv")
    ]


def test_nothing_evaluated_yet(tmp_path: Path) -> None:
    write_run(tmp_path, state="running", seconds=None)
    text = make(tmp_path)
    assert "running, evaluated up to step 0 of 100000" in about_runs(text)
    for title in ("The paper's conclusions", "Summary", "Return, bias, standard deviation", "Learning curves"):
        assert re.search(f"<li>{title}[^:<]*: no run has been evaluated yet[.]</li>", not_there(text)), title
    assert Page(text).data["charts"] == []


def test_a_label_without_scores_does_not_take_the_aggregates_of_the_others(tmp_path: Path) -> None:
    write_study(tmp_path, {"dqn": 1, "meanq": 3})
    write_run(tmp_path, label="rainbow", state="running", overrides={"total_steps": 100})
    text = make(tmp_path)
    assert "aggregates are without rainbow" in about_runs(text)
    assert set(pd.read_csv(tmp_path / "report/tables/aggregates.csv")["label"]) == {"dqn", "meanq"}


def test_several_configurations_under_one_label_stay_apart(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path, seed=seed, returns={10: 1.0}, overrides={"algo.learning_rate": 10.0**-seed})
    text = make(tmp_path)
    assert "several configurations under one label" in about_runs(text)
    frame = pd.read_csv(tmp_path / "report/tables/differences.csv")
    assert frame["field"].tolist() == ["algo.learning_rate"]
    assert sorted(frame.iloc[0, 2:].astype(float)) == [0.1, 1.0]


def test_games_of_the_paper_are_beside_its_scores(tmp_path: Path) -> None:
    write_run(tmp_path, "breakout", "dqn", returns={100_000: 30.0})
    text = make(tmp_path)
    table = pd.read_csv(tmp_path / "report/tables/paper_100k.csv")
    assert (table["game"][0], table["ours: dqn"][0], table["paper: sunrise"][0]) == ("breakout", 30.0, 1.8)
    assert "30" in section(text, "paper")
    curve = next(chart for chart in Page(text).data["charts"] if chart["y"] == "return")
    assert {"SUNRISE (the paper, 100k)"} <= {line["name"] for line in curve["cited"]}


def test_true_values_have_a_section(tmp_path: Path) -> None:
    for seed in range(2):
        q = {10: np.full((4, 2, 3), 1.5 + seed), 20: np.full((4, 2, 3), 1.5)}
        write_run(tmp_path, "chain", "meanq", seed, {10: 1.0, 20: 1.0}, q=q, true_q=np.ones((4, 3)))
    charts = Page(make(tmp_path)).data["charts"]
    bias = next(chart for chart in charts if chart["y"] == "bias to true Q*")
    assert bias["series"][0]["y"] == [1.0, 0.5]


def test_a_report_is_taken_for_no_run(tmp_path: Path) -> None:
    write_study(tmp_path, {"dqn": 1}, seeds=2)
    before = [*find_runs([tmp_path], [])]
    make(tmp_path)
    assert [*find_runs([tmp_path], [])] == before and len(before) == 2


@pytest.mark.parametrize(
    ("arguments", "words"), [(["nowhere"], "no runs here"), (["runs", "--out", "runs/file"], "--out")]
)
def test_mistakes_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs", returns={10: 1.0})
    (tmp_path / "runs" / "file").write_text("")
    with pytest.raises(SystemExit) as error:
        report.main(arguments)
    assert words in str(error.value) and str(error.value).startswith("analysis: ") and "\n" not in str(error.value)


def test_numbers_are_readable() -> None:
    shown = [shown_number(value) for value in (0, 5, 1234567.0, 1234.5, 12.3456, 0.00012345, -0.5)]
    assert shown == ["0", "5", "1,234,567", "1,234", "12.35", "0.0001234", "-0.5"]


def test_another_bias_leaves_the_figures_theirs(tmp_path: Path) -> None:
    write_study(tmp_path, {"dqn": 1, "meanq": 2})
    make(tmp_path, "--bias", "unclipped")
    (study,) = (tmp_path / "report").rglob("study.csv")
    assert {"return", "bias_clipped"} <= set(pd.read_csv(study)["metric"])


def test_conclusions_that_cannot_be_decided_are_folded(tmp_path: Path) -> None:
    write_study(tmp_path / "few", {"dqn": 1, "meanq": 3}, seeds=2)
    few = re.findall(r'<section id="findings">(.*?)</section>', make(tmp_path / "few"), re.DOTALL)[0]
    shown, folded = few.split("<details", 1)
    assert "<article" not in shown and folded.count("<article") == 8
    assert "Not decidable from these runs: F1, F2, F3, F4, F5, F6, F7, F8, and why" in folded
    for label, value in (("dqn", 1.0), ("dqn_no_target", 9.0), ("meanq", 0.0), ("rainbow", 3.0)):
        for seed in range(5):
            generator = np.random.default_rng([len(label), seed])
            q = {step: gaussian_q(generator, 6, 1, 3, 0.05 * (1 + value), 0.0, 1.0) for step in STEPS}
            returns = dict.fromkeys(STEPS, 9 - value / 2 + generator.normal(0, 0.01))
            write_run(tmp_path / "many", "game", label, seed, returns, value, 0.0, q=q)
    many = re.findall(r'<section id="findings">(.*?)</section>', make(tmp_path / "many"), re.DOTALL)[0]
    assert re.findall(r'class="verdict ([\w-]+)">', many.split('<details class="folded"')[0]) == ["supported"], "F2"
    assert "F3" in many.split('<details class="folded"')[1]


def test_what_all_labels_share_is_said_once(tmp_path: Path) -> None:
    write_study(tmp_path, {"dqn__batch_size=64": 1, "meanq__batch_size=64": 3})
    text = make(tmp_path)
    page = Page(text)
    assert "All runs: batch_size=64." in page.text
    assert [look["name"] for look in page.data["looks"]] == ["DQN", "MeanQ"]
    assert "batch_size" not in section(text, "summary") and "MeanQ" in section(text, "summary")
    assert "batch_size" not in about_runs(text)
    assert set(pd.read_csv(tmp_path / "report/tables/summary.csv")["label"]) == {
        *("dqn__batch_size=64", "meanq__batch_size=64")
    }, "files have the labels as they are"


def test_charts_have_the_scales_of_figures(tmp_path: Path) -> None:
    labels = {"dqn": 1, "dqn_no_target": 1, "double_dqn": 1, "meanq": 2}
    for label, members in labels.items():
        for seed in range(3):
            generator = np.random.default_rng([members, seed])
            q = {step: gaussian_q(generator, 6, members, 3, 0.3, 0.5, 1.0) for step in STEPS}
            returns = dict.fromkeys(STEPS, 5 + generator.uniform(0, 0.3))
            values = 1000.0 if label == "dqn_no_target" else 1.5 + seed / 10
            for env in ("a", "b"):
                write_run(tmp_path, env, label, seed, returns, values, 1.0, q=q)
    charts = Page(make(tmp_path)).data["charts"]
    kinds = {(chart["y"], chart["env"]): chart["scale"]["kind"] for chart in charts if "kind" in chart["scale"]}
    assert {kinds["return", env] for env in ("a", "b", "average")} == {"linear"}
    assert {kinds["bias of V(s0)", env] for env in ("a", "b", "average")} == {"folded"}
    assert {kinds["normalised std", env] for env in ("a", "b", "average")} == {"log"}
    (average,) = {chart["title"] for chart in charts if chart["y"] == "return" and chart["env"] == "average"}
    assert average == "Average, return normalised"
    folded = next(chart["scale"] for chart in charts if chart["scale"].get("kind") == "folded")
    assert folded["edge"] < 2 and max(folded["ticks"]) >= 100 and folded["decade"] > 0
    svg = (tmp_path / "report/figures/study.svg").read_text()
    assert "log beyond" in svg


def test_colours_stand_out_on_a_dark_page() -> None:
    assert on_dark("#000000") == "#FFFFFF"
    for style in styles(ALGORITHMS).values():
        red, green, blue = (int(on_dark(style.colour)[i : i + 2], 16) / 255 for i in (1, 3, 5))
        assert 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 > 0.18, style.name
