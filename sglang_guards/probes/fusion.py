"""Probes to come."""
