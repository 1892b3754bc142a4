"""All that knows optax: the backend of transformations, which counts in programs of JAX."""
