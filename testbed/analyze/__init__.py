"""What captures tell about loss and recovery, from the captures alone (docs/analyze.md)."""
