"""The recorder: one program that writes the frames of many interfaces, in many namespaces, to pcapng files."""
