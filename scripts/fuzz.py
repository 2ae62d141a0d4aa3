#!/usr/bin/env python3
"""Runs every libFuzzer binary of a build for a time, as many at once as there are processors.

One JSON line per fuzzer with --json. A finding's input stays in <build>/findings. Exit 1 on a finding, or when there is
no fuzzer.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

MEMORY_LIMIT_MIB = 2048
INPUT_TIMEOUT_SECONDS = 10
SLACK_SECONDS = 120  # start-up, reading the corpus, and the report at the end


def find_fuzzers(build):
    return sorted(path for path in build.rglob("*_fuzz") if path.is_file() and os.access(path, os.X_OK))


def run(binary, build, corpus, seconds):
    findings = build / "findings"
    grown = build / "corpus" / binary.name
    findings.mkdir(exist_ok=True)
    grown.mkdir(parents=True, exist_ok=True)
    command = [str(binary), f"-max_total_time={seconds}", f"-rss_limit_mb={MEMORY_LIMIT_MIB}",
               f"-timeout={INPUT_TIMEOUT_SECONDS}", f"-artifact_prefix={findings}/{binary.name}-",
               "-print_final_stats=1", str(grown)]
    if (corpus / binary.name).is_dir():
        command.append(str(corpus / binary.name))
    environment = {**os.environ, "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True,
                              errors="replace", timeout=seconds + SLACK_SECONDS, check=False)
        output, code = done.stderr, done.returncode
    except subprocess.TimeoutExpired:
        output, code = "the fuzzer did not stop in time", -1
    executed = re.search(r"stat::number_of_executed_units:\s*(\d+)", output)
    return {"fuzzer": binary.name, "clean": code == 0, "seconds": seconds,
            "executions": int(executed.group(1)) if executed else 0, "output": output}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--corpus", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    fuzzers = find_fuzzers(arguments.build)
    if not fuzzers:
        print(f"error: no *_fuzz binary under {arguments.build}", file=sys.stderr)
        return 1
    clean = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(run, fuzzer, arguments.build, arguments.corpus, arguments.seconds) for fuzzer in fuzzers]
        for job in concurrent.futures.as_completed(jobs):
            result = job.result()
            output = result.pop("output")
            clean += result["clean"]
            verdict = "clean" if result["clean"] else "FINDING"
            print(json.dumps(result) if arguments.json else
                  f"      {verdict:8}{result['fuzzer']:32} {result['executions']:>12} executions", flush=True)
            if not result["clean"]:
                print("\n".join(output.splitlines()[-40:]), file=sys.stderr)
    if not arguments.json:
        print(f"{clean} passed, {len(fuzzers) - clean} failed")
    return 0 if clean == len(fuzzers) else 1


if __name__ == "__main__":
    sys.exit(main())
