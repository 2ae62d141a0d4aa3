#!/usr/bin/env python3
"""The claims runner: what it accepts, how it judges, and that it can say no."""

import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import claims  # noqa: E402

ENTRY = """
[[claim]]
id = "main.thing_ns"
sentence = "A thing takes at most 10 ns."
command = "echo '{\\"id\\": \\"main.thing_ns\\", \\"value\\": 7, \\"unit\\": \\"ns\\"}'"
target = 10
unit = "ns"
better = "lower"
repetitions = 3
"""


def entry(**changes):
    """ENTRY with some lines replaced; a value of None drops the line."""
    lines = []
    for line in ENTRY.splitlines():
        key = line.split("=")[0].strip()
        if key in changes:
            value = changes.pop(key)
            if value is None:
                continue
            line = f"{key} = {value}"
        lines.append(line)
    lines += [f"{key} = {value}" for key, value in changes.items()]
    return "\n".join(lines) + "\n"


def say(value, unit="ns", key="value"):
    record = json.dumps({"id": "main.thing_ns", key: value, "unit": unit})
    return json.dumps(f"echo '{record}'")


def run(text, *arguments):
    """(exit status, stdout, stderr) of the runner over a file with this text."""
    out, err = io.StringIO(), io.StringIO()
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = claims.main(["--no-build", "--file", file.name, *arguments])
    return status, out.getvalue(), err.getvalue()


def verdict(text, *arguments):
    status, out, _ = run(text, "--json", *arguments)
    return status, json.loads(out.splitlines()[0])


class File(unittest.TestCase):
    def refuse(self, text, *parts):
        status, _, err = run(text)
        self.assertEqual(status, 2)
        for part in parts:
            self.assertIn(part, err)

    def test_unknown_key_is_named_with_its_line_and_the_nearest_right_one(self):
        self.refuse(entry(repetition=3), ":10:", "unknown key 'repetition'", "'repetitions'")

    def test_missing_key_names_the_entry(self):
        self.refuse(entry(unit=None), "main.thing_ns", "'unit' is missing")

    def test_wrong_type_unknown_direction_and_unknown_need_are_refused(self):
        self.refuse(entry(target='"ten"'), ":6:", "'target' has the wrong type")
        self.refuse(entry(repetitions="true"), "'repetitions' has the wrong type")
        self.refuse(entry(better='"smaller"'), "none of lower, higher, equal")
        self.refuse(entry(needs='["luck"]'), "unknown need 'luck'")
        self.refuse(entry(repetitions="0"), "at least one repetition")
        self.refuse(entry(id='"thing"'), "an id is part.name")

    def test_id_declared_twice_is_refused(self):
        self.refuse(ENTRY + ENTRY, "declared twice")

    def test_broken_toml_is_refused(self):
        self.refuse("[[claim]\n", "error:")

    def test_glob_that_matches_nothing_is_refused(self):
        status, _, err = run(ENTRY, "main.think_ns")
        self.assertEqual(status, 2)
        self.assertIn("main.thing_ns", err)

    def test_the_projects_own_file_is_well_formed(self):
        path = claims.ROOT / "bench" / "claims.toml"
        self.assertTrue(claims.parse(path.read_text(), path.name))


class Judging(unittest.TestCase):
    def test_a_met_target_holds(self):
        status, record = verdict(ENTRY)
        self.assertEqual((status, record["holds"], record["measured"], record["samples"]), (0, True, 7.0, 3))

    def test_a_missed_target_fails_and_says_by_what(self):
        status, record = verdict(entry(command=say(11)))
        self.assertEqual((status, record["holds"]), (1, False))
        self.assertIn("median is 11", record["why_not"])

    def test_higher_is_better_when_said_so(self):
        self.assertEqual(verdict(entry(better='"higher"'))[0], 1)
        self.assertEqual(verdict(entry(better='"higher"', target="7"))[0], 0)

    def test_equal_must_hold_in_every_sample(self):
        self.assertEqual(verdict(entry(better='"equal"', target="0", command=say([0, 0, 0], key="values")))[0], 0)
        status, record = verdict(entry(better='"equal"', target="0", command=say([0, 0, 1], key="values")))
        self.assertEqual((status, record["measured"]), (1, 0.0))

    def test_an_interval_claim_is_judged_at_its_worse_end(self):
        samples = say([8, 8, 8, 9, 9, 12, 12], key="values")
        self.assertEqual(verdict(entry(command=samples))[0], 0)
        status, record = verdict(entry(command=samples, interval="true", repetitions="1"))
        self.assertEqual(status, 1)
        self.assertGreater(record["spread"][1], 10)
        self.assertIn("worse end", record["why_not"])

    def test_interval_contains_the_median_and_is_reproducible(self):
        samples = [float(x * x % 17) for x in range(40)]
        first = claims.bootstrap_interval(samples)
        self.assertEqual(first, claims.bootstrap_interval(samples))
        self.assertLessEqual(first[0], sorted(samples)[20])
        self.assertGreaterEqual(first[1], sorted(samples)[19])


