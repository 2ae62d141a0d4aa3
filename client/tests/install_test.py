"""What is installed is what the build of an engine needs: the header as C11 and C++, pkg-config, CMake, Python."""

import argparse
import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PROGRAM = r"""
#include <foreload.h>
#include <stdio.h>
#include <string.h>

#define SIZE(type) printf(#type " %zu\n", sizeof(type))

int main(void) {
  SIZE(fl_extent); SIZE(fl_options); SIZE(fl_namespace_fields); SIZE(fl_layout_fields); SIZE(fl_keys); SIZE(fl_pinned);
  SIZE(fl_fetch_result); SIZE(fl_store); SIZE(fl_request_event); SIZE(fl_hint); SIZE(fl_counters);
  SIZE(fl_step_access);
  fl_options options;
  memset(&options, 0, sizeof options);
  fl_client* client = 0;
  return fl_open(&options, &client) == FL_EINVAL && fl_error_text()[0] != 0 ? 0 : 1;
}
"""

PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(engine LANGUAGES C)
find_package(Foreload 0.1 REQUIRED)
add_executable(engine engine.c)
target_link_libraries(engine PRIVATE foreload::foreload)
"""

PYTHON_NAMES = {"fl_extent": "Extent", "fl_options": "Options", "fl_namespace_fields": "NamespaceFields",
                "fl_layout_fields": "LayoutFields", "fl_keys": "Keys", "fl_pinned": "Pinned",
                "fl_fetch_result": "FetchResult", "fl_store": "Store", "fl_request_event": "RequestEvent",
                "fl_hint": "Hint", "fl_counters": "Counters", "fl_step_access": "StepAccess"}


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--cmake", required=True)
    parser.add_argument("--python", type=pathlib.Path, required=True)
    parser.add_argument("--guide", type=pathlib.Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="foreload-install-") as name:
        folder = pathlib.Path(name)
        prefix = folder / "prefix"
        run(options.cmake, "--install", options.build, "--component", "client", "--prefix", prefix)
        pkgconfig = next(prefix.rglob("foreload.pc")).parent
        environment = os.environ | {"PKG_CONFIG_PATH": str(pkgconfig)}
        flags = run("pkg-config", "--define-prefix", "--cflags", "--libs", "foreload", env=environment).split()
        assert str(prefix) in flags[0], f"foreload.pc does not follow the prefix: {flags}"

        source = folder / "engine.c"
        source.write_text(PROGRAM)
        strict = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
        run("cc", "-std=c11", *strict, source, *flags, "-o", folder / "engine")
        guide = folder / "guide.c"
        guide.write_text(re.search(r"```c\n(.*?)```", options.guide.read_text(), re.S)[1])
        run("cc", "-std=c11", *strict, "-Wno-unused-function", "-fsyntax-only", guide, *flags)
        run("c++", "-std=c++11", *strict, "-x", "c++", "-fsyntax-only", source, *flags)
        environment = os.environ | {"LD_LIBRARY_PATH": str(pkgconfig.parent)}
        sizes = dict(line.split() for line in run(folder / "engine", env=environment).splitlines())

        (folder / "CMakeLists.txt").write_text(PROJECT)
        run(options.cmake, "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
        run(options.cmake, "--build", folder / "build")
        run(folder / "build" / "engine", env=environment)

        os.environ["FORELOAD_LIBRARY"] = str(next(prefix.rglob("libforeload.so")))
        sys.path.insert(0, str(options.python))
        from foreload import _capi
        for c_name, python_name in PYTHON_NAMES.items():
            assert ctypes.sizeof(getattr(_capi, python_name)) == int(sizes[c_name]), f"{python_name} is not {c_name}"
    print("installed, built against in C11, C++11, pkg-config and CMake, and loaded from Python")


if __name__ == "__main__":
    main()
