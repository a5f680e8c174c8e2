"""See the package."""

from analysis.findings.decide import main

if __name__ == "__main__":
    main()
