"""A video of a trained agent at play: the game, the members' values, and the return that followed.

python -m analysis.video runs/default/minatar_asterix/meanq/seed_0                 ->  minatar_asterix_meanq_seed_0.mp4
python -m analysis.video runs/default/seaquest/meanq/seed_0 --episode 7 --out seaquest.gif

It shows episodes of the run's last evaluation: the same weights, seeds and games, so their returns are those of
evaluations.csv, and it says so where they are not. Of a run that is not finished it takes the newest checkpoint.
"""

import argparse
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from analysis.console import command, say
from analysis.runs import AnalysisError, Run, read_run
from meanq.rundir.reader import find_runs

if TYPE_CHECKING:
    from PIL import Image

    from analysis.playing.drawing import Story
    from analysis.playing.player import Played, Player, Screening

SUFFIXES = {".mp4": 60.0, ".gif": 20.0}  # and how many seconds of an episode, unless told otherwise
_GIF_RATE = 25.0  # pictures a second at most: browsers slow down what is much faster
_LAST_SECONDS = 1.0  # for which an episode's last picture stays


@dataclass
class Video:
    """What was written."""

    path: Path
    episodes: list["Played"]
    pictures: int
    fps: float
    notes: list[str]
    as_recorded: bool  # all episodes that were played are those in evaluations.csv, as far as they were played


def make_video(
    directory: Path,
    out: Path | None = None,
    *,
    first: int = 0,
    count: int = 1,
    seconds: float | None = None,
    fps: float | None = None,
    checkpoint: int | None = None,
    trust: bool = False,
) -> Video:
    """Play `count` episodes of a run's last evaluation from number `first` on, and write them as a video."""
    run = read_one(directory)
    out = default_path(run) if out is None else out
    write = _writer(out)
    from analysis.playing.drawing import Page, draw_frame, fit
    from analysis.playing.player import Screening, differences, load_player, play_evaluation

    player = load_player(run, checkpoint, trust)
    available = player.config.evaluation.episodes
    if first + count > available:
        raise AnalysisError(
            f"--episode {first} --episodes {count}: an evaluation of this run has {available} episodes, from 0 on"
        )
    screening = Screening(player)
    fps = fps or screening.env.pictures_per_second
    seconds = SUFFIXES[out.suffix.lower()] if seconds is None else seconds
    limit = max(1, round(seconds * fps)) if seconds else None  # pictures of an episode
    steps = None if limit is None else math.ceil(limit / screening.repeats)
    shown = range(first, first + count)
    episodes = play_evaluation(player, shown, steps)
    different = differences(run, player, episodes)
    notes = [*player.notes, *_compare(different, player.step, len(episodes))]
    episodes = [episodes[i] for i in shown]
    written = 0

    def images() -> Iterator["Image.Image"]:
        nonlocal written
        for played in episodes:
            page = Page(_story(player, played, screening, steps))
            for picture in islice(screening.pictures(played), limit):
                rgb = draw_frame(picture.frame, screening.env.frame_scale) if picture.rgb is None else picture.rgb
                image = page.draw(picture.t, fit(rgb))
                written += 1
                yield image
            for _ in range(round(fps * _LAST_SECONDS)):
                written += 1
                yield image

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write(out, images(), fps)
    except OSError as error:
        raise AnalysisError(f"{out} cannot be written ({' '.join(str(error).split())})") from None
    notes += [note for played in episodes for note in _remarks(played, steps)]
    return Video(out, episodes, written, fps, notes + screening.notes, as_recorded=different == [])


def read_one(directory: Path) -> Run:
    """The run in this very directory; AnalysisError where there is none."""
    try:
        return read_run(directory)
    except AnalysisError as error:
        below = next(find_runs([directory], []), directory)
        hint = f"; below it there is {below}" if below != directory else ""
        raise AnalysisError(f"{directory} is not the directory of a run ({error}){hint}") from None


def default_path(run: Run) -> Path:
    """In the current directory: a run's own holds what training wrote, and nothing else."""
    name = re.sub(r"[^\w.,=+-]+", "_", f"{run.env}_{run.label}_seed_{run.seed}").lstrip(".")
    return Path(f"{name}.mp4")


def _compare(different: list[str] | None, step: int, episodes: int) -> Iterable[str]:
    if different is None:
        yield f"evaluations.csv has no evaluation at step {step:,}, so there is nothing to compare the episodes with"
    elif different:
        yield (
            f"{len(different)} of {episodes} episodes are not as in evaluations.csv at step {step:,}; another machine "
            "or version rounds otherwise, and one action that differs makes another episode"
        )
        yield from different


def _story(player: "Player", played: "Played", screening: "Screening", steps: int | None) -> "Story":
    from analysis.playing.drawing import Story

    config, total = player.config, len(played.actions)
    return Story(
        title=f"{config.env.name}   {config.label}   seed {config.seed}   after {player.step:,} interactions   "
        f"episode {played.index}",
        actions=screening.env.action_names(),
        taken=np.array(played.actions),
        q=np.stack(played.q),
        returns=np.cumsum([0.0, *played.rewards]),
        realised=played.returns_to_go(config.algo.discount, config.env.clip_rewards),
        true_values=np.array(played.true_values) if played.true_values else None,
        shown=total if steps is None else min(total, steps),
        complete=played.over,
    )


