"""All that knows TensorFlow: the counters in its graphs, and the backend of the recorder."""
