"""The kernel that users have: what the testbed needs of it is there, and the set-up has nothing left to do."""

import pytest

from tests.vm.machine import Machine

LIMIT_S = 120


@pytest.mark.parametrize("module", ["sch_netem", "sch_htb", "veth", "tun", "act_police", "act_mirred", "cls_matchall"])
def test_module_loads(machine: Machine, module: str) -> None:
    script = f"modprobe {module} && test -d /sys/module/{module}"
    done = machine.run(["sh", "-c", script], LIMIT_S)
    assert done.status == 0, done.stderr


def test_it_is_debian_12s_cloud_kernel(machine: Machine) -> None:
    assert machine.run(["uname", "-r"], LIMIT_S).stdout.strip().endswith("-cloud-amd64")
    assert machine.run(["cat", "/etc/debian_version"], LIMIT_S).stdout.startswith("12.")


def test_tunnel_device_and_multicast_routing_are_there(machine: Machine) -> None:
    script = "ip tuntap add dev trial mode tap && ip link del dev trial && test -e /proc/net/ip_mr_vif"
    assert machine.run(["sh", "-c", f"{script}"], LIMIT_S).status == 0


def test_provisioning_has_nothing_left_to_do(machine: Machine) -> None:
    done = machine.run(["bash", "vagrant/provision.sh"], LIMIT_S)
    assert done.status == 0, done.stderr
    assert [line.split(":")[1] for line in done.stdout.splitlines()] == [" ready"]


def test_auto_takes_netem(machine: Machine) -> None:
    script = "from testbed.links.kinds import choose_link_kind; print(choose_link_kind('auto', []).name)"
    done = machine.run(["/opt/testbed/venv/bin/python", "-c", script], LIMIT_S)
    assert done.stdout.strip() == "netem", done.stderr
