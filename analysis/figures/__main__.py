"""Static figures, each beside the table that it is drawn from.

    meanq figures runs/target_network
    meanq figures runs/target_network --labels dqn,meanq --names meanq=Ours --format pdf --band ci --size 5.5x3

learning_curves  returns in each game, and the mean over games; scores that the paper cites as lines
study            the paper's four rows: return, bias, normalised std, normalised Jensen gap
series           what is measured late in training over a number in which labels differ, such as the ensemble's size
mechanism        correlation of members, effective ensemble size, shared and member variance
optimisation     the share of Adam's step that each layer takes, and the spread of value distributions
errors           the error of values, taken apart, in environments that are solved exactly
arrows           return against bias, an arrow from each method with a target network to the same without
late_returns     returns late in training, a line per label
aggregates       interquartile mean, median, mean and optimality gap over games, with intervals
profiles         the share of runs above each score
improvements     how likely a run of one label is above a run of another one

A figure without data is not drawn; a line on stderr says why. `meanq results --again` draws kept tables. Labels may be
written as any part that tells one apart. Legends have the order of --labels, or else that of the algorithms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..console import command, default_directory, make_parser, say, writing
from ..labels import find_label, find_labels, readable_names
from ..metrics import compute
from ..notes import all_notes
from ..runs import AnalysisError, RunSet, read_runs
from .catalogue import KINDS, draw_all
from .form import BANDS, FORMATS, Form, parse_size
from .palette import Style, styles


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser("figures", __doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="directories with runs anywhere below")
    parser.add_argument(
        "--out", type=Path, help="directory of the figures (default: figures, below the first of `runs`)"
    )
    parser.add_argument("--only", default="", help=f"some of {','.join(KINDS)}; otherwise all")
    parser.add_argument("--labels", default="", help="which ones, e.g. meanq,dqn; otherwise all")
    parser.add_argument("--names", nargs="+", action="extend", default=[], metavar="LABEL=NAME", help="in legends")
    parser.add_argument("--format", default="svg,png", help=f"some of {','.join(FORMATS)} (default: %(default)s)")
    bands = "around means over runs: standard deviation (default, of at most 8 labels), 95%% interval of the mean, none"
    parser.add_argument("--band", choices=list(BANDS), default="", help=bands)
    parser.add_argument("--size", metavar="WIDTH[xHEIGHT]", help="of each figure, in inches; otherwise as it needs")
    parser.add_argument("--no-single-runs", action="store_true", help="means only, without a faded line for each run")
    options = parser.parse_args(arguments)
    only = _chosen(options.only, tuple(KINDS), "--only")
    formats = _chosen(options.format, FORMATS, "--format")
    width, height = parse_size(options.size) if options.size else (None, None)
    directory = options.out or default_directory(options.runs[0], "figures")
    found = read_runs(options.runs)
    looks = _looks(found, options.labels, options.names)
    found = found.only(list(looks))
    metrics = compute(found)
    say(all_notes(found, metrics.notes))
    form = Form(options.band, not options.no_single_runs, width, height)
    with writing(directory):
        drawn, missing = draw_all(found, metrics, directory, only, looks, form, formats)
    say(f"no {name}: {reason}" for name, reason in missing.items())
    for figure in drawn:
        print(f"{directory / figure.name}.{formats[0]}: {figure.title}. {figure.caption}")


def _chosen(text: str, known: Sequence[str], option: str) -> list[str]:
    """The names of a comma-separated list, or all that are known if it is empty."""
    words = text.split(",") if text else list(known)
    for word in words:
        if word not in known:
            raise AnalysisError(f"{option} {word}: write one or more of {','.join(known)}")
    return words


def _looks(found: RunSet, labels: str, names: Sequence[str]) -> Mapping[str, Style]:
    """Looks of the chosen labels: colours as among all of them, names as a user wants them."""
    everyone = styles(found.labels)
    chosen = find_labels(labels, list(everyone)) or list(everyone)
    shown = readable_names(chosen)
    for pair in names:
        label, equals, name = pair.rpartition("=")
        if not equals or not name:
            raise AnalysisError(f"--names {pair}: write LABEL=NAME, e.g. meanq=Ours")
        shown[find_label(label, chosen, "--names")] = name
    return {label: replace(everyone[label], name=shown[label]) for label in chosen}


if __name__ == "__main__":
    main()
