#!/usr/bin/env python3
"""Reads ctest's JUnit reports; prints what was skipped and why, what failed, and ctest's closing line.

Several reports (one per preset) are added up. Exit 1 when a test failed or none ran.
"""

import collections
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

# GoogleTest prints "file:line: Skipped" and the reason on the next line; scripts print "SKIPPED: reason".
SKIP_REASON = re.compile(r"(?:: Skipped\n|SKIPPED: )([^\n]+)")


def read(path):
    """Yields (name, outcome, reason) of each test; outcome is passed, failed or skipped."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.get("status") == "fail" or case.find("failure") is not None:
            yield case.get("name"), "failed", ""
        elif case.find("skipped") is not None:
            output = case.findtext("system-out") or ""
            found = SKIP_REASON.search(output)
            yield case.get("name"), "skipped", found.group(1).strip() if found else "no reason given"
        elif case.get("status") == "disabled":
            yield case.get("name"), "skipped", "disabled"
        else:
            yield case.get("name"), "passed", ""


def closing_line(total, failed):
    """As ctest words it: skipped tests count as passed."""
    percent = 100 if failed == 0 else min(99, (total - failed) * 100 // total)
    return f"{percent}% tests passed, {failed} tests failed out of {total}"


def main(paths):
    missing = [path for path in paths if not pathlib.Path(path).exists()]
    results = [result for path in paths if path not in missing for result in read(path)]
    reasons = collections.Counter(reason for _, outcome, reason in results if outcome == "skipped")
    failed = [name for name, outcome, _ in results if outcome == "failed"]
    skipped = sum(reasons.values())
    print(f"\nran {len(results) - skipped}, skipped {skipped}, failed {len(failed)}")
    for reason, count in reasons.most_common():
        print(f"  skipped {count:4}  {reason}")
    for name in failed:
        print(f"  failed        {name}")
    for path in missing:
        print(f"  no report     {path}")
    print(closing_line(len(results), len(failed)) if results else "No tests were found!!!")
    return 1 if failed or missing or not results else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
