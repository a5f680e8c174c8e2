"""See the package."""

from analysis.results.collect import main

if __name__ == "__main__":
    main()
