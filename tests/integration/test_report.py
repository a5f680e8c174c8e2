"""The report in a real browser: Debian's chromium and chromium-driver. Without them these tests are skipped."""

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from analysis.figures.palette import on_dark, styles
from analysis.labels import readable_names
from analysis.report import __main__ as report
from tests.synthetic_runs import gaussian_q, write_run

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium and chromedriver here"),
    pytest.mark.xdist_group("browser"),
]
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)><b>%{x}"
LABELS = {"dqn": 1, "meanq": 3, "ens_dqn": 3, HOSTILE: 1}
GAMES = ("breakout", "pong")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1366,768"),
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two games and four labels, one of which would like to be a script; one run has failed."""
    root = tmp_path_factory.mktemp("report") / "runs"
    generator = np.random.default_rng(0)
    for env in GAMES:
        for i, (label, members) in enumerate(LABELS.items()):
            for seed in range(4):
                steps = range(20_000, 100_001, 20_000)
                returns = {step: (1 + i) * step / 20_000 + generator.uniform(0, 1, 2) for step in steps}
                q = {step: gaussian_q(generator, 4, members, 3, 0.3, 0.5, 1.0) for step in steps}
                directory = write_run(root, env, f"label_{i}", seed, returns, 1.5, 1.0, q=q)
                config = (directory / "config.yaml").read_text()
                (directory / "config.yaml").write_text(config.replace(f": label_{i}\n", f": {json.dumps(label)}\n"))
    write_run(root, "pong", "dqn", 4, {20_000: 1.0}, state="failed", overrides={"total_steps": 100_000})
    report.main([str(root)])
    return root / "report" / "index.html"


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    assert CHROMIUM and DRIVER
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    browser.set_page_load_timeout(120)
    try:
        yield browser
    finally:
        browser.quit()


@pytest.fixture
def browser(started: webdriver.Chrome, page: Path) -> webdriver.Chrome:
    """The page, freshly opened; with logs of nothing else."""
    started.get("about:blank")
    for log in ("browser", "performance"):
        started.get_log(log)
    started.get(page.as_uri())
    return started


def draw_all(browser: webdriver.Chrome) -> None:
    """Charts wait until they come near the window, or the page is printed."""
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    wait(browser, "return [...document.querySelectorAll('.chart')].every(c => c.querySelector('.main-svg'))")


def wait(browser: webdriver.Chrome, script: str, *arguments: Any) -> Any:
    return WebDriverWait(browser, 60).until(lambda driver: driver.execute_script(script, *arguments))


def visible(browser: webdriver.Chrome) -> list[dict[str, list[bool]]]:
    """By chart: by the name of a label, which of its traces are shown."""
    script = """return [...document.querySelectorAll('.chart')].map(chart => {
        const found = {};
        for (const trace of chart.data) (found[trace.meta[0]] ??= []).push(trace.visible);
        return found;
    })"""
    return browser.execute_script(script)


def chip(browser: webdriver.Chrome, label: str) -> Any:
    return next(
        found
        for found in browser.find_elements(By.CSS_SELECTOR, ".chip[data-label]")
        if found.get_attribute("data-label") == label
    )


def column(browser: webdriver.Chrome, table: str, name: str) -> tuple[Any, list[str]]:
    """The button that sorts by it, and what its cells show."""
    heads = browser.find_elements(By.CSS_SELECTOR, f"#table-{table} th button")
    index = [head.text for head in heads].index(name)
    script = "return [...document.querySelectorAll(arguments[0])].map(row => row.cells[arguments[1]].textContent)"
    return heads[index], browser.execute_script(script, f"#table-{table} tbody tr", index)


def first_number(cell: str) -> float:
    """Of a number, or of a number and its interval."""
    return float(cell.split()[0].replace(",", ""))


def test_it_opens_without_errors_and_without_a_network(browser: webdriver.Chrome) -> None:
    draw_all(browser)
    assert len(browser.find_elements(By.CSS_SELECTOR, ".chart")) > 20
    severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert asked and all(url.startswith(("file:", "data:", "blob:")) for url in asked), asked


def test_a_label_that_would_like_to_be_a_script_is_text(browser: webdriver.Chrome) -> None:
    draw_all(browser)  # an alert would make any of these calls fail
    assert browser.execute_script("return document.querySelectorAll('script').length") == 3
    assert browser.execute_script("return document.querySelectorAll('[onerror], img[src=x]').length") == 0
    assert HOSTILE in chip(browser, HOSTILE).get_attribute("title")
    assert readable_names(LABELS)[HOSTILE] in browser.find_element(By.ID, "table-summary").text


def test_a_script_that_is_not_the_pages_own_does_not_run(browser: webdriver.Chrome) -> None:
    """Should something get past the escaping, the page's policy still stops it."""
    script = """const added = document.createElement('div');
        added.innerHTML = '<img src="data:," onerror="window.ran = true">';
        document.body.append(added);
        const own = document.createElement('script');
        own.textContent = 'window.ran = true';
        document.body.append(own);"""
    browser.execute_script(script)
    messages = [entry["message"] for entry in browser.get_log("browser")]
    assert browser.execute_script("return window.ran") is None
    assert any("Content Security Policy" in message for message in messages)


