"""Fixtures of the inputs that attack the command."""

from tests.cli.conftest import forked as forked
from tests.cli.conftest import process as process
from tests.cli.conftest import recording as recording
from tests.cli.conftest import rolegraph as rolegraph
