#!/usr/bin/env python3
"""Runs the conformance tests of a GoogleTest binary; the value is how many cases did not give their expected events.

A case that was skipped did not give them either, unless all were: then the recorded data is absent and so is the claim.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile


def count(report):
    """(cases, skipped, failed) of a GoogleTest JSON report."""
    cases = [case for suite in report["testsuites"] for case in suite["testsuite"] if case["status"] == "RUN"]
    skipped = sum(case.get("result") == "SKIPPED" for case in cases)
    return len(cases), skipped, sum("failures" in case for case in cases)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--id", required=True)
    parser.add_argument("--binary", type=pathlib.Path, required=True)
    parser.add_argument("--filter", required=True)
    parser.add_argument("--at-least", type=int, required=True,
                        help="fewer cases than this is an error: the filter rotted")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "report.json"
        subprocess.run([str(options.binary), f"--gtest_filter={options.filter}", f"--gtest_output=json:{output}"],
                       stdout=sys.stderr, check=False)
        if not output.exists():
            raise SystemExit(f"{options.binary} gave no report: it crashed")
        cases, skipped, failed = count(json.loads(output.read_text()))
    if cases and skipped == cases:
        print(json.dumps({"id": options.id, "skipped": "no recorded data"}))
        return 0
    if cases < options.at_least:
        raise SystemExit(f"{cases} cases match '{options.filter}', expected at least {options.at_least}")
    print(json.dumps({"id": options.id, "value": failed + skipped, "unit": "tests", "cases": cases}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
