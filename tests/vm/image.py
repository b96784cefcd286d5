"""Builds the virtual machine's image, once for each state of what goes into it, and keeps it in a cache.

A Debian 12 root file system from the Debian packages that this machine's own apt sources name, with the cloud kernel,
and with the project's provision.sh run in it natively: emulated, that would take minutes. No mount is left behind, no
loop device is used, and no registry is named here.
"""

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
# Where the checkout is in the virtual machine.
GUEST_PROJECT = "/srv/testbed"

_HOST_TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs"}
_GUEST_PACKAGES = (
    "linux-image-cloud-amd64",
    "initramfs-tools",
    "kmod",
    "iperf3",
    "nftables",
    "less",
    "ca-certificates",
)
# Without a list, the initial file system would have drivers for every machine, and take a second longer to unpack.
_INITRD_MODULES = ("virtio_pci", "virtio_blk", "ext4")
_PYTHON_VERSION = "3.11"  # Debian 12's
# What tests need beside what a run does. Linters, and workloads that need PyTorch, are for the host.
_TEST_PACKAGES = ("pytest", "hypothesis")
_VENV = "/opt/testbed/venv"
_SPARE_MIB = 1024
_IMAGES_KEPT = 2
_BUILD_LIMIT_S = 600

Log = Callable[[str], None]


class Unavailable(Exception):
    """What a virtual machine needs cannot be installed here; the message is one line and says why."""


class ImageError(Exception):
    """The image cannot be built, although everything needed is here."""


@dataclass(frozen=True)
class Image:
    """What a virtual machine boots from. `native` holds the native parts built for the guest, as in a checkout."""

    disk: Path
    kernel: Path
    initrd: Path
    native: Path


def cached_image(log: Log) -> Image:
    """The image for this checkout, built if need be. Raises Unavailable or ImageError."""
    _install_host_tools(log)
    cache = Path(os.environ.get("TESTBED_VM_CACHE", "/var/cache/testbed-vm"))
    cache.mkdir(parents=True, exist_ok=True)
    directory = cache / _key()
    with _only_builder(cache):
        if not directory.is_dir():
            began = time.monotonic()
            _build(cache, directory, log)
            log(f"image built in {time.monotonic() - began:.0f} s")
            _remove_old(cache)
    os.utime(directory)
    return Image(directory / "disk.raw", directory / "vmlinuz", directory / "initrd", directory / "native")


def checkout_files() -> list[str]:
    """The files of this checkout, changes and new files included, relative to its root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return sorted(name for name in listed.split("\0") if name and (PROJECT / name).is_file())


def copy_checkout(target: Path) -> None:
    """Copy this checkout's files, without its history."""
    for name in checkout_files():
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(PROJECT / name, copy)


def make_disk(source: Path, disk: Path, spare_mib: int) -> None:
    """Make an ext4 file system with the contents of `source`, and `spare_mib` of room."""
    used_kib = int(_output(["du", "-sk", "--apparent-size", str(source)]).split()[0])
    # Small files take whole blocks, and inodes take room.
    size_mib = round(used_kib / 1024 * 1.3) + spare_mib
    options = ["-q", "-F", "-t", "ext4", "-O", "^has_journal,^metadata_csum_seed,^orphan_file", "-m", "0"]
    _run(["mke2fs", *options, "-d", str(source), str(disk), f"{size_mib}M"])


