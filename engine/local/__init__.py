"""The Tinker-compatible service of this machine: its launcher, the service, and the models that ship."""
