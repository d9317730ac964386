"""What sphereflow costs and how accurate it is, measured: `python benchmarks/run.py --help`."""
