"""Contains the rules by subject: each is a function from a summary to cases."""
