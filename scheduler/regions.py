"""Regions of a topology: as given, or clustered from coordinates."""

import math
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from scheduler.errors import PolicyError
from scheduler.topology import Island, Topology

_EARTH_RADIUS_KM = 6371.0


def regions_of(topology: Topology) -> tuple[tuple[str, ...], ...]:
    """Island ids by region, in the order of the topology.

    If every island names its region, that counts. Otherwise, if every island has coordinates, they are clustered:
    the two clusters with the smallest mean great-circle distance are merged again and again, and of all the stages
    the one with the best mean silhouette counts. Raises PolicyError if neither is there.
    """
    if all(island.region is not None for island in topology.islands):
        members: dict[str, list[str]] = {}
        for island in topology.islands:
            members.setdefault(str(island.region), []).append(island.id)
        return tuple(tuple(region) for region in members.values())
    for island in topology.islands:
        if island.latitude is None:
            raise PolicyError(
                f"island {island.id!r} has no coordinates, and not every island has a region: "
                "give every node a region, or every node latitude and longitude"
            )
    return _clustered(topology.islands)


def _clustered(islands: tuple[Island, ...]) -> tuple[tuple[str, ...], ...]:
    n = len(islands)
    distance = np.array([[_distance_km(a, b) for b in islands] for a in islands])
    clusters = [[k] for k in range(n)]
    best = (0.0, [list(range(n))])
    while len(clusters) > 2:
        pairs = combinations(range(len(clusters)), 2)
        a, b = min(pairs, key=lambda pair: float(distance[np.ix_(clusters[pair[0]], clusters[pair[1]])].mean()))
        clusters[a] = sorted(clusters[a] + clusters[b])
        del clusters[b]
        score = _silhouette(distance, clusters)
        if score > best[0]:
            best = (score, [list(cluster) for cluster in clusters])
    return tuple(tuple(islands[k].id for k in cluster) for cluster in sorted(best[1], key=min))


def _silhouette(distance: NDArray[np.float64], clusters: list[list[int]]) -> float:
    """Mean of (b − a)/max(a, b): a is the mean distance to the own cluster, b to the nearest other one; 0 if alone."""
    total = 0.0
    for cluster in clusters:
        for k in cluster if len(cluster) > 1 else ():
            own = distance[k, cluster].sum() / (len(cluster) - 1)
            other = min(distance[k, rest].mean() for rest in clusters if rest is not cluster)
            total += (other - own) / max(own, other, 1e-9)
    return float(total / len(distance))


def _distance_km(a: Island, b: Island) -> float:
    lat_a, lon_a, lat_b, lon_b = (
        math.radians(angle or 0.0) for angle in (a.latitude, a.longitude, b.latitude, b.longitude)
    )
    half = math.sin((lat_b - lat_a) / 2) ** 2 + math.cos(lat_a) * math.cos(lat_b) * math.sin((lon_b - lon_a) / 2) ** 2
    return 2.0 * _EARTH_RADIUS_KM * math.asin(min(1.0, math.sqrt(half)))
