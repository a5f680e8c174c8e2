"""A video of a trained agent at play: the game, the members' values, and the return that followed.

meanq video runs/default/minatar_asterix/meanq/seed_0                 ->  minatar_asterix_meanq_seed_0.mp4
meanq video runs/default/seaquest/meanq/seed_0 --episode 7 --out seaquest.gif

It shows an episode of the run's last evaluation: the same weights, seeds and games, so its return is that of
evaluations.csv, and it says so where it is not. Of a run that is not finished it takes the newest checkpoint.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from meanq.config.errors import printable

from .console import command, make_parser, say, writing
from .runs import AnalysisError, read_run

if TYPE_CHECKING:
    from meanq.training.trained import Played

SECONDS = {".mp4": 60.0, ".gif": 20.0}  # of an episode, unless told otherwise
_GIF_RATE = 25.0  # pictures a second at most: browsers slow down what is much faster


@dataclass
class Video:
    """What was written."""

    path: Path
    played: "Played"
    pictures: int
    fps: float
    notes: list[str]
    as_recorded: bool  # the episode is the one in evaluations.csv


def make_video(
    directory: Path,
    out: Path | None = None,
    episode: int = 0,
    seconds: float | None = None,
    checkpoint: int | None = None,
    trust: bool = False,
) -> Video:
    """Play an episode of a run's last evaluation, and write it as a video."""
    out = out or Path(f"{'_'.join(directory.absolute().parts[-3:])}.mp4")
    suffix = out.suffix.lower()
    if suffix not in SECONDS:
        raise AnalysisError(f"--out {out}: write a name that ends in {' or '.join(SECONDS)}")
    if suffix == ".mp4" and find_spec("imageio_ffmpeg") is None:
        needs = "mp4 needs imageio-ffmpeg; pip install 'meanq[video]', or write a name that ends in .gif"
        raise AnalysisError(f"--out {out}: {needs}")
    try:
        run = read_run(directory)
    except AnalysisError as error:
        raise AnalysisError(f"{directory} is not the directory of a run, .../seed_<n> ({error})") from None
    from .playing.drawing import Page
    from .playing.player import Screening, load_player, play_episode, unlike_recorded

    player = load_player(run, checkpoint, trust)
    config = player.config
    if not 0 <= episode < config.evaluation.episodes:
        raise AnalysisError(f"--episode {episode}: this run has {config.evaluation.episodes} episodes, from 0 on")
    screening = Screening(player)
    fps = screening.env.pictures_per_second
    limit = max(1, round((SECONDS[suffix] if seconds is None else seconds) * fps))  # pictures of the game
    played = play_episode(player, episode)
    steps = len(played.actions)
    shown = min(steps, math.ceil(limit / screening.repeats))
    title = f"{config.env.name}, {player.step:,} interactions, seed {config.seed}, episode {episode}: {config.label}"
    written = 0

    def images() -> Iterator[np.ndarray]:
        nonlocal written
        page = None
        for t, picture in islice(screening.pictures(played), limit):
            page = page or Page(title, screening.env.action_names(), played, shown, picture)
            image = page.draw(t, picture)
            written += 1
            yield image
        for _ in range(round(fps)):  # the last one stays for a second
            written += 1
            yield image

    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        (write_gif if suffix == ".gif" else write_mp4)(out, images(), fps)
    notes, unlike = player.notes + screening.notes, unlike_recorded(run, player.step, {episode: played.score})
    if unlike is not None:
        notes.append(unlike)
    if shown < steps:
        notes.append(f"episode {episode}: the first {shown:,} of {steps:,} steps are shown (--seconds)")
    if not played.terminal:
        notes.append(f"episode {episode} was cut at its limit of steps; what would have followed counts as 0")
    return Video(out, played, written, fps, notes, as_recorded=unlike is None)


def write_mp4(path: Path, images: Iterable[np.ndarray], fps: float) -> None:
    """H.264 as every browser plays it; the same images give the same bytes."""
    import imageio_ffmpeg

    from .playing.drawing import SIZE

    colours = "bt709"  # said explicitly, since players guess otherwise
    parameters = f"""
        -crf 18 -preset medium -threads 2 -movflags +faststart -map_metadata -1 -fflags +bitexact -flags:v +bitexact
        -vf scale=out_color_matrix={colours}:out_range=tv -color_range tv
        -colorspace {colours} -color_primaries {colours} -color_trc {colours}
    """
    writer = imageio_ffmpeg.write_frames(
        str(path), SIZE, fps=fps, codec="libx264", quality=None, macro_block_size=2, output_params=parameters.split()
    )
    writer.send(None)
    for image in images:
        writer.send(image.tobytes())
    writer.close()


def write_gif(path: Path, images: Iterable[np.ndarray], fps: float) -> None:
    """At most 25 pictures a second, the others left out."""
    from PIL import Image

    every = math.ceil(fps / _GIF_RATE)
    kept = [
        Image.fromarray(image).quantize(256, dither=Image.Dither.NONE) for image in islice(images, None, None, every)
    ]
    duration = 10 * round(100 * every / fps)  # a GIF counts in hundredths of a second
    kept[0].save(path, "GIF", save_all=True, append_images=kept[1:], duration=duration, loop=0)


@command
def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser("video", __doc__)
    parser.add_argument("directory", type=Path, metavar="run", help="the directory of one run, .../seed_<n>")
    parser.add_argument("--out", type=Path, help="ends in .mp4 or .gif (default: <env>_<label>_seed_<n>.mp4)")
    parser.add_argument("--episode", type=int, default=0, help="of the evaluation's episodes, from 0 on (default: 0)")
    parser.add_argument("--seconds", type=float, help="of the episode at most (default: 60, of a gif 20)")
    parser.add_argument("--checkpoint", type=int, metavar="STEP", help="of that step, instead of the newest or last")
    parser.add_argument("--trust", action="store_true", help="import an environment that the run's config.yaml names")
    video = make_video(**vars(parser.parse_args(arguments)))
    say(video.notes)
    score, recorded = video.played.score, ", as in evaluations.csv" if video.as_recorded else ""
    print(f"episode {video.played.index}: return {score.episode_return:g} in {score.length:,} steps{recorded}")
    print(f"{printable(str(video.path))}: {video.pictures / video.fps:.1f} s")


if __name__ == "__main__":
    main()
