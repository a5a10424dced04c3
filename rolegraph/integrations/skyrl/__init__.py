"""SkyRL's service of the Tinker API."""
