#!/usr/bin/env python3
"""Rules of the repository that a machine can check.

    tidy_test.py CHECK            looks at the repository
    tidy_test.py CHECK.can_fail   shows, on small made-up trees, that the check finds what it should and nothing else
    tidy_test.py                  all of them
"""

import pathlib
import sys
import tempfile

import checks
from examples import EXAMPLES
from tree import Tree

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIP = 77


def look(name):
    try:
        findings = checks.CHECKS[name](Tree.of_repository(ROOT))
    except checks.Skipped as reason:
        print(f"SKIPPED: {reason}")
        return SKIP
    print("\n".join(findings) or f"{name}: tidy")
    return 1 if findings else 0


def made_up(folder, files):
    for path, text in files.items():
        target = pathlib.Path(folder) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return Tree(folder, files)


def can_fail(name):
    """Every bad example must be found, every good one left alone."""
    wrong = 0
    for verdict in ("bad", "good"):
        for index, files in enumerate(EXAMPLES[name][verdict]):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    findings = checks.CHECKS[name](made_up(folder, files))
                except checks.Skipped as reason:
                    print(f"SKIPPED: {reason}")
                    return SKIP
            if bool(findings) != (verdict == "bad"):
                wrong += 1
                print(f"{name}: {verdict} example {index} gave {findings or 'no finding'}: {files}")
    if not EXAMPLES[name]["bad"] or not EXAMPLES[name]["good"]:
        print(f"{name}: needs a bad and a good example")
        return 1
    return 1 if wrong else 0


def main(names):
    statuses = []
    for name in names or [each + end for each in checks.CHECKS for end in ("", ".can_fail")]:
        check = name.removesuffix(".can_fail")
        if check not in checks.CHECKS:
            print(f"no check '{check}'; there are {', '.join(checks.CHECKS)}")
            return 2
        statuses.append(can_fail(check) if name != check else look(check))
    return next((status for status in statuses if status not in (0, SKIP)), SKIP if SKIP in statuses else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
