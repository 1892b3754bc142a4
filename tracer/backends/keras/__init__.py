"""Every version of Keras, on any framework: an optimizer gets a subclass of its class."""
