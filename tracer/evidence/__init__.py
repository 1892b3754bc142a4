"""Evidence for the findings: what classes show, what settings are used for, what raised.

It counts nothing, and nothing that counts imports it: `core.collectors` calls what stands here.
"""
