"""Learning curves: mean return of each method over seeds, every run faded behind it, and the table behind them.

python -m analysis.curves runs/techniques --out ablations/results/techniques
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis.metrics import DEFAULT_BIAS, say
from analysis.runs import AnalysisError, RunSet, read_runs

# One colour per method, wherever it is drawn: Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933"]
COLUMNS = ["env", "method", "seed", "step", "return", "value", "bias", "episodes"]


def curve_table(found: RunSet) -> pd.DataFrame:
    """One row per run and evaluation, in the order of env, method and seed; means over its episodes."""
    rows = [
        run.episode_means.reset_index()
        .rename(columns={f"bias_{DEFAULT_BIAS}": "bias"})
        .assign(env=env, method=method, seed=run.seed)[COLUMNS]
        for (env, method), runs in found.groups().items()
        for run in runs
        if len(run.evaluations)
    ]
    if not rows:
        raise AnalysisError("no run has been evaluated yet")
    return pd.concat(rows, ignore_index=True)


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard deviation over seeds at the last evaluation that all runs of an environment have."""
    last = table.groupby(["env", "method", "seed"])["step"].max().groupby("env").min()
    at_end = table[table["step"] == table["env"].map(last)]
    grouped = at_end.groupby(["env", "step", "method"])["return"]
    return grouped.agg(["mean", "std", "count"]).reset_index()


def draw(table: pd.DataFrame, path: Path) -> None:
    """One panel per environment; written as SVG and PNG."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "meanq", "font.size": 9})  # the same picture, the same bytes
    from matplotlib import pyplot

    envs, methods = sorted(table["env"].unique()), sorted(table["method"].unique())
    colours = dict(zip(methods, COLOURS, strict=False))
    figure, axes = pyplot.subplots(1, len(envs), figsize=(1 + 4 * len(envs), 3.4), squeeze=False)
    for axis, env in zip(axes[0], envs, strict=True):
        for method in methods:
            part = table[(table["env"] == env) & (table["method"] == method)]
            by_step = part.pivot_table(index="step", columns="seed", values="return")
            if by_step.empty:
                continue
            axis.plot(by_step.index / 1000, by_step, color=colours[method], alpha=0.25, linewidth=0.8)
            label = f"{method} ({by_step.shape[1]} seeds)"
            complete = by_step.dropna()  # a mean over fewer seeds would not be comparable
            axis.plot(complete.index / 1000, complete.mean(axis=1), color=colours[method], linewidth=2, label=label)
        axis.set(title=env, xlabel="thousand interactions", ylabel="return, mean of 20 greedy episodes")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False)
    figure.tight_layout()
    for suffix in (".svg", ".png"):
        figure.savefig(path.with_suffix(suffix), dpi=150, metadata={"Date": None} if suffix == ".svg" else None)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m analysis.curves", description=__doc__.splitlines()[0])
    parser.add_argument(
        "root", type=Path, help="a study's directory, e.g. runs/techniques, or a curves.csv made before"
    )
    parser.add_argument("--out", type=Path, required=True, help="directory for curves.csv, curves.svg and curves.png")
    options = parser.parse_args(arguments)
    try:
        if options.root.suffix == ".csv":
            table = pd.read_csv(options.root)
        else:
            found = read_runs([options.root])
            say(found.messages())
            table = curve_table(found)
    except (FileNotFoundError, AnalysisError) as error:
        sys.exit(f"analysis: {error}")
    options.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.out / "curves.csv", index=False, float_format="%.4f", lineterminator="\n")
    draw(table, options.out / "curves")
    print(summarise(table).to_string(index=False, float_format="%.2f"))


if __name__ == "__main__":
    main()