def _key() -> str:
    inputs = ["vagrant/provision.sh", "pyproject.toml", "setup.py", "tests/vm/image.py", "tests/vm/guest/init"]
    inputs += [name for name in checkout_files() if name.endswith((".c", ".h"))]
    digest = hashlib.sha256()
    for name in sorted(inputs):
        digest.update(f"{name}\0".encode() + (PROJECT / name).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@contextmanager
def _only_builder(cache: Path) -> Iterator[None]:
    with open(cache / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install_host_tools(log: Log) -> None:
    missing = sorted(package for tool, package in _HOST_TOOLS.items() if shutil.which(tool) is None)
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Unavailable(f"needs {', '.join(missing)}: install them as root with apt-get")
    log(f"installing {', '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
        done = subprocess.run(
            ["apt-get", "-qq", *command], env=environment, check=False, capture_output=True, timeout=_BUILD_LIMIT_S
        )
        if done.returncode != 0:
            last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
            raise Unavailable(f"cannot install {', '.join(missing)}: apt-get {command[0]}: {last}")


def _apt_sources() -> Path:
    for candidate in ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"):
        path = Path(candidate)
        if path.is_file() and path.read_text(encoding="utf-8").strip():
            return path
    raise Unavailable("needs Debian's apt sources in /etc/apt, to take the same mirror")


def _build(cache: Path, directory: Path, log: Log) -> None:
    log("building the image (Debian 12, cloud kernel, this project's packages)")
    with tempfile.TemporaryDirectory(prefix="building-", dir=cache) as scratch:
        work = Path(scratch)
        root, wheels, result = work / "root", work / "wheels", work / "image"
        result.mkdir()
        with subprocess.Popen(_download_wheels(wheels), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as download:
            _debian(root)
            _, complaint = download.communicate(timeout=_BUILD_LIMIT_S)
        if download.returncode != 0:
            raise ImageError(f"cannot fetch Python packages: {complaint.decode(errors='replace').strip()[-300:]}")
        log("provisioning it")
        _provision(root, wheels)
        _take_native(root, result / "native")
        shutil.copy2(HERE / "guest" / "init", root / "sbin" / "testbed-init")
        for name in ("vmlinuz", "initrd.img"):
            (newest,) = (root / "boot").glob(f"{name}-*")
            shutil.copy2(newest, result / name.removesuffix(".img"))
        make_disk(root, result / "disk.raw", _SPARE_MIB)
        result.rename(directory)


def _download_wheels(target: Path) -> list[str]:
    """Fetching Python packages is left to this machine's pip, as it is set up; the image sees only the files."""
    project = _project()
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"], *_test_requirements()]
    pip = [f"{_VENV}/bin/python", "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    return [*pip, "--dest", str(target), "--only-binary", ":all:", "--python-version", _PYTHON_VERSION, *wanted]


def _test_requirements() -> list[str]:
    wanted: list[str] = _project()["project"]["optional-dependencies"]["dev"]
    return [one for one in wanted if one.startswith(_TEST_PACKAGES)]


def _project() -> dict[str, Any]:
    with open(PROJECT / "pyproject.toml", "rb") as file:
        return tomllib.load(file)


def _debian(root: Path) -> None:
    provisioned = _output(["bash", str(PROJECT / "vagrant/provision.sh"), "--list-packages"]).split()
    modules = "\\n".join(_INITRD_MODULES)
    prepare = (
        'mkdir -p "$1/etc/initramfs-tools/conf.d"; echo MODULES=list >"$1/etc/initramfs-tools/conf.d/testbed"; '
        f'printf "{modules}\\n" >"$1/etc/initramfs-tools/modules"'
    )
    left_out = [f"--dpkgopt=path-exclude=/usr/share/{what}/*" for what in ("doc", "man", "locale", "info")]
    command = ["mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", f"--essential-hook={prepare}", *left_out]
    # A mirror that is a snapshot has lists whose time is over.
    for option in ("APT::Install-Recommends", "Acquire::Check-Valid-Until"):
        command.append(f'--aptopt={option} "false"')
    # Nothing needs to survive a crash of this machine: the image is moved to its place when it is whole.
    command += ['--aptopt=Acquire::Languages "none"', "--dpkgopt=force-unsafe-io"]
    command.append(f"--include={','.join((*_GUEST_PACKAGES, *provisioned))}")
    _run([*command, "bookworm", str(root), str(_apt_sources())])


def _provision(root: Path, wheels: Path) -> None:
    """Run provision.sh in the new root, in a mount namespace that takes its mounts along when it ends."""
    project = root / GUEST_PROJECT.lstrip("/")
    copy_checkout(project)
    (root / "wheels").mkdir()
    inside = (
        f"chroot {root} /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "
        f"PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels PIP_NO_CACHE_DIR=1 PIP_COMPILE=0"
    )
    steps = (
        f"mount --bind {wheels} {root}/wheels && mount -t proc proc {root}/proc && "
        f"{inside} bash {GUEST_PROJECT}/vagrant/provision.sh && "
        f"{inside} {_VENV}/bin/python -m pip install --quiet {shlex.join(_test_requirements())}"
    )
    _run(["unshare", "--mount", "--propagation", "private", "bash", "-c", steps])
    (root / "wheels").rmdir()
    # pip would use one processor for this. Its status does not count: packages come with files for other Pythons.
    # Packages' own tests, a quarter of it all, are never run.
    compiling = [sys.executable, "-m", "compileall", "-qq", "-j", "0", "-x", "/tests/", "-s", str(root), "-p", "/"]
    compiling.append(f"{root}{_VENV}/lib")
    subprocess.run(compiling, check=False, capture_output=True, timeout=_BUILD_LIMIT_S)


def _take_native(root: Path, native: Path) -> None:
    """Move out what provisioning built inside the checkout, and leave an empty directory to mount a checkout on."""
    project = root / GUEST_PROJECT.lstrip("/")
    tracked = set(checkout_files())
    for path in sorted(project.rglob("*")):
        name = path.relative_to(project)
        built = path.suffix == ".so" or os.access(path, os.X_OK)
        if path.is_file() and str(name) not in tracked and built and name.parts[0] != "build":
            (native / name).parent.mkdir(parents=True, exist_ok=True)
            path.rename(native / name)
    shutil.rmtree(project)
    project.mkdir()


def _remove_old(cache: Path) -> None:
    images = sorted((path.parent for path in cache.glob("*/disk.raw")), key=lambda path: path.stat().st_mtime)
    for old in images[:-_IMAGES_KEPT]:
        shutil.rmtree(old)


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, check=False, capture_output=True, timeout=_BUILD_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise ImageError(f"{command[0]} took more than {_BUILD_LIMIT_S} s") from error
    if done.returncode != 0:
        said = (done.stdout + done.stderr).decode(errors="replace").strip()
        raise ImageError(f"{command[0]} failed with status {done.returncode}: {said[-500:]}")


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
