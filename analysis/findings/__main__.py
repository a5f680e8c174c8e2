"""Decide whether runs support the paper's conclusions.

meanq findings runs/target_network
meanq findings runs/sampling --compare ens_dqn meanq__priorities=shared    # by the same rules
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from meanq.metrics.definitions import BIASES, DEFAULT_BIAS

from ..console import command, make_parser, say
from ..labels import find_label, short_labels
from ..notes import all_notes
from ..runs import read_runs
from . import claims
from .decide import Result, compare, decide


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser("findings", f"{__doc__}\n{claims.__doc__}")
    parser.add_argument("runs", type=Path, nargs="+", help="directories with runs anywhere below")
    parser.add_argument("--bias", choices=list(BIASES), default=DEFAULT_BIAS, help="see meanq metrics (%(default)s)")
    parser.add_argument(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        help="two labels, instead of the paper's conclusions; the part of a label that tells it apart is enough",
    )
    options = parser.parse_args(arguments)
    found = read_runs(options.runs)
    if options.compare:
        a, b = (find_label(text, found.labels, "--compare") for text in options.compare)
        results, notes = compare(found, a, b, options.bias)
        say(all_notes(found, notes))
        names = short_labels(found.labels)
        print(f"{names[a]} against {names[b]}, late in training; differences with 95% intervals")
        _print(results)
        return
    findings, notes = decide(found, options.bias)
    say(all_notes(found, notes))
    for finding in findings:
        print(f"{finding.name} {finding.verdict}: {finding.statement}")
        _print(finding.results)


def _print(results: Iterable[Result]) -> None:
    for result in results:
        print(f"   {result}")
        for detail in result.details:
            print(f"      {detail}")


if __name__ == "__main__":
    main()
