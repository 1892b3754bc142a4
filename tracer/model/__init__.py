"""What a trace is, how it is asked, kept, merged, cut and compared. No TensorFlow, no report."""
