"""What looks wrong in a trace: rules, each in a module with those that look at the same things."""
