"""Fakes and conformance suites for those who write plugins."""
