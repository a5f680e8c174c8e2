"""A W&B workspace with the paper's four metrics: one line per method, the mean over its seeds, with their spread.

meanq dashboard --entity my_team                   make the view in the project meanq, and print its address
meanq dashboard --entity my_team --json            print its definition; needs no network

It needs W&B's own library for workspaces: pip install wandb-workspaces.
"""

import argparse
import os
import sys
from typing import Any

from meanq.config.checks import check_logger
from meanq.config.errors import ConfigError
from meanq.config.schema import LoggerConfig
from meanq.metrics.registry import LEARNING, METRICS, PAPER, VALUES
from meanq.mirrors.wandb import has_key

# By section: the names that W&B has, and titles. What one run knows; the paper's std and Jensen gap are across seeds.
SECTIONS: dict[str, dict[str, str]] = {
    section: {m.mirror: m.title[0].upper() + m.title[1:] for m in METRICS.values() if m.dashboard == section}
    for section in (PAPER, VALUES, LEARNING)
}
_NOTE = """\
One run knows the spread of its **members**, not of seeds. `probe/member_std` is the standard deviation over members of
max_a Q_k(s0, a); `probe/member_jensen_gap` is mean_k max_a Q_k(s0, a) - max_a mean_k Q_k(s0, a); both are means over
the probe states. `_normalised` divides by the normalised return of that step, where it is clearly above zero. The
paper's own standard deviation and gap are across seeds and follow from `probes.npz` of several run directories.
"""


def workspace(entity: str, project: str) -> Any:
    """The view, not saved yet."""
    import wandb_workspaces.reports.v2 as panels
    import wandb_workspaces.workspaces as workspaces

    over_seeds: Any = {"groupby": "Group", "groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"}
    grid = workspaces.SectionLayoutSettings(columns=2, rows=2)
    sections = []
    for name, metrics in SECTIONS.items():
        plots: list[Any] = [panels.LinePlot(title=t, y=[m], **over_seeds) for m, t in metrics.items()]
        sections.append(workspaces.Section(name=name, panels=plots, is_open=True, layout_settings=grid))
    sections.append(workspaces.Section(name="What these are", panels=[panels.MarkdownPanel(markdown=_NOTE)]))
    runs = workspaces.RunsetSettings(groupby=[workspaces.Metric("Group")])
    return workspaces.Workspace(entity=entity, project=project, name="meanq", sections=sections, runset_settings=runs)


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="meanq dashboard", description=__doc__.split("\n")[0])
    parser.add_argument("--entity", required=True, help="user or team that owns the project")
    parser.add_argument("--project", default="meanq")
    parser.add_argument("--json", action="store_true", help="print the definition and stop there")
    arguments = parser.parse_args(argv)
    os.environ["WANDB_SILENT"] = "true"
    try:
        check_logger(LoggerConfig(name="wandb", project=arguments.project, entity=arguments.entity))
        view = workspace(arguments.entity, arguments.project)
        if arguments.json:
            print(view._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2))
            return 0
        if not has_key():
            raise ConfigError("no W&B API key: run `wandb login` or set WANDB_API_KEY; --json needs none")
        view.save()
    except ConfigError as error:
        problem = str(error)
    except ModuleNotFoundError as error:
        problem = f"{error.name} is not installed: pip install wandb-workspaces"
    except Exception as error:  # noqa: BLE001 - whatever W&B's library raises, a line says it
        problem = f"W&B did not take the view ({' '.join(str(error).split())})"
    else:
        print(view.url)
        return 0
    print(f"meanq: {problem}", file=sys.stderr)
    return 1
