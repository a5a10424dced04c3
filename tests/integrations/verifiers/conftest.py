"""The command in this process, for `rolegraph eject`."""

from tests.cli.conftest import rolegraph as rolegraph