class Running(unittest.TestCase):
    def test_what_the_machine_lacks_is_skipped_and_never_holds(self):
        status, record = verdict(entry(needs='["tool:no-such-tool"]'))
        self.assertEqual((status, record["holds"]), (0, "skipped"))
        self.assertIn("no-such-tool", record["why_not"])

    def test_a_command_may_say_that_it_must_be_skipped(self):
        status, record = verdict(entry(command=say("no device", key="skipped")))
        self.assertEqual((status, record["holds"], record["why_not"]), (0, "skipped", "no device"))

    def test_failure_silence_and_a_foreign_unit_do_not_hold(self):
        for command, why in (('"echo broken >&2; exit 3"', "exited with 3: broken"), ('"true"', "printed no value"),
                             (say(7, unit="us"), "unit is 'us'")):
            status, record = verdict(entry(command=command))
            self.assertEqual((status, record["holds"]), (1, False))
            self.assertIn(why, record["why_not"])

    def test_a_failing_command_does_not_hold_whatever_it_printed(self):
        status, record = verdict(entry(command=say(7)[:-1] + '; exit 1"'))
        self.assertEqual((status, record["holds"]), (1, False))

    def test_a_command_past_its_limit_is_ended(self):
        status, record = verdict(entry(command='"exec tail -f /dev/null"', timeout_seconds="1"))
        self.assertEqual(status, 1)
        self.assertIn("ran past 1 s", record["why_not"])

    def test_claims_with_the_same_command_share_its_runs_and_a_list_adds_samples_up(self):
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder) / "log"
            record = json.dumps({"id": "main.thing_ns", "value": 7, "unit": "ns"})
            other = record.replace("thing", "other")
            command = json.dumps(f"echo x >> {log}; echo '{record}'; echo '{other}'")
            first = entry(command=command, repetitions="2")
            both = f"[{command}, {say(9).replace('thing', 'other')}]"
            second = entry(command=both, id='"main.other_ns"', repetitions="2")
            status, out, _ = run(first + second, "--json")
            self.assertEqual(status, 0, out)
            self.assertEqual(log.read_text().count("x"), 2)
            self.assertEqual([json.loads(line)["samples"] for line in out.splitlines()], [2, 4])

    def test_slow_claims_run_only_when_named(self):
        self.assertEqual(verdict(entry(slow="true"))[1]["holds"], "skipped")
        self.assertEqual(verdict(entry(slow="true"), "main.*")[1]["holds"], True)

    def test_a_disturbed_run_is_repeated_within_a_limit_and_reported(self):
        output = json.dumps({"id": "main.thing_ns", "value": 7, "unit": "ns"})
        for busy, runs, disturbed in (([1, 0, 0, 0], 4, 0), ([1] * 9, 6, 3)):
            left = list(busy)
            with unittest.mock.patch.object(
                    claims, "run_command", side_effect=lambda *_: claims.Run(output, "", left.pop(0))) as command:
                status, record = verdict(ENTRY)
            self.assertEqual((status, command.call_count, record["disturbed"]), (0, runs, disturbed))
            self.assertEqual("disturbed" in record["why_not"], disturbed > 0)

    def test_missing_data_is_a_reason(self):
        before = os.environ.get("FORELOAD_DATA")
        os.environ["FORELOAD_DATA"] = "/nonexistent"
        try:
            self.assertEqual(verdict(entry(needs='["data"]'))[1]["holds"], "skipped")
        finally:
            if before is None:
                del os.environ["FORELOAD_DATA"]
            else:
                os.environ["FORELOAD_DATA"] = before

    def test_table_shows_every_claim(self):
        _, out, _ = run(ENTRY)
        self.assertIn("main.thing_ns", out)
        self.assertIn("1 hold, 0 do not, 0 skipped", out)


if __name__ == "__main__":
    unittest.main()
