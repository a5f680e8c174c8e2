"""What a user may choose about the form of figures: bands, single runs and size."""

import re
from dataclasses import dataclass, replace

from ..runs import AnalysisError

BANDS = {"std": "one standard deviation over them", "ci": "95% interval of the mean (Student's)", "none": ""}
FORMATS = ("pdf", "svg", "png")
MOST_WITH_SPREAD = 8  # labels of a figure; the bands of more are a fog


@dataclass(frozen=True)
class Form:
    """The form of a figure; sizes in inches, None: as the figure needs."""

    band: str = ""  # one of BANDS; empty: std, of few labels
    single_runs: bool = True  # of few labels
    width: float | None = None
    height: float | None = None

    def of(self, labels: int) -> "Form":
        """The form of a figure with so many labels."""
        few = labels <= MOST_WITH_SPREAD
        return replace(self, band=self.band or ("std" if few else "none"), single_runs=self.single_runs and few)

    @property
    def has_band(self) -> bool:
        return self.band in ("std", "ci")


DEFAULT = Form()


def parse_size(text: str) -> tuple[float, float | None]:
    """(width, height) of `7x4`; (width, None) of `7`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(?:x(\d+(?:\.\d+)?))?", text)
    if not found or not all(1 <= float(number) <= 50 for number in found.groups() if number):
        raise AnalysisError(f"--size {text}: write WIDTHxHEIGHT or WIDTH in inches, from 1 to 50, e.g. 7x4 or 3.4")
    return float(found[1]), float(found[2]) if found[2] else None
