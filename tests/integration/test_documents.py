"""Every command in README, docs/ and ablations/README is given here, only shorter, or is named with a reason."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from meanq import cli
from meanq.launching.plan import plan
from meanq.mirrors.process import make_mirror
from meanq.training.session import Session
from scripts.write_docs import parser_of
from tests.integration.test_commands import SHORT_GAMES, TINY, run, states
from tests.short_runs import SilentReporter, compose_run, train, weights
from tests.synthetic_runs import gaussian_q, write_run

PROJECT = Path(__file__).parents[2]
README = "README.md"
PAGES = [
    README,
    "CONTRIBUTING.md",
    "ablations/README.md",
    *sorted(f"docs/{p.name}" for p in (PROJECT / "docs").glob("*.md")),
]
# Commands that are not given here, by their first words.
NOT_GIVEN = {
    "pip install": "changes the environment",
    "git ": "needs a repository of one's own",
    "eval ": "test_commands.py asks for completions",
    **dict.fromkeys(("module ", "conda ", "sbatch ", "scontrol ", "nohup "), "needs a cluster, or is about the shell"),
    "meanq upload": "needs W&B; tests/integration/test_wandb.py",
    "meanq dashboard --entity my_team": "needs W&B; tests/integration/test_wandb.py",
    "meanq status --watch": "goes on until Ctrl-C",
    "python scripts/": "for work on the project: golden runs take minutes, and pictures of pages a browser",
    "python -m benchmarks": "tests/integration/test_benchmarks.py",
    "meanq doctor": "tests/launching/test_doctor.py",
}


def commands(page: str) -> list[str]:
    """The lines of a page's bash blocks, without comments and with continued lines joined."""
    blocks = re.findall(r"```bash\n(.*?)```", (PROJECT / page).read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    found = [shlex.join(shlex.split(line, comments=True)) for line in lines]
    return [command.replace("'", "") if "(" not in command else command for command in found if command]


def as_meanq(command: str) -> str:
    """With the spelling `meanq COMMAND`, where `python -m` gives the same."""
    command = re.sub(r"^python -m (meanq\.)?analysis\.", "meanq ", command)
    command = re.sub(r"^python -m meanq\.(run|status|dashboard)", r"meanq \1", command)
    command = command.replace("python -m meanq.wandb_upload", "meanq upload")
    return re.sub(r"^meanq (?=[-+]|[\w./]+=)(?!--(help|version))", "meanq run ", command)


ALL = {page: [as_meanq(command) for command in commands(page)] for page in PAGES}
GIVEN = sorted({c for found in ALL.values() for c in found if not c.startswith(tuple(NOT_GIVEN))})
TRAINING = [command for command in GIVEN if re.match("meanq run( |$)", command)]
OF_README = [command for command in TRAINING if command in ALL[README]]
NOT_TRAINING = [command for command in GIVEN if command.startswith("meanq ") and command not in TRAINING]
KEEPING = [command for command in ALL["ablations/README.md"] if command in NOT_TRAINING]  # needs all runs of a study
READING = [command for command in NOT_TRAINING if command not in KEEPING]


def write_files(directory: Path) -> None:
    """Write the files that the pages show, under the names that their first lines give them."""
    for page in PAGES:
        text = (PROJECT / page).read_text()
        for name, body in re.findall(r"```(?:python|yaml)\n# ([\w/]+\.(?:py|yaml))\n(.*?)```", text, re.DOTALL):
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            assert not path.exists() or path.read_text() == body, f"{name}: two files of this name"
            path.write_text(body)


def is_plan(words: list[str]) -> bool:
    """Studies and jobs of a cluster are only planned here; other tests run some of them."""
    return any(word.startswith("+study=") or re.match(r"hydra/launcher=(slurm|scavenge)", word) for word in words)


def shorter(words: list[str]) -> list[str]:
    """Two seeds instead of five, and few steps."""
    words = ["seed=0-1" if word == "seed=0-4" else word for word in words if not word.startswith("total_steps")]
    given = {word.split("=")[0].lstrip("+") for word in words}
    tiny = [t for t in TINY if t.split("=")[0] not in given]
    if any(re.match(r"algo=(.*,)?(dqn|avg_dqn|double_dqn|qr_dqn|rainbow)", word) for word in words):  # one member
        tiny = [t for t in tiny if not t.startswith("algo.ensemble_size")]
    choice = next((word.partition("=")[2] for word in words if word.startswith("env=")), "minatar/asterix")
    kind = "minatar" if choice.startswith("minatar") else "atari"
    limit = [] if choice in ("chain", "gymnasium", "custom") else [SHORT_GAMES[kind]]
    return [*words, *tiny, *limit]


def count_runs(words: list[str]) -> int:
    """Of a sweep, from its words."""
    lists = [word.partition("=")[2] for word in words if "-m" in words and "=" in word and "[" not in word]
    return int(np.prod([len(values.split(",")) for values in lists])) * (2 if "seed=0-1" in words else 1)


@pytest.mark.parametrize("command", OF_README)
def test_a_command_of_the_readme_as_a_user_gives_it(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)[2:]
    if "--cfg" in words or "--dry-run" in words or is_plan(words):
        result = run(*words, *(["--dry-run"] if is_plan(words) and "--dry-run" not in words else []), cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert "${" not in result.stdout and not (tmp_path / "runs").exists()
        return
    words = shorter(words)
    result = run(*words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    found = states(tmp_path / "runs")
    assert len(found) == count_runs(words) and set(found.values()) == {"finished"}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with the files that the pages show."""
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "examples").symlink_to(PROJECT / "examples")
    return tmp_path


@pytest.mark.parametrize("command", [command for command in TRAINING if command not in OF_README])
def test_a_training_command_of_the_documentation(command: str, directory: Path) -> None:
    """The first of its runs, in this process."""
    words = [word for word in shlex.split(command)[2:] if word not in ("--dry-run", "&")]
    if "--cfg" in words or "--help" in words:
        assert run(*words, cwd=directory).returncode == 0
        return
    if is_plan(words):
        planned = plan(words)
        assert planned is not None and planned.configs
        return
    planned = plan(shorter(words))
    assert planned is not None
    Session(planned.configs[0], make_mirror=make_mirror).train(SilentReporter())
    assert list(states(directory / "runs").values()) == ["finished"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the runs that the pages read: two small trained ones, and made-up ones of several studies."""
    root = tmp_path_factory.mktemp("place")
    write_files(root)
    shutil.copytree(PROJECT / "ablations", root / "ablations")
    shutil.copytree(PROJECT / "examples", root / "examples")
    tiny = (*TINY, SHORT_GAMES["minatar"])
    train(root / "runs", *tiny, "env=minatar/breakout", "label=meanq")
    train(root / "runs", *tiny, "env=minatar/space_invaders", 'label="meanq__total_steps=50000"')
    generator = np.random.default_rng(0)
    for study, envs in STUDIES_READ.items():
        for env in envs:
            for i, (label, members) in enumerate(LABELS_READ.items()):
                for seed in range(5):
                    steps = range(20_000, 100_001, 20_000)
                    returns = {step: (1 + i) * step / 20_000 + generator.uniform(0, 1, 2) for step in steps}
                    q = {step: gaussian_q(generator, 4, members, 3, 0.3, 0.5, 1.0) for step in steps}
                    write_run(root / "runs" / study, env, label, seed, returns, 1.5, 1.0, q=q)
    for path in root.glob("*.yaml"):  # a study of one's own
        config = compose_run(root / "runs", f"study={path.stem}", *tiny, "env=minatar/breakout")
        Session(config).train(SilentReporter())
    yield root


LABELS_READ = {"dqn": 1, "ens_dqn": 5, "meanq": 5, "meanq_no_target": 5}
STUDIES_READ = {"target_network": ("minatar_asterix", "minatar_breakout"), "main_100k": ("road_runner", "boxing")}


@pytest.mark.parametrize("command", READING)
def test_a_command_that_reads_runs(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr("sys.argv", ["meanq"])
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    words = shlex.split(command)[1:]
    words = [str(path) for word in words for path in (sorted(Path().glob(word)) if "*" in word else [word])]
    try:
        code = cli.main(words)
    except SystemExit as end:
        code = end.code  # type: ignore[assignment]
    said = capsys.readouterr()
    assert not code, f"{code} {said.err}"
    if "--out" in words:
        assert Path(words[words.index("--out") + 1]).exists()
    else:
        assert said.out or "--again" in words


@pytest.mark.parametrize("command", sorted(set(KEEPING)))
def test_a_command_that_keeps_results_has_options_that_there_are(command: str) -> None:
    words = shlex.split(command)[1:]
    assert parser_of(words[0]).parse_args(words[1:])


@pytest.mark.parametrize("command", [command for command in GIVEN if command not in (*TRAINING, *NOT_TRAINING)])
def test_any_other_command_is_a_target_of_make(command: str) -> None:
    words = shlex.split(command)
    assert words[0] == "make", f"{command}: give it in a test, or say in NOT_GIVEN why not"
    shown = subprocess.run(["make", "-n", *words[1:]], cwd=PROJECT, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr


def test_the_pages_have_commands() -> None:
    assert len(OF_README) >= 4 and len(TRAINING) >= 25 and len(READING) >= 12
    assert "python -m meanq.run -m algo=meanq,ens_dqn env=seaquest seed=0-4" in commands(README)
    named = {name for c in [*READING, *NOT_GIVEN, *TRAINING] if (name := c.split()[1] if c.startswith("meanq") else "")}
    assert set(cli.COMMANDS) <= named, "every command is shown"


def test_the_worked_example_of_a_value_form_is_qr_dqn(directory: Path) -> None:
    """docs/extending.md writes the form that we ship, so both give the same weights."""
    fields = (*TINY, SHORT_GAMES["minatar"], "algo.quantiles=11", "label=same", "compile=false")
    ours = weights(train(directory / "ours", *fields, "algo.value=quantile").directory)
    theirs = weights(train(directory / "theirs", *fields, "algo.value=my_values.Quantiles").directory)
    assert ours.keys() == theirs.keys() and all(p.equal(theirs[name]) for name, p in ours.items())


def test_a_fixed_prior_network_stays_as_it_was(directory: Path) -> None:
    """docs/extending.md promises that of its second network."""
    fields = (*TINY, SHORT_GAMES["minatar"], "network=custom", "network.kind=my_networks.WithPrior")
    run = Session(compose_run(directory / "runs", *fields, "algo.dueling=false", "label=x"))
    before = {name: p.clone() for name, p in run.loop.agent.online.items()}
    run.train(SilentReporter())
    for name, p in weights(run.directory).items():
        assert p.equal(before[name]) == name.startswith("prior."), name
