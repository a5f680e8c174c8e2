"""Static figures, as SVG and PNG, each beside the table that it is drawn from.

    meanq figures runs/target_network --out figures

learning_curves  returns in each game, and the mean over games; scores that the paper cites as lines
study            the paper's four rows: return, bias, normalised std, normalised Jensen gap
series           what is measured late in training over a number in which labels differ, such as the ensemble's size
mechanism        correlation of members, effective ensemble size, shared and member variance
optimisation     the share of Adam's step that each layer takes, and the spread of value distributions
aggregates       interquartile mean, median, mean and optimality gap over games, with intervals
profiles         the share of runs above each score
improvements     how likely a run of one label is above a run of another one

A figure without data is not drawn; a line on stderr says why. `meanq results --again` draws kept tables.
"""

from collections.abc import Sequence
from pathlib import Path

from ..console import command, make_parser, say, writing
from ..metrics import compute
from ..runs import read_runs
from .catalogue import KINDS, draw_all


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser("figures", __doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="directories with runs anywhere below")
    parser.add_argument("--out", type=Path, required=True, help="directory for the figures and their tables")
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"some of {','.join(KINDS)}; otherwise all")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.only or []) - set(KINDS))
    if unknown:
        parser.error(f"--only {','.join(unknown)}: no such figure; there are {', '.join(KINDS)}")
    found = read_runs(options.runs)
    metrics = compute(found)
    say([*found.messages(), *metrics.notes])
    with writing(options.out):
        drawn, missing = draw_all(found, metrics, options.out, options.only)
    say(f"no {name}: {reason}" for name, reason in missing.items())
    for figure in drawn:
        print(f"{options.out / figure.name}.svg: {figure.title}. {figure.caption}")


if __name__ == "__main__":
    main()
