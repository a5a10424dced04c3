"""The command in this process, for items that code of others makes."""

from tests.cli.conftest import rolegraph as rolegraph
