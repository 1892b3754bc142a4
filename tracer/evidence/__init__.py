"""Gathers evidence for findings: from classes, settings and exceptions.

Evidence counts nothing, and counting imports no evidence: `core.collectors` calls the collectors.
"""
