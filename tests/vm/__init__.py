"""The ring of tests on a real Debian kernel, in a virtual machine; see docs/vm.md."""
