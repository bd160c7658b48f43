"""Mutations of the package, and whether the tests of the mutated room catch them.

`python -m benchmarks.mutants` (`make mutants`) draws mutations by seed, and runs for each of them
the tests of its room, nearest first, in a copy of the project and in namespaces: a mutated kill or
clean-up reaches nothing else. Survivors are printed with their diff. Those that are right to
survive are listed, with the reason, in explained.yaml.
"""
