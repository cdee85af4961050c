"""Cost tables without the GPU: from public measurements, or from a GPU's datasheet (`import-costs`)."""
