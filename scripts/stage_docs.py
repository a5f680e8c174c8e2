"""Copy what the documentation's site consists of to build/docs, with the layout of the repository.

python scripts/stage_docs.py && mkdocs build --strict     # make docs does both
"""

import shutil
from pathlib import Path

PROJECT = Path(__file__).parents[1]
TARGET = PROJECT / "build" / "docs"
FILES = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "LICENSE"),
    *("docs/**/*.*", "examples/*", "ablations/*.md", "ablations/*.yaml"),
    *("ablations/results/*/*.md", "ablations/results/*/figures/*.svg", "ablations/results/*/*.json"),
)


def main() -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    for pattern in FILES:
        for path in PROJECT.glob(pattern):
            copy = TARGET / path.relative_to(PROJECT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


if __name__ == "__main__":
    main()
