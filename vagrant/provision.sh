#!/usr/bin/env bash
# Set up a Debian 12 machine, or the Vagrant box, to run the testbed. Safe to run again: what is there is left alone.
#
#   vagrant/provision.sh          what `testbed run` needs
#   vagrant/provision.sh --torch  PyTorch as well (Debian's, for processors only), for workloads written with it
#   vagrant/provision.sh --dev    the tests' and linters' needs as well, PyTorch among them
#   vagrant/provision.sh --list-packages    print the system packages and do nothing (for image builders)
set -euo pipefail

usage() { sed -n '2,7s/^# \{0,1\}//p' "$0"; }

extras=""
torch=""
list=""
for argument in "$@"; do
    case "$argument" in
        --dev) extras="[dev]" torch=yes ;;
        --torch) torch=yes ;;
        --list-packages) list=yes ;;
        -h | --help) usage; exit 0 ;;
        *) echo "provision.sh: unknown option $argument (there are --dev and --torch)" >&2; exit 2 ;;
    esac
done
if [ "$(id -u)" -ne 0 ]; then
    echo "provision.sh: needs root, to install packages: run it as root or with sudo" >&2
    exit 2
fi
if [ ! -x /usr/bin/apt-get ]; then
    echo "provision.sh: needs a Debian 12 system with apt-get" >&2
    exit 2
fi

project=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
venv=/opt/testbed/venv
# Debian's mininet is a module of Debian's python3 only, so another python3 earlier on PATH must not be taken.
python=/usr/bin/python3
packages=(sudo mininet iproute2 ethtool tcpdump iputils-ping util-linux mount procps frr
    gcc libc6-dev python3 python3-dev python3-venv)
if [ -n "$extras" ]; then
    packages+=(tshark)
fi
if [ -n "$torch" ]; then
    # With the reference BLAS, which is what PyTorch gets otherwise, it is ten times slower.
    packages+=(python3-torch libopenblas0-pthread)
fi
if [ -n "$list" ]; then
    printf '%s\n' "${packages[@]}"
    exit 0
fi

missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if [ "${#missing[@]}" -gt 0 ]; then
    echo "provision.sh: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # No recommended packages: mininet's would bring a switch daemon that the testbed does not use.
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    # The testbed starts FRR's programs itself, in its routers. The package's own service would do nothing but run.
    case " ${missing[*]} " in
        *" frr "*) if [ -d /run/systemd/system ]; then systemctl --quiet disable --now frr.service; fi ;;
    esac
fi

if [ ! -x "$venv/bin/python" ]; then
    echo "provision.sh: making the virtual environment $venv"
    mkdir -p "$(dirname "$venv")"
    "$python" -m venv --system-site-packages "$venv"
fi

# Installing takes a while even when nothing changed, so what was installed is written down and compared.
wanted=$(cd "$project" && {
    echo "$project $extras"
    "$venv/bin/python" --version
    sha256sum pyproject.toml setup.py
    find agents aggregator scheduler testbed -name '*.[ch]' -type f -print0 | sort -z | xargs -0r sha256sum
})
built() {
    [ -x "$project/testbed/links/delayline/delayline" ] &&
        [ -x "$project/testbed/capture/recorder/recorder" ] &&
        compgen -G "$project/agents/_pacer*.so" >/dev/null &&
        compgen -G "$project/aggregator/_receive*.so" >/dev/null
}
if ! built || [ "$(cat "$venv/testbed-installed" 2>/dev/null)" != "$wanted" ]; then
    echo "provision.sh: installing the project into $venv"
    rm -f "$venv/testbed-installed"
    "$venv/bin/python" -m pip install --quiet --editable "$project$extras"
    printf '%s\n' "$wanted" >"$venv/testbed-installed"
fi

# Wrappers, not symbolic links: through a link the interpreter would not find its virtual environment.
wrap() {
    printf '#!/bin/sh\nexec %s "$@"\n' "$2" >"$1"
    chmod 755 "$1"
}
wrap /usr/local/bin/testbed "$venv/bin/testbed"
if [ -d /vagrant ] && id vagrant >/dev/null 2>&1; then
    wrap /usr/local/bin/python "$venv/bin/python"
fi
echo "provision.sh: ready: $(command -v testbed || echo /usr/local/bin/testbed)"
