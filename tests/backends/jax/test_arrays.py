"""What is read of the variables of Keras on JAX."""

import keras

from tracer.backends.jax.backend import JaxBackend


def test_weights_that_are_made_anew_at_random_begin_as_they_did() -> None:
    """They are known by the variables whose elements are equal, as those of a bias are."""

    def begin(seed: int) -> int | None:
        keras.utils.set_random_seed(seed)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        return JaxBackend().values_of(model.trainable_variables)

    assert begin(1) is not None
    assert begin(1) == begin(2)
    assert JaxBackend().values_of([]) is None
