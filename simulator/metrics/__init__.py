"""From the log of a run to the numbers people compare: per-request times, inter-token latencies, summaries."""
