"""SpecKV (arXiv 2605.02888) from its author's records: the paper to its last digit, and what the records say."""

from draftgauge.studies.speckv.importer import read_records
from draftgauge.studies.speckv.paper import reproduce_paper
from draftgauge.studies.speckv.records import Records
from draftgauge.studies.speckv.study import run_study

__all__ = ["Records", "read_records", "reproduce_paper", "run_study"]
