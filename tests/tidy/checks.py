"""The tidy checks. Each takes a Tree and returns its findings, one line of text each; none means tidy."""

import ast
import collections
import re
import shutil
import subprocess
import sys

import include_rules

# --- layout ----------------------------------------------------------------------------------------------------------

FILE_LINES_MAX = 500
LONG_FILES = {
    # file -> why it is one file
    "prefetcher/core/tests/simulation_test.cc": "one world, its faults and its invariants",
    "prefetcher/service/engine_registry.cc": "one life cycle: registration, grant, end",
    "prefetcher/service/executor.cc": "one case a command, sharing the transfer table",
    "prefetcher/service/runtime.cc": "the wiring of all parts in order",
    "transport/ssd/ssd_store.cc": "the store's public calls over one implementation",
    "transport/tests/conformance_test.cc": "one suite over every backend",
}

MODULE_FOLDERS = ("base", "proto", "telemetry", "residency", "lsh", "prefetcher", "transport", "client", "replay",
                  "integrations", "cmd", "dashboards", "deploy", "tests", "bench", "docs", "scripts")


def file_length(tree):
    findings = []
    for path in tree.named(".h", ".cc", ".cu", ".py", ".sh"):
        lines = tree.text(path).count("\n")
        if lines > FILE_LINES_MAX and path not in LONG_FILES:
            findings.append(f"{path}: {lines} lines; split it, or give the reason in LONG_FILES")
    return findings + [f"{path}: listed in LONG_FILES, but short" for path in LONG_FILES
                       if path in tree.files and tree.text(path).count("\n") <= FILE_LINES_MAX]


def readme_present(tree):
    return [f"{folder}/: no README.md" for folder in MODULE_FOLDERS
            if any(path.startswith(folder + "/") for path in tree.files) and f"{folder}/README.md" not in tree.files]


LINE_COLUMNS_MAX = 120


def line_length(tree):
    """clang-format sees to C++; tables make Markdown wide."""
    files = tree.named(".py", ".sh", ".cmake", "CMakeLists.txt")
    return [f"{path}:{number}: {len(line)} columns, at most {LINE_COLUMNS_MAX}" for path in files
            for number, line in tree.lines(path) if len(line) > LINE_COLUMNS_MAX]


def pragma_once(tree):
    return [f"{path}: no #pragma once" for path in tree.named(".h")
            if not re.search(r"^#pragma once$", tree.text(path), re.M)]


# --- build -----------------------------------------------------------------------------------------------------------

def cmake_no_globs(tree):
    files = tree.named("CMakeLists.txt", ".cmake")
    return [f"{path}:{number}: file(GLOB ...); name the files" for path in files for number, line in tree.lines(path)
            if re.search(r"\bGLOB(_RECURSE)?\b", line.split("#")[0])]


def with_loops(text):
    """The text with each foreach(name a b ...) body once for each of its words."""
    loop = re.compile(r"\bforeach\(\s*(\w+)\s+([^)]*)\)(.*?)\bendforeach\(\s*\w*\s*\)", re.S)
    return loop.sub(lambda match: "\n".join(match[3].replace(f"${{{match[1]}}}", word) for word in match[2].split()),
                    text)


def sources_built(tree):
    """A source file that no CMakeLists.txt names is neither compiled nor tested."""
    named = collections.defaultdict(str)
    for path in tree.named("CMakeLists.txt", ".cmake"):
        folder = path.rpartition("/")[0]
        named[folder] += with_loops("".join(line.split("#")[0] + "\n" for _, line in tree.lines(path)))
    findings = []
    for path in tree.named(".cc", ".cu"):
        folders = path.split("/")[:-1]
        for depth in range(len(folders), -1, -1):
            folder = "/".join(folders[:depth])
            inside = path[len(folder) + 1:] if folder else path
            if re.search(rf"(?<![\w/]){re.escape(inside)}\b", named.get(folder, "")) or path in named.get("cmake", ""):
                break
        else:
            findings.append(f"{path}: in no CMakeLists.txt of its folder or one above")
    return findings


