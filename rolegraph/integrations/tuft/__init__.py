"""TuFT's service of the Tinker API."""
