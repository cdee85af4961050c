"""Chunkwise profiler: times a transformer's operators on this machine's GPU and writes a cost table."""
