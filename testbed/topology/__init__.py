"""Where topologies come from: built in, or from files. `load.load_topology` is the way in."""
