"""Hand the runs of a sweep to Hydra's launcher: one after the other here, or as jobs of a cluster.

Hydra's own sweeper knows products of choices only; a study is a union of such products.
"""

from collections.abc import Callable

from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig

from meanq.sweep import Plan


def launch(plan: Plan, job: Callable[[DictConfig], None]) -> list[BaseException]:
    """Run all; what they raised, which in this process they never do."""
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
        context = HydraContext(config_loader=hydra.config_loader, callbacks=callbacks)
        launcher = Plugins.instance().instantiate_launcher(config=config, hydra_context=context, task_function=job)
        callbacks.on_multirun_start(config=config, config_name=plan.config_name)
        returns: list[JobReturn] = list(launcher.launch(plan.job_overrides, initial_job_idx=0))
        callbacks.on_multirun_end(config=config, config_name=plan.config_name)
    finally:
        GlobalHydra.instance().clear()
    return [r._return_value for r in returns if r.status == JobStatus.FAILED]
