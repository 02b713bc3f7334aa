"""Side-by-side benchmarks: `python -m benchmarks` measures, prints tables of ratios and writes `results.json`.

How to read the tables, and what each rival does and does not sync, is in `docs/benchmarks.md`.
"""