def test_hiding_a_label_hides_it_in_every_figure_and_table(browser: webdriver.Chrome) -> None:
    chip(browser, "meanq").click()  # before most charts are drawn: they have to know it later
    draw_all(browser)
    charts = [chart for chart in visible(browser) if "MeanQ" in chart]
    assert len(charts) > 15
    for chart in charts:
        assert not any(chart["MeanQ"]) and all(
            all(shown) for name, shown in chart.items() if name in ("DQN", "Ens-DQN")
        )
    rows = "return [...document.querySelectorAll('#table-summary tr[data-label=meanq]')].map(row => row.hidden)"
    assert browser.execute_script(rows) == [True, True]
    assert chip(browser, "meanq").get_attribute("aria-pressed") == "false"
    chip(browser, "meanq").send_keys(Keys.SPACE)  # by keyboard
    assert all(all(chart["MeanQ"]) for chart in visible(browser) if "MeanQ" in chart)
    assert browser.execute_script(rows) == [False, False]


def test_choosing_a_game_hides_the_others(browser: webdriver.Chrome) -> None:
    browser.find_element(By.CSS_SELECTOR, "#game option[value=pong]").click()
    script = "return [...document.querySelectorAll(arguments[0])].every(e => e.hidden === arguments[1])"
    assert browser.execute_script(script, "[data-env=breakout]", True)
    assert browser.execute_script(script, "[data-env=pong]", False)


def test_the_papers_scores_can_be_shown(browser: webdriver.Chrome) -> None:
    draw_all(browser)
    paper = "SUNRISE (the paper, 100k)"
    assert [chart[paper] for chart in visible(browser) if paper in chart] == [[False]] * 4, (
        "curves and study, two games"
    )
    browser.find_element(By.ID, "cited").click()
    assert [chart[paper] for chart in visible(browser) if paper in chart] == [[True]] * 4


def test_tables_are_sorted_by_numbers_with_empty_cells_last(browser: webdriver.Chrome) -> None:
    button, before = column(browser, "summary", "return")
    numbers = [first_number(cell) for cell in before]
    button.click()
    _, after = column(browser, "summary", "return")
    assert [first_number(cell) for cell in after] == sorted(numbers) != numbers
    button.send_keys(Keys.ENTER)  # by keyboard, and the other way round
    _, after = column(browser, "summary", "return")
    assert [first_number(cell) for cell in after] == sorted(numbers, reverse=True)
    heads = browser.find_elements(By.CSS_SELECTOR, "#table-summary th[aria-sort]")
    assert [head.get_attribute("aria-sort") for head in heads] == ["descending"]
    button, before = column(browser, "summary", "steps to reference")
    assert "" in before  # one label does not get there
    for _ in range(2):
        button.click()
        _, after = column(browser, "summary", "steps to reference")
        full = [cell for cell in after if cell]
        assert 0 < len(full) < len(after) and after[: len(full)] == full


def test_hovering_shows_label_step_value_and_number_of_runs(browser: webdriver.Chrome) -> None:
    chart = browser.find_element(By.CSS_SELECTOR, "#figure-learning_curves .chart")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    wait(browser, "return arguments[0].querySelector('.main-svg')", chart)
    for label in ("MeanQ", readable_names(LABELS)[HOSTILE]):
        script = """const [chart, label] = arguments;
            const escaped = label.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');
            const trace = chart.data.filter(t => t.meta[0] === escaped).at(-1);
            const { xaxis, yaxis } = chart._fullLayout, box = chart.getBoundingClientRect();
            return [xaxis._offset + xaxis.d2p(trace.x[3]) - box.width / 2,
                    yaxis._offset + yaxis.d2p(trace.y[3]) - box.height / 2, trace.y[3]]"""
        x, y, value = browser.execute_script(script, chart, label)
        ActionChains(browser).move_to_element_with_offset(chart, round(x), round(y)).perform()
        text = wait(browser, "return arguments[0].querySelector('.hoverlayer .hovertext')?.textContent", chart)
        assert text.startswith(label[:60]) and "step 80,000" in text and "n = 4 runs" in text
        assert f"return {value:.4g}" in text
        ActionChains(browser).move_to_element_with_offset(chart, 0, -125).perform()
        wait(browser, "return !arguments[0].querySelector('.hoverlayer .hovertext')", chart)


def test_charts_show_the_colours_of_the_palette(browser: webdriver.Chrome) -> None:
    draw_all(browser)
    chart = browser.find_element(By.CSS_SELECTOR, "#figure-learning_curves .chart")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    pixels = np.array(Image.open(io.BytesIO(chart.screenshot_as_png)).convert("RGB")).reshape(-1, 3).astype(int)
    for label, style in styles(LABELS).items():
        colour = [int(style.colour[i : i + 2], 16) for i in (1, 3, 5)]
        close = (np.abs(pixels - colour).max(1) < 12).sum()
        assert close > 30, f"{label}: {close} pixels of {style.colour}"


@pytest.mark.parametrize("width", [1366, 390])
def test_nothing_is_wider_than_the_window(browser: webdriver.Chrome, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.refresh()
        draw_all(browser)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_charts_follow_dark_mode_and_print_on_white(browser: webdriver.Chrome) -> None:
    read = """const chart = document.querySelector('#figure-learning_curves .chart');
        return [chart.layout.font.color, chart.data.filter(t => t.meta[0] === 'MeanQ').at(-1).line.color]"""
    draw_all(browser)
    browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
    colour = styles(LABELS)["meanq"].colour
    light = ["#1b1f24", colour]
    assert browser.execute_script(read) == light
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    try:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
        wait(browser, f"{read}[0] === '#e6edf3'")
        assert browser.execute_script(read) == ["#e6edf3", on_dark(colour)]
        browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
        assert browser.execute_script(read)[1] == colour
    finally:
        browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
