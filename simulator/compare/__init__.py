"""Two runs of one workload beside each other: measured or simulated, by like-for-like definitions."""
