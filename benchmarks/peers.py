"""How many updates in a graph the tracer sees, and what else people use to see them.

    python benchmarks/peers.py

All are tried with `tf_keras.optimizers.legacy.SGD`, whose apply method is `_resource_apply_dense`
and whose update is the op `ResourceApplyGradientDescent`. Each has a process of its own.
"""

import argparse
import contextlib
import cProfile
import glob
import pstats
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import bench
import steps
import tensorflow as tf
import tf_keras
import viztracer
from steps import Case

import tracer

METHOD = "_resource_apply_dense"
OP = "ResourceApplyGradientDescent"


class SGD(tf_keras.optimizers.legacy.SGD):  # type: ignore[misc]
    """A user's own optimizer, as far as `mock` and profilers of Python are concerned."""

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        return super()._resource_apply_dense(grad, var, apply_state=apply_state)


class Peer:
    """Nothing at all; the base of the others."""

    def __init__(self) -> None:
        self.optimizer: Any = self.make()

    def make(self) -> Any:
        """The optimizer that it watches."""
        return tf_keras.optimizers.legacy.SGD(0.01)

    def ready(self, variables: Sequence[Any]) -> None:
        """Prepare for these variables."""

    def start(self) -> None:
        """Begin to work."""

    def stop(self) -> None:
        """Work no more."""

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """It is at work in this context: graph tracing and steps belong in it."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def seen(self) -> int | None:
        """How many updates it saw; None if it does not look for any."""
        return None


class Tracer(Peer):
    """The package that is measured here."""

    def make(self) -> Any:
        return tracer.wrap(super().make())

    def seen(self) -> int:
        return tracer.trace_of(self.optimizer).updates()


class CounterVariables(Peer):
    """A counter variable for each weight, counted up in the apply method."""

    def make(self) -> Any:
        counters: dict[Any, Any] = {}
        self.counters = counters

        class Counting(tf_keras.optimizers.legacy.SGD):  # type: ignore[misc]
            def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
                counters[var.ref()].assign_add(1, read_value=False)
                return super()._resource_apply_dense(grad, var, apply_state=apply_state)

        return Counting(0.01)

    def ready(self, variables: Sequence[Any]) -> None:
        for each in variables:
            self.counters[each.ref()] = tf.Variable(0, dtype=tf.int64, trainable=False)

    def seen(self) -> int:
        return sum(int(counter) for counter in self.counters.values())


class NumpyFunction(Peer):
    """A callback to Python from the apply method: `tf.numpy_function`."""

    def make(self) -> Any:
        self.ticks = 0

        def tick() -> None:
            self.ticks += 1

        class Calling(tf_keras.optimizers.legacy.SGD):  # type: ignore[misc]
            def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
                tf.numpy_function(tick, [], [])
                return super()._resource_apply_dense(grad, var, apply_state=apply_state)

        return Calling(0.01)

    def seen(self) -> int:
        return self.ticks


class Mock(Peer):
    """`unittest.mock`, put in the place of the apply method, which it calls."""

    def make(self) -> Any:
        class Mocked(SGD):
            pass

        original = SGD._resource_apply_dense
        self.spy = mock.create_autospec(original, side_effect=original)
        setattr(Mocked, METHOD, self.spy)
        return Mocked(0.01)

    def seen(self) -> int:
        return int(self.spy.call_count)


class CProfile(Peer):
    """`cProfile` of the standard library."""

    def make(self) -> Any:
        self.profile = cProfile.Profile()
        return SGD(0.01)

    def start(self) -> None:
        self.profile.enable()

    def stop(self) -> None:
        self.profile.disable()

    def seen(self) -> int:
        code = SGD._resource_apply_dense.__code__
        key = (code.co_filename, code.co_firstlineno, code.co_name)
        found = pstats.Stats(self.profile).stats.get(key)  # type: ignore[attr-defined]
        return int(found[1]) if found else 0


class VizTracer(Peer):
    """VizTracer, which records every Python call with its time."""

    def make(self) -> Any:
        self.viztracer = viztracer.VizTracer(tracer_entries=1_000_000, verbose=0)
        return SGD(0.01)

    def start(self) -> None:
        self.viztracer.start()

    def stop(self) -> None:
        self.viztracer.stop()

    def seen(self) -> int:
        self.viztracer.parse()
        place = f"{METHOD} ({__file__}:"  # the class may stand before it
        return sum(place in each["name"] for each in self.viztracer.data["traceEvents"])


class Profiler(Peer):
    """TensorFlow's profiler, `tf.profiler.experimental`."""

    def make(self) -> Any:
        self.folder = tempfile.TemporaryDirectory()
        return super().make()

    def start(self) -> None:
        tf.profiler.experimental.start(self.folder.name)

    def stop(self) -> None:
        tf.profiler.experimental.stop()

    def seen(self) -> int:
        from tensorflow.tsl.profiler.protobuf import xplane_pb2

        found = 0
        for path in glob.glob(f"{self.folder.name}/**/*.xplane.pb", recursive=True):
            space = xplane_pb2.XSpace.FromString(Path(path).read_bytes())
            for plane in space.planes:
                updates = {
                    number
                    for number, about in plane.event_metadata.items()
                    if about.name.rpartition(":")[2].strip() == OP
                }
                found += sum(e.metadata_id in updates for line in plane.lines for e in line.events)
        return found


class DebuggerV2(Peer):
    """TensorFlow's Debugger V2, which writes a line for each tensor that an op gives."""

    def make(self) -> Any:
        self.folder = tempfile.TemporaryDirectory()
        return super().make()

    def start(self) -> None:
        tf.debugging.experimental.enable_dump_debug_info(
            self.folder.name, tensor_debug_mode="NO_TENSOR", circular_buffer_size=-1
        )

    def stop(self) -> None:
        tf.debugging.experimental.disable_dump_debug_info()

    def seen(self) -> int:
        from tensorflow.python.debug.lib.debug_events_reader import DebugDataReader

        with DebugDataReader(self.folder.name) as reader:
            reader.update()
            found = [
                *reader.executions(digest=True),
                *reader.graph_execution_traces(digest=True),
            ]
            return sum(bool(each.op_type == OP) for each in found)


PEERS: dict[str, type[Peer]] = {
    "tracer": Tracer,
    "a counter variable for each weight": CounterVariables,
    "tf.numpy_function": NumpyFunction,
    "unittest.mock": Mock,
    "cProfile": CProfile,
    "VizTracer": VizTracer,
    "TensorFlow's profiler": Profiler,
    "Debugger V2": DebuggerV2,
}


VARIABLES, STEPS = 20, 20


def seen(name: str) -> int | None:
    """How many updates a peer sees, from the first step on."""
    peer, case = PEERS[name](), Case("legacy", VARIABLES)
    variables = steps.variables_of(case)
    peer.ready(variables)
    step = steps.train_function(case, peer.optimizer, variables)
    with peer.active():
        for _ in range(STEPS):
            step()
    return peer.seen()


def tables(arguments: argparse.Namespace) -> Iterator[str]:
    """What each of them sees."""
    steps.prepare(1)
    if arguments.inside:
        print(seen(arguments.inside))
        sys.exit()
    rows = []
    for name in PEERS:
        command = [sys.executable, __file__, "--inside", name]
        printed = subprocess.check_output(command, text=True)
        rows.append([name, printed.splitlines()[-1], VARIABLES * STEPS])
    yield bench.table(["", "updates seen", "of"], rows)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--inside", help=argparse.SUPPRESS)


if __name__ == "__main__":
    bench.run(__doc__, tables, _options)
