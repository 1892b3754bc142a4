"""Random programs of TensorFlow: `python -m fuzz.run --seconds 600 --seed 1`, in `tests`."""

import faulthandler
import gc
import sys
import warnings
from collections import Counter

from fuzz.batch import Wrong, main
from fuzz.generator import programs
from fuzz.oracle import Model, faults
from fuzz.programs import Program
from fuzz.running import Run, make_devices
from support.libraries import keras2, keras3


def check(program: Program) -> Counter[str]:
    """Run a program twice, and hold it against the model; raises `Wrong` if something is."""
    model = Model(program).run()
    untraced, traced = Run(program, traced=False), Run(program, traced=True)
    found = list(faults(model, untraced, traced))
    looks = traced.looks
    # Its classes live on and hold it: a block of `record` in the next program would find its parts.
    vars(untraced).clear()
    vars(traced).clear()
    gc.collect()
    if found:
        raise Wrong("\n".join(f"{fault.what}: {fault.text}" for fault in found[:4]))
    seen = Counter(f"{program.optimizer.kind}: {way}" for way in program.ways)
    excused = set()
    for expected, said in zip(model.looks, looks, strict=True):
        for root, each in expected.items():
            if not said[root]["complete"]:
                excused |= {*each["must"], *each["may"]}
    return seen + Counter(f"incomplete: {why}" for why in excused)


def clean() -> None:
    """Give the next programs a Keras and a memory that are nearly new."""
    if keras3 is not None:
        keras3.backend.clear_session(free_memory=False)
    keras2.backend.clear_session()
    gc.collect()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    faulthandler.enable()
    make_devices()
    gc.freeze()  # what was imported is swept no more, by nobody: that took half of the time
    sys.exit(main(programs(), check, clean))
