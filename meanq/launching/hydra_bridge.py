"""The only module that imports Hydra's internals.

Hydra's public API composes one run; meanq also needs its argument parser, its product of swept values, and the
configuration that it hands to launchers.
"""

import re
from argparse import ArgumentError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig

from meanq.config.errors import ConfigError

CONFIG_NAME = "config"  # conf/config.yaml


def parse_arguments(arguments: Sequence[str]) -> Namespace:
    """Parse a command line as Hydra does, except that options may stand anywhere."""
    parser = get_args_parser()
    parser.exit_on_error = False
    try:
        options, unknown = parser.parse_known_intermixed_args(arguments)
    except ArgumentError as error:
        raise ConfigError(f"{error}; see --help") from None
    if unknown:
        raise ConfigError(f"{unknown[0]}: no such option; see --help")
    return options


def expand_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of every combination of swept values.

    Values are normalised (1e-3 becomes 0.001, True becomes true), so that equal runs have equal names.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    jobs = [job for batch in BasicSweeper.split_arguments(parsed, None) for job in batch]
    return [[re.sub(r"=(True|False)$", lambda value: value[0].lower(), o) for o in job] for job in jobs]


@contextmanager
def sweep_config(config_path: str, config_name: str, overrides: Sequence[str]) -> Iterator[DictConfig]:
    """Compose the configuration of a sweep, including its `hydra` node; Hydra stays initialised inside the context."""
    GlobalHydra.instance().clear()
    hydra = Hydra.create_main_hydra2("meanq", create_config_search_path(config_path))
    try:
        yield hydra.compose_config(config_name, list(overrides), RunMode.MULTIRUN, with_log_configuration=False)
    finally:
        GlobalHydra.instance().clear()


def run_in_this_process(
    context: HydraContext, job: TaskFunction, config: DictConfig, overrides: Sequence[str], number: int
) -> JobReturn:
    """Run one job of a sweep with Hydra's basic launcher."""
    launcher = BasicLauncher()
    launcher.setup(hydra_context=context, task_function=job, config=config)
    return launcher.launch([overrides], initial_job_idx=number)[0]


def make_callbacks(config: DictConfig) -> Callbacks:
    """Make the callbacks that `hydra.callbacks` configures."""
    return Callbacks(config)
