"""Hand the runs of a plan to a launcher: one after the other here, several at once, or as jobs of a cluster.

Hydra's sweeper supports products only, while a study is a union of products. Hydra also composes a run again when its
job starts, so an edit of conf/ would change waiting jobs. Here every run is composed and checked before the first one
starts, and jobs receive that frozen configuration.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hydra.core.config_loader import ConfigLoader
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf, flag_override

from meanq.config.schema import Config
from meanq.launching.hydra_bridge import make_callbacks, sweep_config
from meanq.launching.plan import IN_PROCESS, Plan
from meanq.rundir.layout import run_directory
from meanq.rundir.reader import read_status
from meanq.rundir.reuse import reuse, said_of


def launch(plan: Plan, job: TaskFunction) -> list[BaseException]:
    """Run whatever is not finished; return the failures."""
    waiting = {
        tuple(overrides): config
        for overrides, config in zip(plan.job_overrides, plan.configs, strict=True)
        if not _done(config, may_copy=plan.study is not None)
    }
    if not waiting:
        return []
    frozen = FrozenConfigs(waiting)
    # A run makes its own directory; Hydra's launcher in this process needs none.
    directory = ["hydra.sweep.dir=."] if plan.launcher == IN_PROCESS else []
    with sweep_config(plan.config_path, plan.config_name, [*plan.shared_overrides, *directory]) as config:
        callbacks = make_callbacks(config)
        context = HydraContext(config_loader=cast(ConfigLoader, frozen), callbacks=callbacks)
        launcher = make_launcher(config, context, job)
        callbacks.on_multirun_start(config=config, config_name=plan.config_name)
        returns = launcher.launch([list(overrides) for overrides in waiting], initial_job_idx=0)
        callbacks.on_multirun_end(config=config, config_name=plan.config_name)
    return [r._return_value for r in returns if r.status == JobStatus.FAILED]


def _done(config: Config, may_copy: bool) -> bool:
    """Whether a run is finished, or was copied from a finished run of another study."""
    directory = run_directory(config)
    status = read_status(directory)
    if status.get("state") == "finished":
        print(f"{directory} is finished already: skipped", flush=True)
        return True
    # A run that is mirrored elsewhere must exist there under its own name, so it is trained.
    twin = reuse(config) if may_copy and not status and config.logger.name == "files" else None
    if twin:
        print(f"{directory} is the same run as {twin}, which is finished: copied{said_of(twin)}", flush=True)
    return twin is not None


def make_launcher(config: DictConfig, context: HydraContext, job: TaskFunction) -> Launcher:
    """Make the configured launcher. Hydra makes only those of its plugins, so ours are made here."""
    target = config.hydra.launcher._target_
    if not target.startswith("meanq."):
        return Plugins.instance().instantiate_launcher(config=config, hydra_context=context, task_function=job)
    fields = cast(dict[str, Any], OmegaConf.to_container(config.hydra.launcher, resolve=True))
    launcher: Launcher = get_class(target)(**{key: value for key, value in fields.items() if key != "_target_"})
    launcher.setup(hydra_context=context, task_function=job, config=config)
    return launcher


class FrozenConfigs:
    """Replaces Hydra's loader in a launcher: returns the configuration that was composed for a job."""

    def __init__(self, configs: Mapping[tuple[str, ...], Config]) -> None:
        self._configs = dict(configs)

    def config(self, overrides: Sequence[str]) -> Config:
        return self._configs[tuple(overrides)]

    def directory(self, overrides: Sequence[str]) -> Path:
        return run_directory(self.config(overrides))

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """Return what Hydra's method of this name returns, without reading a file."""
        composed = OmegaConf.structured(self.config(sweep_overrides))
        with flag_override(composed, ["struct", "readonly"], False):
            composed.hydra = copy.deepcopy(master_config.hydra)
            composed.hydra.overrides.task = list(sweep_overrides)
        OmegaConf.copy_cache(from_config=master_config, to_config=composed)
        return composed


def frozen_configs(context: HydraContext | None) -> FrozenConfigs:
    """Return the configurations that `launch` gave to its launcher."""
    assert context is not None and isinstance(context.config_loader, FrozenConfigs)
    return context.config_loader


def context_for(context: HydraContext | None, overrides: Sequence[str]) -> HydraContext:
    """Return a context with the configuration of one job, so that what a job is sent does not grow with the sweep."""
    only = FrozenConfigs({tuple(overrides): frozen_configs(context).config(overrides)})
    assert context is not None
    return HydraContext(config_loader=cast(ConfigLoader, only), callbacks=context.callbacks)


def job_return(overrides: Sequence[str], failure: BaseException | None) -> JobReturn:
    """Make Hydra's record of a job that ran in another process."""
    returned = JobReturn(overrides=list(overrides), status=JobStatus.FAILED if failure else JobStatus.COMPLETED)
    returned.return_value = failure
    return returned
