"""The emulated network: namespaces, addresses, routes and bridges; links and multicast have packages of their own."""