# --- metrics ---------------------------------------------------------------------------------------------------------

METRIC_CALL = re.compile(r'\bAdd(Counter|Gauge|Histogram)\(\s*"([^"]*)"')
METRIC_LITERAL = re.compile(r'"(foreload(?:_[a-z0-9]+){2,})"')  # handed to a helper that declares it
METRIC_NAME = re.compile(r"foreload(_[a-z][a-z0-9]*){2,}")
METRIC_UNIT_BANNED = re.compile(r"_(ns|us|ms|msec|millis|micros|nanos|kb|mb|gb|kib|mib|gib|perc|percent|pct)(_|$)")


def metric_names(tree):
    findings = []
    declared = {}
    for path in tree.named(".cc", ".h"):
        if re.search(r"(^|/)(tests|bench)/", path):
            continue
        text = tree.text(path)
        calls = [(match, *match.groups()) for match in METRIC_CALL.finditer(text)]
        if '"base/metric.h"' in text or "metrics" in path:
            named = {name for _, _, name in calls}
            calls += [(match, None, match.group(1)) for match in METRIC_LITERAL.finditer(text)
                      if match.group(1) not in named]
        for match, kind, name in calls:
            where = f"{path}:{text.count(chr(10), 0, match.start()) + 1}"
            findings += [f"{where}: {name}: {problem}" for problem in metric_problems(kind, name)]
            if declared.setdefault(name, path) != path:
                findings.append(f"{where}: {name} is also declared in {declared[name]}")
    return findings


def metric_problems(kind, name):
    if not METRIC_NAME.fullmatch(name):
        yield "not foreload_<module>_<noun>_<unit>"
    if METRIC_UNIT_BANNED.search(name):
        yield "units are seconds, bytes and ratios"
    if kind and (kind == "Counter") != name.endswith("_total"):
        yield "_total belongs to counters, and to every one of them"


# --- tests -----------------------------------------------------------------------------------------------------------

SLEEP = re.compile(r"\b(sleep_for|sleep_until|usleep|nanosleep|clock_nanosleep|time\.sleep|asyncio\.sleep)\b|"
                   r"(?<![\w.])sleep\s*\(|(?<![\w.$-])sleep\s+[0-9.$]")
SLEEP_EXCEPTIONS = {
    # file -> why waiting for time itself is what is tested
    "tests/integration/harness.py": "the pause between two looks at a condition",
}


def no_sleeps_in_tests(tree):
    findings = []
    for path in tree.files:
        in_tests = re.search(r"(^|/)tests/", path) and path.endswith((".cc", ".h", ".py", ".sh"))
        if not in_tests or path.startswith("tests/tidy/") or path in SLEEP_EXCEPTIONS:
            continue
        findings += [f"{path}:{number}: sleeps; wait for a condition, with a deadline"
                     for number, line in tree.lines(path) if SLEEP.search(line)]
    return findings


# --- words -----------------------------------------------------------------------------------------------------------

MACHINE_PATH = re.compile(r"(?<![\w.~}])/(work|home|root|Users)/[\w.]")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
# Papers that are not in this repository: a reader could not follow the reference.
DANGLING = re.compile(r"\b(DESIGN|STYLE)\.md\b|\b(DESIGN|STYLE) section\b|\bshared/(facts|tools|hooks|DESIGN|STYLE)\b|"
                      r"\bfacts/[a-z-]+\.md\b")


def no_foreign_words(tree):
    findings = []
    for path in tree.files:
        if path.startswith(("tests/tidy/", "tests/corpus/")) or path == "LICENSE":
            continue
        for number, line in tree.lines(path):
            for pattern, problem in ((MACHINE_PATH, "a path of one machine"), (UNFINISHED, "unfinished"),
                                     (DANGLING, "refers to a paper that is not in the repository")):
                match = pattern.search(line)
                if match:
                    findings.append(f"{path}:{number}: {match.group(0)!r}: {problem}")
    return findings


# --- documents -------------------------------------------------------------------------------------------------------

