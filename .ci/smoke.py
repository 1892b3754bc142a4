"""The installed wheel is whole, and needs no framework."""

import importlib.metadata
import subprocess
import sys

IMPORT = """
import sys, time
start = time.process_time()
import tracer
print(time.process_time() - start)
"""
times = [
    float(subprocess.run([sys.executable, "-c", IMPORT], check=True, stdout=subprocess.PIPE).stdout)
    for _ in range(5)
]
print(f"import tracer: {min(times):.3f} s")
assert min(times) < 0.1, times

files = {str(file) for file in importlib.metadata.files("optimizer-tracer")}
assert "tracer/py.typed" in files, files
assert "tracer/reporters/templates/report.html" in files, files
assert any(file.endswith("licenses/LICENSE") for file in files), files
assert not any(file.startswith(("tests", "reports")) for file in files), files
installed = {each.name.lower() for each in importlib.metadata.distributions()}
assert not installed & {"tensorflow", "keras", "jax", "torch", "numpy"}, installed
