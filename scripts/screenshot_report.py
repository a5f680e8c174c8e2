"""Take a picture of a section of a report, for README: needs chromium and chromium-driver.

meanq report ablations/results/first_look/runs --out build/report
python scripts/screenshot_report.py build/report/index.html summary docs/images/report.png
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.support.wait import WebDriverWait

_DRAWN = "return [...document.querySelectorAll(`#${arguments[0]} .chart`)].every(c => c.querySelector('.main-svg'))"


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("page", type=Path, help="index.html of a report")
    parser.add_argument("section", help="the id of its section, e.g. summary, study or curves")
    parser.add_argument("out", type=Path, help="a PNG file")
    options = parser.parse_args()
    chrome = webdriver.ChromeOptions()
    with tempfile.TemporaryDirectory() as profile:
        for flag in (
            "headless=new",
            "no-sandbox",
            "hide-scrollbars",
            "window-size=1400,1050",
            f"user-data-dir={profile}",
        ):
            chrome.add_argument(f"--{flag}")
        chrome.binary_location = shutil.which("chromium") or parser.error("chromium is not installed")
        browser = webdriver.Chrome(options=chrome, service=webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            browser.get(options.page.absolute().as_uri())
            for _ in range(2):  # charts are drawn when they come near the window, which moves what is below
                browser.execute_script("document.getElementById(arguments[0]).scrollIntoView()", options.section)
                WebDriverWait(browser, 300).until(lambda b: b.execute_script(_DRAWN, options.section))
                time.sleep(2)
            browser.save_screenshot(str(options.out))
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
