"""See the package."""

from analysis.metrics.compute import main

if __name__ == "__main__":
    main()
