"""Fixtures of the command line."""

from tests.cli.conftest import process as process
from tests.cli.conftest import rolegraph as rolegraph
