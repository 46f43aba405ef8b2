"""`python -m fheat` is the program `fheat`."""

from fheat.cli.main import script

if __name__ == "__main__":
    script()
