"""The report on `torch.optim`: measured again, it is what is kept, and what others counted."""

from support.report_again import assert_measured_again


def test_measured_again_it_is_the_same() -> None:
    assert_measured_again("torch.optim")
