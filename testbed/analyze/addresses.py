"""Addresses of hosts' interfaces on their LAN, to tell what came to one only because a bridge sends it everywhere."""

import numpy as np

from testbed.analyze.captures import Captures, Sightings

_GROUP = np.uint64(1 << 40)  # addresses of several


class Addresses:
    """Learns an interface's address from what it sends."""

    def __init__(self, captures: Captures) -> None:
        points = captures.points
        self._sends = np.array([point.is_host and point.outbound for point in points], bool)
        self._takes = np.array([point.is_host and not point.outbound for point in points], bool)
        self._own = np.zeros(len(points), np.uint64)  # by inbound point; 0: not known yet

    def without_strays(self, sightings: Sightings) -> Sightings:
        """The sightings, but for those at hosts of what is for another host."""
        at, packets = sightings.point, sightings.packets
        sent = np.flatnonzero(self._sends[at])
        points, first = np.unique(at[sent], return_index=True)
        # The two ways through an interface have successive numbers, inbound first.
        self._own[points - 1] = packets.source_link[sent[first]]
        own, target = self._own[at], packets.target_link
        stray = self._takes[at] & (own != 0) & (target != own) & (target & _GROUP == 0)
        if not stray.any():
            return sightings
        return Sightings(at[~stray], sightings.time_ns[~stray], packets.only(~stray))
