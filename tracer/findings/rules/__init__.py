"""The rules, by what they look at: each a function from summary to cases."""
