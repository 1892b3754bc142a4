"""The page about optax: its blocks run, in their order, and print what it says.

`tests/repository/test_code_blocks.py` runs all pages, but where optax may be missing.
"""

from support.printed_pages import assert_prints


def test_the_blocks_print_what_the_page_says() -> None:
    assert_prints("optax.md", 3)


def test_the_blocks_of_the_first_page_print_what_it_says() -> None:
    assert_prints("../optax.md", 2)
