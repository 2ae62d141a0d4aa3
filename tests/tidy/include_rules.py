"""Who may include whom. The tables are the rule; ARCHITECTURE.md says why."""

import re

# Module -> modules whose headers it may include, itself aside. A longer prefix of the path goes before a shorter one.
MODULES = {
    "base": set(),
    "proto": {"base"},
    "telemetry": {"base", "proto"},
    "transport": {"base", "proto"},
    "residency": {"base", "proto"},
    "lsh": {"base"},
    # The core is a pure function of its inputs: nothing that knows a socket, a file or a thread.
    "prefetcher/core": {"base"},
    "prefetcher": {"base", "proto", "telemetry", "transport", "residency", "lsh"},
    "client": {"base", "proto", "residency"},
    "replay": {"base", "proto", "telemetry", "transport", "prefetcher", "client"},
}
UNRESTRICTED = ("cmd", "tests", "bench", "integrations")

# Library header -> folders whose source files may include it.
VENDOR_WRAPPERS = {
    # header -> why it includes a library
    "prefetcher/service/toml_library.h": "takes toml++'s assumptions out, for the two source files that parse",
}

VENDORS = {
    r"zmq(_addon)?\.hp?p?": ("telemetry", "client", "cmd"),
    r"msgpack.*": ("telemetry",),
    r"liburing.*": ("transport/uring",),
    r"xxhash\.h|xxh3\.h": ("proto",),
    r"openssl/.*": ("proto",),
    r"zstd.*": ("telemetry", "replay"),    # the recorder writes compressed traces; the trace readers read foreign ones
    r"lz4.*": ("transport",),
    r"zlib\.h": ("replay",),
    r"simdjson.*": ("telemetry", "replay"),  # TensorRT-LLM publishes JSON; so are most public traces
    r"toml\+\+/.*|toml\.hpp": ("prefetcher/service",),
    r"CLI/.*": ("cmd",),
    r"spdlog/.*": ("prefetcher/service",),
    r"fmt/.*": ("base",),
    r"prometheus/.*": ("prefetcher/service",),
    r"httplib\.h": ("prefetcher/service",),
    r"infiniband/.*|rdma/.*": ("transport/rdma",),
    r"cuda.*\.h|nvml\.h": ("transport/cuda", "lsh/cuda", "client/cuda"),
    r"faiss/.*": ("lsh",),
    r"Eigen/.*": ("lsh",),
    r"google/protobuf/.*": ("proto", "telemetry"),  # access records are checked field by field before they are parsed
}

# (file, header) -> why the rule does not hold there.
EXCEPTIONS = {
    ("telemetry/sink.h", "proto/telemetry.pb.h"): "a sink takes decoded access messages; the type is the wire's own",
    ("telemetry/trace_file.h", "proto/trace.pb.h"): "writer and reader of that very format",
    ("telemetry/access_validate.h", "proto/telemetry.pb.h"): "gives out the decoded message",
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
TEST_HEADERS = re.compile(r"(gtest|gmock|rapidcheck|benchmark)[/.]")


def module_of(path):
    for module in sorted(MODULES, key=len, reverse=True):
        if path.startswith(module + "/"):
            return module
    return path.split("/")[0]


def check(tree):
    findings = []
    own_folders = {path.split("/")[0] for path in tree.files if "/" in path}
    for path in tree.sources():
        for number, line in tree.lines(path):
            match = INCLUDE.match(line)
            if not match or (path, match.group(2)) in EXCEPTIONS:
                continue
            finding = judge(path, match.group(1), match.group(2), own_folders)
            if finding:
                findings.append(f"{path}:{number}: {finding}")
    return findings


def judge(path, bracket, header, own_folders):
    """What is wrong with this include, or None."""
    is_header = path.endswith(".h")
    if "/" in header and header.split("/")[0] in own_folders:
        if header.endswith(".pb.h") and is_header:
            return f"generated {header} in a header; forward-declare and include it in the .cc"
        return judge_own(path, header)
    if bracket == '"':
        return f'"{header}": includes start at the repository root'
    if TEST_HEADERS.match(header):
        allowed = re.search(r"(^|/)(tests|bench)/", path)
        return None if allowed else f"<{header}> outside a tests/ or bench/ folder"
    for pattern, folders in VENDORS.items():
        if not re.fullmatch(pattern, header):
            continue
        if is_header and path not in VENDOR_WRAPPERS and not re.search(r"(^|/)tests/", path):
            return f"library header <{header}> in a header; only source files include libraries"
        in_tests = re.search(r"(^|/)tests/", path)
        if not in_tests and not path.startswith(tuple(folder + "/" for folder in folders)):
            return f"<{header}> belongs to {', '.join(folders)} alone"
    return None


def judge_own(path, header):
    module = module_of(path)
    if module.split("/")[0] in UNRESTRICTED:
        return None
    if module not in MODULES:
        return f"folder {module}/ is in no table of tests/tidy/include_rules.py"
    target = module_of(header)
    if target == module or target in MODULES[module]:
        return None
    if target.split("/")[0] in {allowed.split("/")[0] for allowed in MODULES[module]} or (
            target.startswith(module + "/")):
        return None
    return f"{module} must not include {target} ({header})"
