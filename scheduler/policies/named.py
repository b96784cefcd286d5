"""The policies that come with the testbed, by name."""

from scheduler.policies.all_to_all import AllToAll
from scheduler.policies.interface import Policy
from scheduler.policies.pairs import Pairs, PairsLine
from scheduler.policies.regional import Regional
from scheduler.policies.search import Search
from scheduler.policies.triangles import Triangles

NAMED: dict[str, type[Policy]] = {
    policy.name: policy for policy in (AllToAll, Triangles, Pairs, Regional, PairsLine, Search)
}
