"""What the loss curves show, in words: also where it is not what was published."""

from collections.abc import Iterable, Mapping, Sequence

from testbed.paper.agreement import Agreement
from testbed.paper.curves import Curve
from testbed.paper.methods import RING_METHOD, TRAINED_S, Method

_CLAIM = 5.0
_ABOUT_THE_CLAIM = 4.5  # "about 5", rounded


def statements(curves: Sequence[Curve], agreements: Sequence[Agreement], methods: Sequence[Method]) -> list[str]:
    """Lines for people, workload by workload."""
    told = []
    for workload in dict.fromkeys(curve.workload for curve in curves):
        of_workload = {curve.method: curve for curve in curves if curve.workload == workload}
        found = [*_agreement([each for each in agreements if each.workload == workload], of_workload)]
        found.append(_ranking(of_workload.values()))
        found += _staleness(of_workload, methods)
        ring = of_workload.get(RING_METHOD)
        others = [curve for curve in of_workload.values() if curve is not ring and curve.points[-1]["gb"]]
        if ring is not None and others:
            found += [_against(curve, ring) for curve in others]
        overlapped = [curve for curve in others if curve.method.endswith("overlapped")]
        if ring is not None and overlapped:
            found.append(_claim(overlapped, ring))
        told += [f"{workload}: {text}" for text in found]
    return told


def _agreement(agreements: Sequence[Agreement], curves: Mapping[str, Curve]) -> list[str]:
    told = []
    for equal in (True, False):
        names = [each.method for each in agreements if each.equal is equal]
        if names:
            told.append(
                f"in the first {agreements[0].rounds} rounds, runs over the network "
                f"{'gave' if equal else 'DID NOT GIVE'} every island the plain process's parameters, bit for bit: "
                f"{'; '.join(names)}"
            )
    networked = [curve.method for curve in curves.values() if curve.networked]
    if networked:
        told.append(f"trained over the network from end to end: {'; '.join(networked)}")
    return told


def _ranking(curves: Iterable[Curve]) -> str:
    order = sorted(curves, key=_last_loss)
    return f"loss of the worst island after {TRAINED_S:g} s: " + "; ".join(
        f"{curve.method} {_last_loss(curve):.3f}" for curve in order
    )


def _staleness(curves: Mapping[str, Curve], methods: Sequence[Method]) -> list[str]:
    """Whether schedules that are planned to be less stale learn better."""
    planned = [each for each in methods if each.overlap and each.name in curves]
    if len(planned) < 2:
        return []
    by_plan = sorted(planned, key=lambda each: (each.staleness_ms is None, each.staleness_ms or 0.0))
    by_loss = sorted(planned, key=lambda each: _last_loss(curves[each.name]))
    wanted, got = ([each.policy or "" for each in order] for order in (by_plan, by_loss))
    if wanted == got:
        return [f"schedules that are less stale by T·(A + 1/2) end with less loss: {', '.join(got)}"]
    return [f"the order of the schedules by T·(A + 1/2), {', '.join(wanted)}, is not the one by loss, {', '.join(got)}"]


def _against(curve: Curve, ring: Curve) -> str:
    """How much sooner, and with how many bytes, a method's worst island is where ring all-reduce ends."""
    wanted, end = _last_loss(ring), ring.points[-1]
    took_s = end["seconds"]
    point = _reached(curve, wanted)
    if point is None:
        return f"{curve.method} does not reach the loss of {wanted:.3f} that ring all-reduce has after {took_s:.0f} s"
    if not point["seconds"]:
        return f"{curve.method}: ring all-reduce has learned nothing in {took_s:.0f} s"
    return (
        f"{curve.method} reaches the loss of {wanted:.3f} that ring all-reduce has after {took_s:.1f} s within "
        f"{point['seconds']:.1f} s, {took_s / point['seconds']:.1f} times sooner, with {point['gb']:.0f} GB on core "
        f"links in place of {end['gb']:.0f}"
    )


def _claim(curves: Sequence[Curve], ring: Curve) -> str:
    """What was published of the throughput, against the steps of overlapped islands and the time to the same loss."""
    points = [_reached(curve, _last_loss(ring)) for curve in curves]
    factors = [ring.points[-1]["seconds"] / point["seconds"] for point in points if point and point["seconds"]]
    steps = _steps_per_s(curves[0]) / _steps_per_s(ring)
    told = (
        f"published is about {_CLAIM:g} times the throughput; here overlapped islands do {steps:.1f} times the steps, "
    )
    if not factors:
        return f"{told}and yet none is sooner where ring all-reduce ends: more steps are not more learning"
    if min(factors) >= _ABOUT_THE_CLAIM:
        said = "no less than published"
    elif max(factors) >= _ABOUT_THE_CLAIM:
        said = "as published with some schedules only"
    else:
        said = "less than published"
    sooner = f"{min(factors):.1f} to {max(factors):.1f} times sooner"
    return f"{told}and reach the loss where ring all-reduce ends {sooner}: {said}"


def _steps_per_s(curve: Curve) -> float:
    return curve.points[-1]["steps"] / curve.points[-1]["seconds"]


def _reached(curve: Curve, loss: float) -> Mapping[str, float] | None:
    """The first point at which the worst island has no more loss than this."""
    return next((point for point in curve.points if point["worst_loss"] <= loss), None)


def _last_loss(curve: Curve) -> float:
    return curve.points[-1]["worst_loss"]