def _remarks(played: "Played", steps: int | None) -> Iterator[str]:
    if not played.over:
        yield f"episode {played.index} lasts longer than is shown; it was not played to its end (--seconds)"
    elif steps is not None and len(played.actions) > steps:
        yield f"episode {played.index}: the first {steps:,} of {len(played.actions):,} steps are shown (--seconds)"
    if played.truncated:
        yield f"episode {played.index} was cut at its limit of steps; what would have followed counts as 0"


def _writer(out: Path) -> Callable[[Path, Iterable["Image.Image"], float], None]:
    """What writes a file of this name; AnalysisError before anything is played where nothing does."""
    suffix = out.suffix.lower()
    if suffix not in SUFFIXES:
        raise AnalysisError(f"--out {out}: write a name that ends in {' or '.join(SUFFIXES)}")
    if suffix == ".gif":
        return write_gif
    try:
        import imageio_ffmpeg

        imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        raise AnalysisError(
            f"--out {out}: mp4 needs imageio-ffmpeg; pip install 'meanq[video]', or write a name that ends in .gif"
        ) from None
    return write_mp4


def write_mp4(path: Path, images: Iterable["Image.Image"], fps: float) -> None:
    """H.264 as every browser plays it; the same images give the same bytes."""
    import imageio_ffmpeg

    from analysis.playing.drawing import SIZE

    unfinished = path.absolute().with_name(f".unfinished.{path.name}")
    colours = "bt709"  # said explicitly, since players guess otherwise
    parameters = f"""
        -crf 18 -preset medium -threads 2 -movflags +faststart -map_metadata -1 -fflags +bitexact -flags:v +bitexact
        -vf scale=out_color_matrix={colours}:out_range=tv -color_range tv
        -colorspace {colours} -color_primaries {colours} -color_trc {colours}
    """
    writer = imageio_ffmpeg.write_frames(
        str(unfinished), SIZE, fps=fps, codec="libx264", quality=None, macro_block_size=2,
        output_params=parameters.split(),
    )  # fmt: skip
    try:
        writer.send(None)
        for image in images:
            writer.send(image.tobytes())
        writer.close()
        unfinished.replace(path)
    finally:
        writer.close()
        unfinished.unlink(missing_ok=True)


def write_gif(path: Path, images: Iterable["Image.Image"], fps: float) -> None:
    """At most 25 pictures a second, the others left out; at the same speed, in a GIF's hundredths of a second."""
    from PIL import Image

    every = math.ceil(fps / _GIF_RATE)
    kept = [image.quantize(256, dither=Image.Dither.NONE) for image in islice(images, None, None, every)]
    ends = [round(100 * every * (i + 1) / fps) for i in range(len(kept))]
    durations = [10 * (end - start) for start, end in zip([0, *ends], ends, strict=False)]
    unfinished = path.absolute().with_name(f".unfinished.{path.name}")
    try:
        kept[0].save(unfinished, "GIF", save_all=True, append_images=kept[1:], duration=durations, loop=0)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _at_least(least: float, kind: type[int] | type[float]) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = kind(text)
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"{text}: write {least:g} or more")
        return value

    return number


@command
def main(arguments: Sequence[str] | None = None) -> None:
    assert __doc__
    parser = argparse.ArgumentParser(prog="python -m analysis.video", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the directory of one run, .../seed_<n>")
    parser.add_argument(
        "--out", type=Path, help="a name that ends in .mp4 or .gif; default: <env>_<label>_seed_<n>.mp4"
    )
    whole = _at_least(0, int)
    parser.add_argument("--episode", type=whole, default=0, help="of the evaluation's episodes, from 0 on (default: 0)")
    parser.add_argument("--episodes", type=_at_least(1, int), default=1, help="how many, from that one on (default: 1)")
    parser.add_argument(
        "--seconds", type=_at_least(0, float), help="of each episode at most (default: 60, of a gif 20; 0: all of it)"
    )
    parser.add_argument(
        "--fps", type=_at_least(0.1, float), help="pictures a second (default: the game's own speed, Atari's is 60)"
    )
    parser.add_argument("--checkpoint", type=whole, metavar="STEP", help="of that step, instead of the newest or last")
    parser.add_argument("--trust", action="store_true", help="import an environment that the run's config.yaml names")
    options = parser.parse_args(arguments)
    video = make_video(
        options.run,
        options.out,
        first=options.episode,
        count=options.episodes,
        seconds=options.seconds,
        fps=options.fps,
        checkpoint=options.checkpoint,
        trust=options.trust,
    )
    say(video.notes)
    for played in video.episodes:
        steps = f"{len(played.actions):,} steps{'' if played.over else ' so far'}"
        recorded = ", as in evaluations.csv" if played.over and video.as_recorded else ""
        print(f"episode {played.index}: return {played.episode_return:g} in {steps}{recorded}")
    print(f"{video.path}: {video.pictures / video.fps:.1f} s")


if __name__ == "__main__":
    main()
