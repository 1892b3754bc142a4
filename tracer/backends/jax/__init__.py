"""All that knows JAX: the counting primitive, the blocks, the variables of Keras and of optax."""
