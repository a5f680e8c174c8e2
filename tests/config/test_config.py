"""conf/: every choice composes, carries the paper's values, and every mistake gets one clear line."""

import csv
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import yaml

from meanq import run
from meanq.config.fields import flatten
from meanq.config.schema import CONFIG_DIR
from tests.helpers import compose
from tests.synthetic_runs import make_config


def choices(group: str) -> list[str]:
    directory = CONFIG_DIR / group
    files = (path.relative_to(directory) for path in directory.rglob("*.yaml") if path.name[0] != "_")
    return sorted(path.with_suffix("").as_posix() for path in files)


@pytest.mark.parametrize("algo", choices("algo"))
@pytest.mark.parametrize("env", ["seaquest", "minatar/breakout", "chain", "garnet", "gymnasium"])
def test_every_algorithm_composes_with_every_kind_of_environment(algo: str, env: str) -> None:
    config = compose(f"algo={algo}", f"env={env}")
    assert config.algo.name == algo
    networks = {"main": "nature_256", "sunrise": "data_efficient", "dopamine": "dopamine"}
    atari = networks.get(config.algo.family, "nature")
    assert config.network.name == {"seaquest": atari, "minatar/breakout": "minatar"}.get(env, "mlp")


@pytest.mark.parametrize("env", [env for env in choices("env") if env != "custom"])
def test_every_environment_composes(env: str) -> None:
    config = compose(f"env={env}")
    assert config.env.name == {"gymnasium": "CartPole-v1", "garnet": "garnet_0"}.get(env, env.replace("/", "_"))
    assert config.total_steps == config.env.vanilla.total_steps


@pytest.mark.parametrize(("group", "choice"), [(g, c) for g in ("network", "logger") for c in choices(g)])
def test_every_other_choice_composes(group: str, choice: str) -> None:
    assert getattr(compose("env=seaquest", f"{group}={choice}"), group).name == choice


def test_a_chosen_network_prevails_over_the_environments() -> None:
    assert compose("env=minatar/asterix", "network=mlp").network.name == "mlp"


