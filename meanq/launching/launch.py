"""Hand the runs of a sweep to a launcher: one after the other here, several at once, or as jobs of a cluster.

Hydra's own sweeper knows products of choices only; a study is a union of such products. And Hydra composes a run anew
when its job starts, so that an edit of conf/ would change jobs that wait; here every run has been composed and checked
before the first starts, and is handed over as it is.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, RunMode
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf, flag_override

from meanq.config.schema import Config
from meanq.launching.plan import Plan
from meanq.rundir.files import read_status
from meanq.rundir.layout import run_directory
from meanq.rundir.reuse import reuse, said_of


def launch(plan: Plan, job: Callable[[DictConfig], None]) -> list[BaseException]:
    """Run all that are not finished; what they raised, which in this process they never do."""
    frozen = FrozenConfigs(dict(zip(map(tuple, plan.job_overrides), plan.configs, strict=True)))
    overrides = []
    for job_overrides in plan.job_overrides:
        directory = frozen.directory(job_overrides)
        run = frozen.config(job_overrides)
        status = read_status(directory)
        # What is mirrored elsewhere has to be there under its own name, so it is trained.
        may_copy = plan.study is not None and not status and run.logger.name == "files"
        if status.get("state") == "finished":
            print(f"{directory} is finished already: skipped", flush=True)
        elif may_copy and (twin := reuse(run)):
            print(f"{directory} is the same run as {twin}, which is finished: copied{said_of(twin)}", flush=True)
        else:
            overrides.append(job_overrides)
    if not overrides:
        return []
    GlobalHydra.instance().clear()
    hydra = Hydra.create_main_hydra2("meanq", create_config_search_path(plan.config_path))
    try:
        config = hydra.compose_config(
            config_name=plan.config_name,
            overrides=plan.shared_overrides,
            run_mode=RunMode.MULTIRUN,
            with_log_configuration=False,
        )
        callbacks = Callbacks(config)
        context = HydraContext(config_loader=cast(ConfigLoader, frozen), callbacks=callbacks)
        launcher = make_launcher(config, context, job)
        callbacks.on_multirun_start(config=config, config_name=plan.config_name)
        returns: list[JobReturn] = list(launcher.launch(overrides, initial_job_idx=0))
        callbacks.on_multirun_end(config=config, config_name=plan.config_name)
    finally:
        GlobalHydra.instance().clear()
    return [r._return_value for r in returns if r.status == JobStatus.FAILED]


def make_launcher(config: DictConfig, context: HydraContext, job: Callable[[DictConfig], None]) -> Launcher:
    """The launcher of the configuration. Hydra itself makes only those of its plugins, so ours are made here."""
    target = config.hydra.launcher._target_
    if not target.startswith("meanq."):
        return Plugins.instance().instantiate_launcher(config=config, hydra_context=context, task_function=job)
    fields = cast(dict[str, Any], OmegaConf.to_container(config.hydra.launcher, resolve=True))
    launcher: Launcher = get_class(target)(**{key: value for key, value in fields.items() if key != "_target_"})
    launcher.setup(hydra_context=context, task_function=job, config=config)
    return launcher


class FrozenConfigs:
    """Takes the place of Hydra's loader in a launcher: gives each job the configuration that was composed for it."""

    def __init__(self, configs: Mapping[tuple[str, ...], Config]) -> None:
        self._configs = dict(configs)

    def config(self, overrides: Sequence[str]) -> Config:
        """The run with these overrides."""
        return self._configs[tuple(overrides)]

    def directory(self, overrides: Sequence[str]) -> Path:
        """Where that run is stored."""
        return run_directory(self.config(overrides))

    def only(self, overrides: Sequence[str]) -> "FrozenConfigs":
        """One run's: what is sent to a job need not grow with the sweep."""
        return FrozenConfigs({tuple(overrides): self.config(overrides)})

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """What Hydra's loader of this name returns, without reading a file."""
        composed = OmegaConf.structured(self.config(sweep_overrides))
        with flag_override(composed, ["struct", "readonly"], False):
            composed.hydra = copy.deepcopy(master_config.hydra)
            composed.hydra.overrides.task = list(sweep_overrides)
        OmegaConf.copy_cache(from_config=master_config, to_config=composed)
        return composed


def frozen_configs(context: HydraContext | None) -> FrozenConfigs:
    """Those that `launch` gave to its launcher."""
    assert context is not None and isinstance(context.config_loader, FrozenConfigs)
    return context.config_loader


def result(overrides: Sequence[str], failure: BaseException | None) -> JobReturn:
    """What a launcher returns of a run that it did not see itself."""
    returned = JobReturn(overrides=list(overrides), status=JobStatus.FAILED if failure else JobStatus.COMPLETED)
    returned.return_value = failure
    return returned
