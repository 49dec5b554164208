"""Other systems that do the same, side by side: `python -m bench.peers`, or `make bench-peers`.

They are no dependencies of ours: each is installed on demand in an environment of its own, in the
versions of `versions.toml`. What cannot be installed is left out by name.
"""