def test_all_26_games_carry_the_scores_of_the_papers_tables() -> None:
    with (Path(__file__).parents[1] / "data" / "normalisation.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 26
    for row in rows:
        env = compose(f"env={row['env']}").env
        assert env.random_score == float(row["random_100k"])
        assert env.random_score_500k == float(row["random_500k"])
        assert env.reference_score == float(row["human"])


@pytest.mark.parametrize(
    ("env", "interactions_per_update", "total_steps"),
    [("seaquest", 3, 1_000_000), ("asterix", 2, 500_000), ("bank_heist", 2, 500_000), ("hero", 2, 500_000)],
)
def test_the_vanilla_study_has_the_papers_values(env: str, interactions_per_update: int, total_steps: int) -> None:
    config = compose("algo=meanq", f"env={env}")
    algo = config.algo
    assert algo.interactions_per_update == interactions_per_update
    assert config.total_steps == total_steps
    assert (algo.learning_rate, algo.adam_epsilon, algo.max_gradient_norm) == (6.25e-5, 1e-8, None)
    assert (algo.batch_size, algo.replay_capacity, algo.first_update) == (32, 500_000, 1600)
    assert (algo.epsilon.start, algo.epsilon.end, algo.epsilon.steps) == (1.0, 0.1, 200_000)
    assert algo.target_network == 2000
    assert (algo.multi_step, algo.discount, algo.priority_exponent, algo.random_steps) == (1, 0.99, 0.5, 0)
    assert (algo.importance_start, algo.importance_end, algo.importance_steps) == (0.4, 1.0, None)
    assert algo.ensemble_size == 5
    assert (config.evaluation.episodes, config.evaluation.every) == (20, 10_000)
    assert (config.probe.states, config.probe.every) == (50, 100_000)
    assert config.network.name == "nature" and algo.dueling


# Adam's epsilon, M, random interactions at the start, importance horizon, std: of the released configuration, of the
# paper's text, and of the script that the cited scores of SUNRISE and Rainbow come from.
RELEASED = (1e-8, 3, 1600, 500_000, "sample")
TEXT = (1.5e-4, 1, 0, None, "population")
SCRIPT = (1.5e-4, 20, 0, None, "population")
MAIN = {
    **dict.fromkeys(("meanq_rainbow", "meanq_rainbow_target", "rainbow", "rainbow_large"), RELEASED),
    **dict.fromkeys(("rainbow_more_updates", "rainbow_large_more_updates"), RELEASED),
    **dict.fromkeys(("sunrise", "rainbow_data_efficient"), SCRIPT),
    "meanq_rainbow_text": TEXT,
}


@pytest.mark.parametrize("name", MAIN)
def test_the_main_experiment_has_the_values_of_its_source(name: str) -> None:
    config = compose(f"algo={name}", "env=alien")
    algo = config.algo
    found = (algo.adam_epsilon, algo.multi_step, algo.random_steps, algo.importance_steps, algo.ensemble_std)
    assert found == MAIN[name]
    convolutions = [(c.channels, c.kernel, c.stride) for c in config.network.convolutions]
    nature, data_efficient = [(32, 8, 4), (64, 4, 2), (64, 3, 1)], [(32, 5, 5), (64, 5, 5)]
    assert convolutions == (nature if MAIN[name] == RELEASED else data_efficient) and config.network.hidden == 256
    assert (algo.learning_rate, algo.max_gradient_norm) == (1e-4, None)
    updates = 5 if name.endswith("more_updates") else 1
    assert (algo.gradient_steps, algo.parallel_networks) == (updates, 5 if "large" in name else 1)
    assert (algo.batch_size, algo.first_update, algo.interactions_per_update) == (32, 1600, 1)
    assert config.total_steps == algo.replay_capacity == 100_000
    assert compose(f"algo={name}", "env=alien", "total_steps=500000").algo.replay_capacity == 500_000
    assert (algo.value, algo.atoms, algo.value_min, algo.value_max) == ("categorical", 51, -10, 10)
    assert algo.dueling and algo.noisy and algo.noise == 0.1 and algo.prioritized
    assert algo.target_network == (None if name in ("meanq_rainbow", "meanq_rainbow_text") else 2000)
    assert (algo.ucb_lambda, algo.mask_probability) == (1, 1)
    assert (algo.confidence_temperature is None) == (name != "sunrise")
    assert not algo.epsilon.with_noise, "Algorithm 2 has no random actions"
    assert (algo.discount, algo.priority_exponent, algo.random_shift) == (0.99, 0.5, 0)


def test_minatar_keeps_values_of_its_own() -> None:
    for name in ("meanq_rainbow", "rainbow", "meanq_rainbow_text"):
        algo = compose(f"algo={name}", "env=minatar/breakout").algo
        found = (algo.adam_epsilon, algo.multi_step, algo.random_steps, algo.importance_steps, algo.ensemble_std)
        assert found == TEXT and (algo.learning_rate, algo.max_gradient_norm) == (1e-3, 10)
    vanilla = compose("algo=meanq", "env=minatar/breakout").algo
    assert (vanilla.adam_epsilon, vanilla.max_gradient_norm, vanilla.multi_step) == (1e-8, 10, 1)


def test_canonical_rainbow_has_its_published_values() -> None:
    config = compose("algo=rainbow_canonical", "env=alien")
    algo = config.algo
    assert config.network.name == "nature" and config.network.hidden == 512 and config.total_steps == 500_000
    assert (algo.learning_rate, algo.adam_epsilon, algo.multi_step, algo.noise) == (6.25e-5, 1.5e-4, 3, 0.5)
    assert (algo.target_network, algo.first_update, algo.interactions_per_update) == (8000, 20_000, 4)
    assert algo.replay_capacity == 1_000_000 and algo.double and algo.exploration == "greedy"


def test_the_ablations_differ_from_rainbow_in_what_they_say() -> None:
    def differing(name: str) -> dict[str, object]:
        ours, theirs = (asdict(compose(f"algo={n}", "env=alien").algo) for n in (name, "rainbow"))
        return {key: ours[key] for key in ours if ours[key] != theirs[key] and key != "name"}

    assert differing("rainbow_large") == {"parallel_networks": 5}
    assert differing("rainbow_more_updates") == {"gradient_steps": 5}
    assert differing("rainbow_large_more_updates") == {"parallel_networks": 5, "gradient_steps": 5}
    main = {"ensemble_size": 5, "double": False, "target_network": None, "exploration": "ucb"}
    assert differing("meanq_rainbow") == main
    assert differing("meanq_rainbow_target") == {key: value for key, value in main.items() if key != "target_network"}


def test_in_small_games_random_actions_help_noise_to_explore() -> None:
    for env in ("minatar/breakout", "chain", "garnet", "gymnasium"):
        assert compose("algo=meanq_rainbow", f"env={env}").algo.epsilon.with_noise


def test_without_noise_rainbow_explores_at_random() -> None:
    assert compose("algo=rainbow", "algo.noisy=false").algo.exploration == "epsilon_greedy"
    assert compose("algo=meanq_rainbow", "algo.noisy=false").algo.exploration == "ucb"


# The specification's table: members, bootstrap, double, snapshots of the target network, sampling, acting.
TABLE = {
    "dqn": (1, "mean", False, 1, "own", "epsilon_greedy"),
    "dqn_no_target": (1, "mean", False, None, "own", "epsilon_greedy"),
    "double_dqn": (1, "mean", True, 1, "own", "epsilon_greedy"),
    "avg_dqn": (1, "mean", False, 5, "own", "epsilon_greedy"),
    "qr_dqn": (1, "mean", False, 1, "own", "epsilon_greedy"),
    "ens_dqn": (5, "mean", False, 1, "shared", "epsilon_greedy"),
    "meanq": (5, "mean", False, 1, "own", "epsilon_greedy"),
    "meanq_no_target": (5, "mean", False, None, "own", "epsilon_greedy"),
    "ebql": (5, "others", True, 1, "shared", "epsilon_greedy"),
    "maxmin": (5, "min", False, 1, "own", "epsilon_greedy"),
    "bootstrapped_dqn": (5, "own", False, 1, "own", "episode_member"),
    "hl_gauss": (1, "mean", False, 1, "own", "epsilon_greedy"),
    "mellowmax": (1, "mellowmax", False, 1, "own", "epsilon_greedy"),
    "subset_min": (5, "min", False, 1, "own", "epsilon_greedy"),
    "rainbow": (1, "mean", True, 1, "own", "greedy"),
    "rainbow_canonical": (1, "mean", True, 1, "own", "greedy"),
    "rainbow_data_efficient": (1, "mean", True, 1, "own", "greedy"),
    "rainbow_dopamine": (1, "mean", True, 1, "own", "greedy"),
    "drq_eps": (1, "mean", False, None, "own", "epsilon_greedy"),
    "rainbow_large": (1, "mean", True, 1, "own", "greedy"),
    "rainbow_more_updates": (1, "mean", True, 1, "own", "greedy"),
    "rainbow_large_more_updates": (1, "mean", True, 1, "own", "greedy"),
    "sunrise": (5, "own", True, 1, "shared", "ucb"),
    "meanq_rainbow": (5, "mean", False, None, "own", "ucb"),
    "meanq_rainbow_target": (5, "mean", False, 1, "own", "ucb"),
    "meanq_rainbow_text": (5, "mean", False, None, "own", "ucb"),
}


def test_the_table_is_complete() -> None:
    assert sorted(TABLE) == choices("algo")


@pytest.mark.parametrize("name", TABLE)
def test_an_algorithm_is_its_row_of_the_specification(name: str) -> None:
    algo = compose(f"algo={name}", "env=hero").algo
    sampling = {("independent", "per_member"): "own", ("shared", "shared"): "shared"}[algo.minibatch, algo.priorities]
    snapshots = algo.target_snapshots if algo.target_network else None
    assert (algo.ensemble_size, algo.bootstrap, algo.double, snapshots, sampling, algo.exploration) == TABLE[name]
    assert algo.prioritized == (name not in ("drq_eps", "qr_dqn"))


def test_drq_eps_has_its_published_values() -> None:
    config = compose("algo=drq_eps", "env=alien")
    algo, network = config.algo, config.network
    assert (algo.discount, algo.multi_step, algo.first_update, algo.interactions_per_update) == (0.99, 10, 1600, 1)
    epsilon = algo.epsilon
    assert (epsilon.start, epsilon.end, epsilon.begin, epsilon.steps, epsilon.evaluation) == (
        1,
        0.01,
        1600,
        5000,
        0.001,
    )
    assert (algo.value, algo.loss, algo.dueling, algo.prioritized, algo.batch_size) == (
        "scalar",
        "huber",
        True,
        False,
        32,
    )
    assert (algo.learning_rate, algo.adam_epsilon, algo.max_gradient_norm) == (1e-4, 1.5e-4, None)
    assert (network.shared_hidden, network.hidden, network.padding) == (True, 512, "same")
    assert network.initial_weights == "xavier" and len(network.convolutions) == 3
    assert (algo.random_shift, algo.random_intensity, config.total_steps) == (4, 0.05, 100_000)
    assert algo.replay_capacity == 100_000


def test_dopamines_rainbow_has_its_published_values() -> None:
    config = compose("algo=rainbow_dopamine", "env=alien")
    algo = config.algo
    assert (algo.value, algo.noisy, algo.noise, algo.dueling, algo.double) == ("categorical", True, 0.1, True, True)
    assert (algo.multi_step, algo.target_network, algo.first_update, algo.adam_epsilon) == (10, 2000, 1600, 1.5e-4)
    assert (algo.importance_start, algo.importance_end, algo.priority_exponent) == (0.5, 0.5, 0.5)
    epsilon = algo.epsilon
    assert (epsilon.end, epsilon.begin, epsilon.steps, epsilon.with_noise) == (0.01, 1600, 2000, True)
    assert (epsilon.evaluation, config.network.name, algo.random_shift, algo.random_intensity) == (
        0.001,
        "dopamine",
        0,
        0,
    )


def test_one_override_flips_to_the_released_protocol() -> None:
    ours, released = (compose("algo=meanq_rainbow", "env=boxing", f"protocol={name}") for name in ("ours", "released"))
    before, after = flatten(asdict(ours)), flatten(asdict(released))
    assert {name: after[name] for name in after if after[name] != before[name] and name != "label"} == {
        "algo.bias_noise": "fan_out",
        "algo.shared_noise": True,
        "env.stack_over_lives": True,
        "env.options.resize": "linear",
        "env.options.resize_first": True,
        "env.options.noop_after_life": True,
        "evaluation.noise": True,
    }
    assert ours == compose("algo=meanq_rainbow", "env=boxing", "protocol=ours", f"label='{ours.label}'")
    assert not compose("algo=meanq", "env=boxing", "protocol=released").evaluation.noise, "it has no noisy layers"


def test_algorithms_can_be_composed_from_the_command_line() -> None:
    algo = compose("algo=meanq_no_target", "algo.target_network=7", "algo.bootstrap=min").algo
    assert algo.target_network == 7
    assert compose("algo=meanq", "algo.target_network=null").algo.target_network is None


MISTAKES = [
    (["algo=meanqq"], "algo=meanqq: there is no such algo; did you mean meanq"),
    (["env=seaqest"], "env=seaqest: there is no such env; did you mean seaquest"),
    (["env=minatar/asterixx"], "env=minatar/asterixx: there is no such env; did you mean minatar/asterix"),
    (["network=natur"], "network=natur: there is no such network; did you mean nature"),
    (["algo.ensemble_siz=3"], "algo.ensemble_siz: there is no such field; did you mean algo.ensemble_size"),
    (["algo.ensemble_size=x"], "algo.ensemble_size=x: write a whole number"),
    (["algo.ensemble_size=2.5"], "algo.ensemble_size=2.5: write a whole number"),
    (["algo.dueling=maybe"], "algo.dueling=maybe: write true or false"),
    (["algo.ensemble_size=0"], "algo.ensemble_size=0: write 1 or more"),
    (["algo=ebql", "algo.ensemble_size=1"], "algo.ensemble_size=1: algo.bootstrap=others needs at least 2 members"),
    (["seed=4-0"], "seed=4-0: the range 4-0 runs backwards; write seed=0-4"),
    (["seed=x"], "seed=x: write whole numbers"),
    (["seed=0-4"], "this names several runs; add -m"),
    (["total_steps=100"], "total_steps=100: the first update comes at interaction 1600"),
    (["algo.discount=-0.5"], "algo.discount=-0.5: write a number from 0 to 1"),
    (["algo.learning_rate=nan"], "algo.learning_rate=nan: write a number above 0"),
    (["algo=ens_dqn", "algo.priorities=per_member"], "algo.priorities=per_member: members that share one minibatch"),
    (["algo=meanq_no_target", "algo.double=true"], "algo.double=true: without a target network or noise"),
    (["algo.value=vector"], "algo.value=vector: no such value"),
    (["algo.atoms=1"], "algo.atoms=1: write 2 or more"),
    (["algo.value_min=5", "algo.value_max=5"], "algo.value_max=5.0: write more than algo.value_min=5.0"),
    (["algo.value_max=inf"], "algo.value_max=inf: write a number"),
    (["algo.value_min=low"], "algo.value_min=low: write a number"),
    (["algo=rainbow", "algo.noise=0"], "algo.noise=0.0: write a number above 0"),
    (["algo.noisy=perhaps"], "algo.noisy=perhaps: write true or false"),
    (["algo.parallel_networks=0"], "algo.parallel_networks=0: write 1 or more"),
    (["algo.exploration=ubc"], "algo.exploration=ubc: no such exploration"),
    (["algo.exploration=greedy"], "algo.exploration=greedy: without noisy weights a greedy agent never explores"),
    (["algo.exploration=ucb", "algo.ucb_lambda=-1"], "algo.ucb_lambda=-1.0: write 0 or more"),
    (["algo.ensemble_std=robust"], "algo.ensemble_std=robust: write population or sample"),
    (["algo.confidence_temperature=0"], "algo.confidence_temperature=0.0: write a number above 0, or null"),
    (["algo.max_gradient_norm=0"], "algo.max_gradient_norm=0.0: write a number above 0, or null"),
    (["algo.max_gradient_norm=inf"], "algo.max_gradient_norm=inf: write a number above 0, or null"),
    (["algo.random_steps=-1"], "algo.random_steps=-1: write 0 or more"),
    (["algo.importance_steps=many"], "algo.importance_steps=many: write a whole number"),
    (["algo.epsilon.begin=-1"], "algo.epsilon.begin=-1: write 0 or more"),
    (["algo.epsilon.evaluation=2"], "algo.epsilon.evaluation=2.0: write a number from 0 to 1"),
    (["algo.loss=null"], "algo.loss=null: it needs a value; leave it out for its default"),
    (["algo.loss=absolute"], "algo.loss=absolute: write squared or huber"),
    (["algo=rainbow", "algo.loss=huber"], "algo.loss=huber: distributions are learned by cross entropy"),
    (["algo=rainbow", "algo.bias_noise=both"], "algo.bias_noise=both: write fan_in or fan_out"),
    (["algo.bias_noise=fan_out"], "algo.bias_noise=fan_out: no layer is noisy: write algo.noisy=true, or"),
    (["algo.shared_noise=true"], "algo.shared_noise=true: no layer is noisy: write algo.noisy=true, or"),
    (["evaluation.noise=true"], "evaluation.noise=true: no layer is noisy: write algo.noisy=true, or"),
    (["evaluation.noise=loud"], "evaluation.noise=loud: write true or false"),
    (["algo.random_intensity=-0.1"], "algo.random_intensity=-0.1: write a number from 0 to 0.5"),
    (["algo.random_intensity=nan"], "algo.random_intensity=nan: write a number from 0 to 0.5"),
    (["env=chain", "algo.random_intensity=0.1"], "algo.random_intensity=0.1: these states have shape (8,)"),
    (["network.padding=full"], "network.padding=full: write valid or same"),
    (["network.initial_weights=orthogonal"], "network.initial_weights=orthogonal: write uniform or xavier"),
    (["network.shared_hidden=both"], "network.shared_hidden=both: write true or false"),
    (["env=boxing", "env.options.resize=cubic"], "env.options.resize=cubic: write area or linear"),
    (["env=boxing", "env.options.resize_first=1"], "env.options.resize_first=1: write true or false"),
    (["env=boxing", "env.options.noop_after_life=2"], "env.options.noop_after_life=2: write true or false"),
    (["env.stack_over_lives=perhaps"], "env.stack_over_lives=perhaps: write true or false"),
    (["protocol=release"], "protocol=release: there is no such protocol; did you mean released"),
    (["protocol=released"], "minatar environments do not take these"),
    (["algo.mask_probability=0"], "algo.mask_probability=0.0: write a number from 0.001 to 1"),
    (["algo.mask_probability=1.5"], "algo.mask_probability=1.5: write a number from 0.001 to 1"),
    (["algo.mask_probability=1e-12"], "algo.mask_probability=1e-12: write a number from 0.001 to 1"),
    (["algo.multi_step=0"], "algo.multi_step=0: write 1 or more"),
    (["algo.gradient_steps=0"], "algo.gradient_steps=0: write 1 or more"),
    (["algo.random_shift=-1"], "algo.random_shift=-1: write 0 or more"),
    (["algo.random_shift=10"], "algo.random_shift=10: images are 10x10; write less than that"),
    (["env=chain", "algo.random_shift=4"], "algo.random_shift=4: these states have shape (8,) and are no images"),
    (
        ["algo=meanq_rainbow", "algo.bootstrap=tests.envs.test_chain.lower_half"],
        "lower_half: this rule cannot combine distributions: write algo.value=scalar",
    ),
    (["algo.minibatch=indepedent"], "algo.minibatch=indepedent: write independent or shared"),
    (["algo.bootstrap=median"], "algo.bootstrap=median: no such bootstrap"),
    (["algo.bootstrap=nowhere.rule"], "algo.bootstrap=nowhere.rule: cannot import it"),
    (["env.kind=atary"], "env.kind=atary: no such kind"),
    (["+env.options.noop_mx=3"], "do not take these (got an unexpected keyword argument 'noop_mx')"),
    (["env.options.noop_max=-1"], "env.options.noop_max=-1: write a whole number, 0 or more"),
    (["env.options.difficulty_ramping=3"], "env.options.difficulty_ramping=3: write true or false"),
    (["env=chain", "env.options.length=abc"], "env.options.length=abc: write a whole number, 0 or more"),
    (["env=chain", "env.options.length=0"], "write a length of 1 or more, 2 actions or more"),
    (["env=chain", "env.options.actions=1"], "write a length of 1 or more, 2 actions or more"),
    (["env=pong", "env.options.max_frames=0"], "env.options.max_frames=0: write a whole number, 1 or more"),
    (["algo.ensemble_size=1000000"], "algo.ensemble_size=1000000: the weights need "),
    (["algo.value=categorical", "algo.atoms=1000000000"], "algo.atoms=1000000000: minibatches need "),
    (["network.hidden=1000000000"], "network.hidden=1000000000: the weights need "),
    (["algo.target_snapshots=1000000"], "algo.target_snapshots=1000000: the weights need "),
    (["algo.batch_size=100000000"], "algo.batch_size=100000000: minibatches need "),
    (["probe.states=1000000000"], "probe.states=1000000000: the probe states need "),
    (["evaluation.episodes=1000000000"], "evaluation.episodes=1000000000: evaluation needs "),
    (["-m", "seed=0-999999999"], "seed=0-999999999: more than 100,000 runs; write fewer seeds"),
    (["algo.bootstrap=."], "algo.bootstrap=.: no such bootstrap"),
    (["env.kind=builtins.dict"], "env.kind=builtins.dict: "),
    (["=3"], "=3: it names no field; write FIELD=VALUE"),
    (["--multirun", "--cfg", "job"], "--cfg: it shows one run; leave -m out"),
    ([f"seed={'9' * 10_000}"], "write whole numbers"),
    ([f"total_steps={'9' * 10_000}"], "a number of more than 100 digits"),
    (["total_steps=99999999999999999999"], "total_steps=99999999999999999999: such a number is too large"),
    (["algo.noise=1e308"], "algo.noise=1e+308: such a number is too large"),
    (["algo.noise=1000"], "algo.noise=1000.0: write a number above 0, at most 100"),
    (["label=.hidden"], "label=.hidden: directories that begin with a dot are not read"),
    (["study=a/.b"], "study=a/.b: directories that begin with a dot are not read"),
    (["label='a\nb'"], "label=a b: it names a directory below the root: write a plain name"),
    (["algo={}"], "algo={}: write the name of a choice"),
    (["algo.epsilon={start:0.5}"], "write its fields, algo.epsilon.FIELD=VALUE"),
    (["label=\udcff"], "label=?: it cannot be read"),
    (['label=é"'], 'label=é": it cannot be read; put quotes around a text'),
    (["env=gymnasium", "env.id=CartPol-v1"], "env.id=CartPol-v1: gymnasium cannot make it"),
    (["env=gymnasium", "env.id=Pendulum-v1"], "only discrete actions are supported"),
    (["env=chain", "network=nature"], "network=nature: convolutions need image states"),
    (["env=minatar/asterix", "network=nature"], "images of 10x10 are too small"),
    (["device=tpu"], "device=tpu: write auto, cpu, cuda or cuda:N"),
    (["study=../elsewhere"], "study=../elsewhere: it names a directory below the root"),
    (["algo=_vanilla"], "algo.name: it has no default"),
    (["env=custom"], "env.kind: it has no default; write env.kind=..."),
    (["--frobnicate"], "--frobnicate: no such option"),
    (["-m", "algo=meanq,dqnn", "seed=0-4"], "algo=dqnn: there is no such algo; did you mean dqn"),
    (["-m", "seed=0-4", "algo.ensemble_size=5,0"], "algo.ensemble_size=0: write 1 or more"),
]


@pytest.mark.parametrize(("arguments", "says"), MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_gets_one_line_and_writes_nothing(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "runs"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["meanq", *arguments, f"root={root}"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as stop:
        run.main()
    out, err = capfd.readouterr()
    assert stop.value.code == 2
    assert says in err
    assert err.startswith("meanq: ") and err.count("\n") == 1, err
    assert out == ""
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_without_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    test_a_mistake_gets_one_line_and_writes_nothing(
        ["device=cuda"], "device=cuda: this machine has no usable CUDA", tmp_path, monkeypatch, capfd
    )


@pytest.mark.parametrize("root", ["/proc/meanq", "a_file/runs", "", "a" * 5_000])
def test_an_unwritable_root(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a_file").write_text("not a directory")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["meanq", f"root={root}"])
    with pytest.raises(SystemExit) as stop:
        run.main()
    err = capfd.readouterr().err
    assert stop.value.code == 2 and err.startswith(f"meanq: root={root[:100]}") and err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a_file"]


def test_the_recorded_configuration_of_a_run_is_no_configuration_to_build_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(make_config("game", "dqn", 0)))
    monkeypatch.setattr(sys, "argv", ["meanq", "--config-path", str(tmp_path), "--config-name", "config", "seed=1"])
    with pytest.raises(SystemExit) as stop:
        run.main()
    err = capfd.readouterr().err
    assert stop.value.code == 2
    assert "does not build on meanq's" in err and err.count("\n") == 1
