"""The built-in topology `nine-city`: nine islands on three continents.

Delays are fitted: published results of a nine-city simulation give round times, but not the links behind them.
"""

from scheduler.topology import Island, Topology, both_ways

_ACCESS_DELAY_MS = 0.1
_RATE_GBPS = 100.0

_ISLANDS = (
    ("nyc", "north-america", 40.71, -74.01),
    ("chi", "north-america", 41.88, -87.63),
    ("lax", "north-america", 34.05, -118.24),
    ("lon", "europe", 51.51, -0.13),
    ("fra", "europe", 50.11, 8.68),
    ("ams", "europe", 52.37, 4.90),
    ("tyo", "asia", 35.68, 139.69),
    ("hkg", "asia", 22.32, 114.17),
    ("sin", "asia", 1.35, 103.82),
)

_ONE_WAY_DELAYS_MS = (
    ("nyc", "chi", 10.0),
    ("chi", "lax", 28.5),
    ("nyc", "lax", 36.5),
    ("lon", "ams", 4.0),
    ("lon", "fra", 7.0),
    ("ams", "fra", 4.0),
    ("tyo", "hkg", 28.5),
    ("hkg", "sin", 20.0),
    ("tyo", "sin", 40.0),
    ("nyc", "lon", 40.0),
    ("nyc", "ams", 46.0),
    ("lax", "tyo", 58.0),
    ("lax", "hkg", 82.5),
    ("fra", "sin", 92.0),
)


def nine_city() -> Topology:
    """Nine islands, 14 core links of 100 Gbit/s each way, access links of 100 Gbit/s and 0.1 ms each way."""
    islands = tuple(
        Island(name, region, latitude, longitude, access_one_way_delay_ms=_ACCESS_DELAY_MS)
        for name, region, latitude, longitude in _ISLANDS
    )
    links = tuple(link for a, b, delay in _ONE_WAY_DELAYS_MS for link in both_ways(a, b, delay, _RATE_GBPS))
    return Topology("nine-city", islands, (), links)
