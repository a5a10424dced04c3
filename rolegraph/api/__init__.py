"""The public Python API, which the command line is built on."""
