"""Programs that tests start as processes of their own."""

TRAIN = """
import sys
from types import SimpleNamespace
from fheat.cli.main import main

sys.modules["fheat.report.write"] = SimpleNamespace(write_report=lambda *arguments, **options: "none")
sys.exit(main(sys.argv[1:]))
"""
"""`python -m fheat` without the report at the end of `train`, which takes longer than the short runs of a test."""
