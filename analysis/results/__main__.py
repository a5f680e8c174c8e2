"""Keep the results of a study: its runs' small files, figures with their tables, verdicts and provenance.

    meanq results runs/target_network --scale minatar --out ablations/results/target_network
    meanq results --scale minatar --out ablations/results/target_network   # from the runs kept there
    meanq results runs/mine --study path/to/mine.yaml --out results/mine   # a study of one's own
    meanq results --again ablations/results/*       # redraw pages and figures from the kept tables

runs/                  the small files of every run, readable like any run
figures/*.csv, *.svg   figures and their tables
tables/late.csv        return, bias, std and gap, late in training, by game and label
tables/findings.csv    the paper's conclusions, compared; tables/scores.csv: Atari scores beside the paper's
provenance.json        commits, machine, versions, hours and commands, as the runs recorded them
README.md              all of it on a page

Everything is made from the kept runs, so a study can be continued on any machine: new runs join those already there.
The page and the figures follow from the tables, provenance.json and, for a study of ablations/, its file; results that
were kept without their runs have the tables only. `--study` and `--scale` name the study and its scale, to compare the
runs with: those that are not part of it are listed. The study is by default that of ablations/ with the runs' name, and
a study with one scale needs no `--scale`.
"""

from collections.abc import Sequence
from pathlib import Path

from ..console import command, make_parser, say, writing
from ..figures.catalogue import Drawn, all_labels, draw_tables
from ..figures.palette import styles
from ..runs import AnalysisError
from . import store
from .collect import collect
from .page import late_as_text, page


def redraw(source: Path, directory: Path) -> list[Drawn]:
    """Draw the figures and write the page, from the tables in `source`."""
    kept = store.read(source)
    drawn = draw_tables(kept.figures, styles(all_labels(kept.figures)), directory / "figures")
    (directory / "README.md").write_text(page(kept.about, kept.tables, drawn))
    return drawn


def _redraw_or_problem(directory: Path) -> str | None:
    """Redraw kept results, possibly a stranger's; or say why that is not possible."""
    try:
        with writing(directory):
            redraw(directory, directory)
    except AnalysisError as error:
        return str(error)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return f"{directory}: {store.PROVENANCE} or a table is not as meanq writes it ({type(error).__name__}: {error})"
    return None


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser("results", __doc__)
    parser.add_argument("paths", type=Path, nargs="*", help="directories with runs below; with --again, kept results")
    parser.add_argument("--out", type=Path, help="directory of the kept results")
    parser.add_argument("--study", help="study that these runs belong to: its file, or its name in ablations/")
    parser.add_argument("--scale", help="scale of that study")
    parser.add_argument("--again", action="store_true", help="redraw pages and figures from the kept tables")
    options = parser.parse_args(arguments)
    if options.again == (options.out is not None) or (options.again and (options.scale or options.study)):
        parser.error("write directories with runs and --out DIRECTORY, or --again and directories of kept results")
    if options.again:
        bad = [problem for path in options.paths if (problem := _redraw_or_problem(path))]
        say(bad[:-1])
        if bad:
            raise AnalysisError(bad[-1])
        return
    results = collect(options.paths, options.out, options.scale, options.study)
    say(results.about["notes"])
    with writing(options.out):
        store.write(results, options.out)
        drawn = redraw(options.out, options.out)
    late = results.tables["late"]
    few = "one run each, so differences may be chance" if late["runs"].max() < 2 else "in brackets: 95% intervals"
    print(f"Last quarter of training ({few}); a positive bias: the start of a game is valued too high")
    print(late_as_text(late).to_string(index=False))
    for figure in drawn:
        print(f"{options.out / 'figures' / figure.name}.svg: {figure.caption}")
    print(f"{options.out / 'README.md'}: all of it")


if __name__ == "__main__":
    main()
