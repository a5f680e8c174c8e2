"""See the package."""

from analysis.figures.kinds import main

if __name__ == "__main__":
    main()
