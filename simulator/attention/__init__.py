"""The price of one attention call: measured surfaces, and a replay of the kernel's schedule between them."""
