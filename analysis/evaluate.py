"""Evaluate trained agents again under several protocols: does a score depend on how it was measured?

    meanq evaluate runs/main_100k                        # greedy, and with noise where there is some
    meanq evaluate runs/main_100k --epsilon 0.05 --episodes 100

Protocols
greedy      as the run was evaluated: the action of the highest mean value. Repeats the run's last evaluation; a note
            says where an episode differs.
noise       noisy weights, drawn anew for every action
training    as the agent explored at the end of training: noise, upper bound, random actions (not where a member
            acts for a whole episode, nor where it would equal `noise`)
epsilon E   greedy, with random actions of probability E

All protocols play the episodes of the run's own seeds. `error` is the standard error of the mean return, `not_greedy`
the percentage of actions that are not the greedy one. An unfinished run plays with its newest checkpoint.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from .console import command, make_parser, say, write_out
from .labels import short_labels
from .notes import all_notes
from .runs import AnalysisError, Run, read_runs

if TYPE_CHECKING:
    from meanq.learning.exploration import Policy
    from meanq.training.trained import Trained

Rows = list[dict[str, Any]]


def evaluate(run: Run, episodes: int | None, epsilon: float | None, trust: bool, notes: list[str]) -> Rows:
    """A row per protocol."""
    from meanq.learning.exploration import greedy
    from meanq.training.evaluation import Evaluator

    from .playing.player import load_player, unlike_recorded

    player = load_player(run, trust=trust)
    evaluator = Evaluator(player.config, episodes=episodes)
    rows = []
    for name, policy in _protocols(player, epsilon):
        others: list[np.ndarray] = []
        played = evaluator(_counting(policy, greedy(player.agent.values), others), player.step)
        returns = np.array([episode.episode_return for episode in played])
        if name == "greedy":
            notes_here = [*player.notes, unlike_recorded(run, player.step, dict(enumerate(played)))]
            notes += [f"{run.directory}: {note}" for note in notes_here if note]
        about = {"env": run.env, "label": run.label, "seed": run.seed, "step": player.step, "protocol": name}
        scores = {
            "episodes": len(returns),
            "return": returns.mean(),
            "error": returns.std(ddof=1) / np.sqrt(len(returns)) if len(returns) > 1 else np.nan,
            "length": np.mean([episode.length for episode in played]),
            "not_greedy": 100 * np.concatenate(others).mean(),
        }
        rows.append({**about, **scores})
    return rows


def _counting(policy: "Policy", greedy: "Policy", others: list[np.ndarray]) -> "Policy":
    """The same policy; adds to `others` whether each action is not the greedy one."""

    def act(states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        actions, q = policy(states)
        others.append(actions != greedy(states)[0])
        return actions, q

    return act


def _protocols(player: "Trained", epsilon: float | None) -> Iterator[tuple[str, "Policy"]]:
    from meanq.learning.exploration import greedy, optimistic, random_share, sometimes_random
    from meanq.rng import stream
    from meanq.training.evaluation import evaluation_policy

    agent, algo, step = player.agent, player.config.algo, player.step
    noisy = partial(agent.values, explore=True)

    def generator() -> np.random.Generator:
        return stream(player.config.seed, "evaluation", step, "random actions")

    yield "greedy", evaluation_policy(agent, player.config, step)
    if algo.noisy:
        yield "noise", greedy(noisy)
    share = random_share(algo, step)
    if algo.exploration in ("epsilon_greedy", "ucb", "greedy") and (algo.exploration == "ucb" or share > 0):
        explore = optimistic(noisy, algo) if algo.exploration == "ucb" else greedy(noisy)
        yield "training", sometimes_random(explore, share, generator())
    if epsilon is not None:
        yield f"epsilon {epsilon:g}", sometimes_random(greedy(agent.values), epsilon, generator())


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser("evaluate", __doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="directories with runs anywhere below")
    parser.add_argument("--episodes", type=int, help="of each protocol; otherwise as many as in the run")
    parser.add_argument("--epsilon", type=float, help="add a protocol with random actions, of this probability")
    parser.add_argument("--trust", action="store_true", help="import environments that the configurations name")
    parser.add_argument("--out", type=Path, help="a CSV file for the table")
    options = parser.parse_args(arguments)
    if options.episodes is not None and options.episodes < 1:
        parser.error(f"--episodes {options.episodes}: write 1 or more")
    if options.epsilon is not None and not 0 <= options.epsilon <= 1:
        parser.error(f"--epsilon {options.epsilon:g}: write a probability, from 0 to 1")
    rows, notes = Rows(), list[str]()
    found = read_runs(options.runs)
    for run in found.runs:
        try:
            rows += evaluate(run, options.episodes, options.epsilon, options.trust, notes)
        except AnalysisError as error:
            notes.append(f"{run.env}, {run.label}, seed {run.seed}: left out: {error}")
    if not rows:
        raise AnalysisError("; ".join(notes))
    say(all_notes(found, notes))
    table = pd.DataFrame(rows)
    shown = table.assign(label=table["label"].map(short_labels(found.labels)))
    print(shown.to_string(index=False, float_format=lambda value: f"{value:.1f}", na_rep=""))
    if options.out is not None:
        write_out(options.out, table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


if __name__ == "__main__":
    main()
