"""What the recorder asks of TensorFlow, and the counters in its graphs."""
