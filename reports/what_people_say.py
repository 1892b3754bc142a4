"""What people say about the apply methods: each claim, and the measurement that shows it."""

import measuring
from claims import often, sample_optimizers, which, writing
from claims.judging import Row, tables


def measure() -> list[Row]:
    """Judge every claim."""
    subjects = (often, which, writing, sample_optimizers)
    return [claim.judge() for subject in subjects for claim in subject.claim.claims]


def page(rows: list[Row]) -> str:
    """The answer and all rows."""
    verdicts = [row.verdict for row in rows]
    return f"""# What people say about `_resource_apply_dense`

**Of {len(rows)} claims, {verdicts.count("true")} are true, {verdicts.count("half true")} are
half true and {verdicts.count("false")} are false.** Those that mislead most:

- It is not once per layer: a `Dense` layer has two variables. Convolutional and recurrent
  layers go the same way.
- `resource_apply_dense`, without the underscore, is never called. Nor is
  `_resource_apply_dense` in optimizers of Keras 2.11 and later: there it is `update_step`.
- The samples of the tutorial fail in the first step of `model.fit`, because their apply methods
  return nothing, and in the first step with an `Embedding`, because their sparse method takes
  no `indices`. Where it runs, in eager mode, the decaying one decays once for each variable.

Each claim is put in our words, as things that it implies, and each of these is measured. If all
are as claimed it is true, if none is it is false, else it is half true. Much was true once:
*legacy* says what holds for the optimizers of TensorFlow 2.10 and older.

{measuring.WHERE}

{tables(rows)}

Who says it: *answer page*, one on how often `_resource_apply_dense` is called; *chapter*, one
on the optimizers in a text on how Keras works; *class documentation*, that of
`tf.keras.optimizers.Optimizer` as it was in 2020; *question thread*, one about this
documentation, with its answers and comments ([TensorFlow issue
36449](https://github.com/tensorflow/tensorflow/issues/36449) came of it); *tutorial*, one on
custom optimizers. The samples are not theirs but written anew, to do the same:
[samples.py](samples.py).

Not measured: advice; what is said of GPU kernels, and of TensorFlow Addons, which is not
installed here; and what has nothing to do with how gradients are applied.
"""
