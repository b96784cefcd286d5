"""What crosses process boundaries: packets between hosts and edges, and the channel of run control."""
