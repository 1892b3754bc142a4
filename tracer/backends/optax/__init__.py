"""The backend of optax's transformations, which counts in programs of JAX: all that knows optax."""