FIGURE = re.compile(r"(?<![\w.`])\d[\d,.]*\s?(ns|us|µs|ms|[KMGT]i?B/s|[kKMG]?/s|(accesses|blocks|events|requests)/s|"
                    r"x faster|times faster|% (faster|of (line rate|memcpy|fio)))(?![\w/])")
FIGURE_EXCEPTIONS = {
    "docs/configuration.md": "generated from the table of settings; its numbers are defaults and ranges",
}
CLAIM_MARK = re.compile(r"\bclaims?\s+((?:`[a-z0-9_.]+`(?:,\s*|\s+and\s+)?)+)")


def figures_are_claims(tree):
    """A performance figure in a document stands in a paragraph or table row that names its claim: claim `main.x`."""
    known = set(re.findall(r'^id\s*=\s*"([^"]+)"', tree.text("bench/claims.toml"), re.M)) if (
        "bench/claims.toml" in tree.files) else set()
    findings = []
    for path in tree.named(".md"):
        for number, block in paragraphs(tree.text(path)):
            marked = [name for group in CLAIM_MARK.findall(block) for name in re.findall(r"`([^`]+)`", group)]
            findings += [f"{path}:{number}: no claim '{name}' in bench/claims.toml" for name in marked
                         if name not in known]
            figure = FIGURE.search(re.sub(r"`[^`]*`", "", block))
            if figure and not marked and path not in FIGURE_EXCEPTIONS:
                findings.append(f"{path}:{number}: '{figure.group(0)}' without its claim; a setting or a limit goes in "
                                "a code span")
    return findings


def paragraphs(text):
    """(first line, text) of each paragraph and each table row outside code fences."""
    fenced, start, block = False, 1, []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        row = line.lstrip().startswith("|")
        if fence or fenced or row or not line.strip():
            if block:
                yield start, "\n".join(block)
            block = []
            if row and not fenced:
                yield number, line
            fenced = fenced != fence
            continue
        if not block:
            start = number
        block.append(line)


# --- syntax and format -----------------------------------------------------------------------------------------------

def scripts_parse(tree):
    findings = []
    for path in tree.files:
        if path.endswith(".py"):
            try:
                ast.parse(tree.text(path))
            except SyntaxError as error:
                findings.append(f"{path}:{error.lineno}: {error.msg}")
        elif "." not in path.rsplit("/", 1)[-1][1:] or path.endswith(".sh"):
            if not path.startswith("tests/corpus/") and tree.is_script(path):
                done = subprocess.run(["bash", "-n", str(tree.root / path)], capture_output=True, text=True,
                                      check=False)
                findings += [f"{path}: {line}" for line in done.stderr.splitlines()]
    return findings


class Skipped(Exception):
    """The machine lacks a tool; the message says which."""


def clang_format(tree):
    tool = shutil.which("clang-format-14")
    if tool is None:
        raise Skipped("clang-format-14 is not installed (scripts/setup.sh --tests)")
    files = tree.named(".h", ".cc", ".cu")
    if not files:
        return []
    done = subprocess.run([tool, "--dry-run", f"--style=file:{tree.root}/.clang-format", *files], cwd=tree.root,
                          capture_output=True, text=True, check=False)
    unclean = sorted({line.split(":")[0] for line in done.stderr.splitlines() if "-Wclang-format" in line})
    return [f"{path}: clang-format-14 -i {path}" for path in unclean]


CHECKS = {
    "includes": include_rules.check,
    "pragma_once": pragma_once,
    "file_length": file_length,
    "line_length": line_length,
    "readme_present": readme_present,
    "cmake_no_globs": cmake_no_globs,
    "sources_built": sources_built,
    "metric_names": metric_names,
    "no_sleeps_in_tests": no_sleeps_in_tests,
    "no_foreign_words": no_foreign_words,
    "figures_are_claims": figures_are_claims,
    "scripts_parse": scripts_parse,
    "clang_format": clang_format,
}

if __name__ == "__main__":
    sys.exit("run tidy_test.py")
