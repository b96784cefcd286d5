"""Builds the native parts beside the Python modules that own them; everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# The wire format in C: whoever sends or receives packets builds it in.
WIRE = "aggregator/wire/native"
WARNINGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror"]


def files(pattern: str, *directories: str) -> list[str]:
    return sorted(str(path) for directory in directories for path in Path(directory).glob(pattern))


class Program(Extension):
    """A stand-alone program, named like a module of the package in whose directory it ends up."""


class BuildNative(build_ext):
    """Build extension modules as usual, and programs too."""

    def get_ext_filename(self, fullname: str) -> str:
        if isinstance(self.ext_map.get(fullname), Program):
            return str(Path(*fullname.split(".")))
        return super().get_ext_filename(fullname)

    def build_extension(self, ext: Extension) -> None:
        if not isinstance(ext, Program):
            super().build_extension(ext)
            return
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        objects = self.compiler.compile(
            ext.sources,
            output_dir=self.build_temp,
            extra_postargs=ext.extra_compile_args,
            depends=ext.depends,
        )
        self.compiler.link_executable(objects, target.name, output_dir=str(target.parent), libraries=ext.libraries)


setup(
    cmdclass={"build_ext": BuildNative},
    ext_modules=[
        Program(
            "testbed.links.delayline.delayline",
            sources=files("*.c", "testbed/links/delayline"),
            depends=files("*.h", "testbed/links/delayline"),
            extra_compile_args=[*WARNINGS, "-D_GNU_SOURCE"],
            libraries=["pthread", "m"],
        ),
        Program(
            "testbed.capture.recorder.recorder",
            sources=files("*.c", "testbed/capture/recorder"),
            depends=files("*.h", "testbed/capture/recorder"),
            extra_compile_args=[*WARNINGS, "-D_GNU_SOURCE"],
            libraries=["pthread"],
        ),
        # The ones with a directory of C are no Python modules but shared libraries, which ctypes loads.
        Extension(
            "aggregator.engines._native",
            sources=files("*.c", "aggregator/engines/native"),
            depends=["aggregator/engines/testbed_engine.h", *files("*.h", "aggregator/engines/native")],
            extra_compile_args=[*WARNINGS, "-O3", "-fvisibility=hidden", "-D_GNU_SOURCE"],
        ),
        Extension(
            "aggregator._receive",
            sources=files("*.c", "aggregator/native", WIRE),
            depends=["aggregator/engines/testbed_engine.h", *files("*.h", "aggregator/native", WIRE)],
            extra_compile_args=[*WARNINGS, "-O3", "-fvisibility=hidden", "-D_GNU_SOURCE"],
        ),
        Extension(
            "agents._receiver",
            sources=files("*.c", "agents/native", WIRE),
            depends=files("*.h", "agents/native", WIRE),
            extra_compile_args=[*WARNINGS, "-O3", "-fvisibility=hidden", "-D_GNU_SOURCE"],
        ),
        Extension(
            "agents._pacer",
            sources=["agents/_pacer.c"],
            depends=["agents/_pacer_thread.h"],
            extra_compile_args=[*WARNINGS, "-Wno-cast-function-type", "-D_GNU_SOURCE"],
        ),
    ],
)
