"""Pipeline parallelism: layers split over stages, several micro-batches under way, and where stages idle."""
