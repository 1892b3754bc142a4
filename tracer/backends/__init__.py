"""All that knows a framework, each in a folder of its own."""
