"""How it is counted: calls under way, what each of them does, and when it was executed.

What knows no framework stands in this folder, and what knows TensorFlow in `tensorflow`.
"""
