"""The page about Keras on JAX: its blocks run, in their order, and print what it says.

`tests/repository/test_code_blocks.py` runs all pages, but in a process with Keras on TensorFlow.
"""

from support.printed_pages import assert_prints


def test_the_blocks_print_what_the_page_says() -> None:
    assert_prints("keras-on-jax.md", 2)
