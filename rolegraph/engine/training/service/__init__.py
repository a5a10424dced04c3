"""Probes of a Tinker service, which compare it with the hosted one."""
