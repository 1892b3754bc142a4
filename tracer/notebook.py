"""`%load_ext tracer` in a notebook: the cell magic `%%trace`, which traces a cell."""

from typing import Any

from tracer.api import record

EFFECTS = "--effects"


def load_ipython_extension(ipython: Any) -> None:
    """Called by `%load_ext tracer`: adds the magic `%%trace`."""
    from IPython import display
    from IPython.core.error import UsageError

    show: Any = display.display

    def trace(line: str, cell: str) -> None:
        """Trace every optimizer that the cell uses, and show what it did.

        `%%trace NAME` also stores the trace under a name, for later cells. `--effects` compares the
        weights before and after each step, as `tracer.record(effects=True)` does.
        """
        words = line.split()
        effects = EFFECTS in words
        name = " ".join(word for word in words if word != EFFECTS)
        if name and not name.isidentifier():
            raise UsageError(f"%%trace: {name!r} is no name for a trace")
        with record(effects=effects) as recording:
            result = ipython.run_cell(cell)
        recorded = recording.trace()
        if name:
            ipython.user_ns[name] = recorded
        show(recorded)
        if not result.success:
            raise UsageError("%%trace: the cell failed; the trace is of what ran before")

    ipython.register_magic_function(trace, "cell")


def unload_ipython_extension(ipython: Any) -> None:
    """Called by `%unload_ext tracer`: removes the magic."""
    ipython.magics_manager.magics["cell"].pop("trace", None)
