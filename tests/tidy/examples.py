"""Made-up trees for the checks' own tests: `bad` ones must give a finding, `good` ones none."""

import pathlib

FORMAT = (pathlib.Path(__file__).resolve().parents[2] / ".clang-format").read_text()
CLAIMS = '[[claim]]\nid = "main.lookup_ns"\n'


def one(path, *texts):
    return [{path: text} for text in texts]


def including(path, *headers):
    """A tree with all module folders, in which `path` includes `headers`."""
    folders = {f"{folder}/x.h": "" for folder in ("base", "proto", "telemetry", "transport", "residency", "lsh",
                                                  "prefetcher/core", "prefetcher/service", "client", "replay")}
    return [{**folders, path: f"#include {header}\n"} for header in headers]


EXAMPLES = {
    "includes": {
        "bad": including("base/a.cc", '"proto/x.h"') + including("telemetry/a.cc", '"transport/x.h"', '"lsh/x.h"')
        + including("transport/a.h", '"residency/x.h"', "<liburing.h>")
        + including("prefetcher/core/a.cc", '"prefetcher/service/x.h"', '"proto/x.h"', '"telemetry/x.h"')
        + including("client/a.cc", '"transport/x.h"', '"prefetcher/core/x.h"', "<openssl/ssl.h>", '"a.h"')
        + including("replay/a.cc", '"residency/x.h"', "<zmq.h>", "<gtest/gtest.h>")
        + including("telemetry/a.h", "<zmq.hpp>", '"proto/control.pb.h"') + including("novel/a.cc", '"base/x.h"'),
        "good": including("prefetcher/service/a.cc", '"prefetcher/core/x.h"', '"transport/x.h"', "<httplib.h>")
        + including("telemetry/a.cc", "<zmq.hpp>", '"base/x.h"', '"proto/control.pb.h"')
        + including("cmd/a.cc", '"replay/x.h"', "<sys/wait.h>") + including("replay/tests/a_test.cc", "<gtest/gtest.h>")
        + including("prefetcher/core/a.h", '"base/x.h"', "<vector>"),
    },
    "pragma_once": {"bad": one("a.h", "#ifndef A_H\n"), "good": one("a.h", "// What it is.\n#pragma once\n")},
    "file_length": {"bad": one("a.cc", "\n" * 501), "good": one("a.cc", "\n" * 500) + one("a.txt", "\n" * 900)},
    "line_length": {"bad": one("a.py", "#" * 121), "good": one("a.py", "#" * 120) + one("a.md", "#" * 200)},
    "readme_present": {"bad": one("telemetry/a.cc", ""), "good": [{"telemetry/a.cc": "", "telemetry/README.md": ""}]},
    "cmake_no_globs": {
        "bad": one("a/CMakeLists.txt", "file(GLOB sources *.cc)\n", "file( GLOB_RECURSE s CONFIGURE_DEPENDS *.h)\n"),
        "good": one("a/CMakeLists.txt", "# no GLOB here\nadd_library(a a.cc)\n"),
    },
    "sources_built": {
        "bad": [{"a/CMakeLists.txt": "add_library(a a.cc)\n", "a/a.cc": "", "a/b.cc": ""},
                {"a/CMakeLists.txt": "# b.cc\nadd_library(a tests/bb.cc)\n", "a/tests/b.cc": ""}],
        "good": [{"a/CMakeLists.txt": "add_library(a a.cc sub/b.cc)\n", "a/a.cc": "", "a/sub/b.cc": ""},
                 {"a/CMakeLists.txt": "foreach(f b c)\n add_x(${f} fuzz/${f}.cc)\nendforeach()\n", "a/fuzz/b.cc": ""},
                 {"cmake/T.cmake": "add_executable(x ${PROJECT_SOURCE_DIR}/tests/main.cc)\n", "tests/main.cc": ""}],
    },
    "metric_names": {
        "bad": one("a.cc", 'r.AddCounter("foreload_core_drops", "d");', 'r.AddGauge("foreload_core_depth_total", "d");',
                   'r.AddHistogram("foreload_core_wait_ms", "d");', 'r.AddGauge(\n    "core_depth_items", "d");',
                   'r.AddGauge("foreload_core:depth", "d");')
        + one("a/metrics.cc", 'Declare(r, "foreload_core_wait_ms");')
        + [{name: 'r.AddGauge("foreload_core_depth_items", "d");' for name in ("a.cc", "b.cc")}],
        "good": one("a.cc", 'r.AddCounter("foreload_core_drops_total", "d", {{"reason", "full"}});\n'
                    'r.AddCounter("foreload_core_drops_total", "d", {{"reason", "late"}});\n'
                    'r.AddHistogram("foreload_core_wait_seconds", "d", b);')
        + one("a/tests/a.cc", 'r.AddGauge("x", "d");'),
    },
    "no_sleeps_in_tests": {
        "bad": one("a/tests/a_test.cc", "std::this_thread::sleep_for(1ms);", "usleep(10);", "sleep(1);")
        + one("tests/a.py", "time.sleep(1)") + one("tests/a.sh", "sleep 5\n", "wait; sleep $n"),
        "good": one("a/tests/a_test.cc", "// Nobody sleeps (see above).\nqueue.WaitDrain(out, deadline);", "Asleep(3);")
        + one("a/a.cc", "usleep(10);"),
    },
    "no_foreign_words": {
        "bad": one("a.cc", '"/work' + '/main/x"', "// TO" + "DO: later", "// see DESIGN" + " section 4")
        + one("a.md", "/home" + "/someone/x", "see `shared" + "/facts/a.md`"),
        "good": one("a.cc", "// work/home balance, network/root cause", '"../shared/data"') + one("a.md", "a/work/b"),
    },
    "figures_are_claims": {
        "bad": one("README.md", "A look-up takes 200 ns.\n", "It moves 3.5 GB/s\nor more.\n", "| read | 12 ms |\n")
        + [{"README.md": "At most 200 ns (claim `main.other`).\n", "bench/claims.toml": CLAIMS}],
        "good": one("README.md", "The cap is `100 us` of the link.\n", "```\n200 ns\n```\n", "Version 3, 12 msgs\n")
        + [{"README.md": "At most 200 ns a block\n(claim `main.lookup_ns`).\n", "bench/claims.toml": CLAIMS},
           {"README.md": "| look-up | 200 ns | claim `main.lookup_ns` |\n", "bench/claims.toml": CLAIMS}],
    },
    "scripts_parse": {
        "bad": one("a.sh", "if true; then\n") + one(".ci/run", "#!/usr/bin/env bash\nfor\n") + one("a.py", "def f(:\n"),
        "good": one("a.sh", "true\n") + one("a.py", "x = 1\n") + one("LICENSE", "if then\n"),
    },
    "clang_format": {
        "bad": [{".clang-format": FORMAT, "a.cc": "int  a ;\n"}],
        "good": [{".clang-format": FORMAT, "a.cc": "int a;\n"}],
    },
}
