#!/usr/bin/env python3
"""The test summary counts what ctest reports and never turns a failure into a pass."""

import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import test_summary  # noqa: E402

PASSED = '<testcase name="a.Passes" status="run"/>'
FAILED = '<testcase name="a.Fails" status="fail"><failure message=""/></testcase>'
GTEST_SKIP = ('<testcase name="a.Skips" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>'
              "<system-out>/x/a_test.cc:12: Skipped\nno recorded data\n\n[  SKIPPED ] a.Skips</system-out></testcase>")
SCRIPT_SKIP = ('<testcase name="tidy.x" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>'
               "<system-out>SKIPPED: no tool\n</system-out></testcase>")


def summarize(*reports):
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for index, report in enumerate(reports):
            path = pathlib.Path(folder) / f"{index}.xml"
            if report is not None:
                path.write_text(f"<testsuite>{report}</testsuite>")
            paths.append(str(path))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = test_summary.main(paths)
        return status, out.getvalue()


class Summary(unittest.TestCase):
    def test_ends_with_ctests_closing_line(self):
        status, text = summarize(PASSED * 3)
        self.assertEqual(status, 0)
        self.assertEqual(text.splitlines()[-1], "100% tests passed, 0 tests failed out of 3")

    def test_counts_skipped_tests_with_their_reasons(self):
        status, text = summarize(PASSED + GTEST_SKIP + SCRIPT_SKIP)
        self.assertEqual(status, 0)
        self.assertIn("ran 1, skipped 2, failed 0", text)
        self.assertIn("no recorded data", text)
        self.assertIn("no tool", text)

    def test_a_failure_fails_and_is_named(self):
        status, text = summarize(PASSED * 999 + FAILED)
        self.assertEqual(status, 1)
        self.assertIn("a.Fails", text)
        self.assertEqual(text.splitlines()[-1], "99% tests passed, 1 tests failed out of 1000")

    def test_several_reports_are_added_up_and_a_missing_one_fails(self):
        self.assertIn("failed out of 3", summarize(PASSED, PASSED * 2)[1])
        self.assertEqual(summarize(PASSED, None)[0], 1)

    def test_no_test_at_all_fails(self):
        self.assertEqual(summarize("")[0], 1)


if __name__ == "__main__":
    unittest.main()
