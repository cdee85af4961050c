"""What an inference engine adds to the GPU's work: host time, padding to captured sizes, the overlap of the two."""
