#!/usr/bin/env python3
"""Times a command: timed.py --id ID --unit s|min -- COMMAND... The command's output goes to standard error."""

import argparse
import json
import subprocess
import sys
import time

UNIT_SECONDS = {"s": 1.0, "min": 60.0}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--id", required=True)
    parser.add_argument("--unit", choices=UNIT_SECONDS, required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    status = subprocess.run(options.command, stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False).returncode
    seconds = time.monotonic() - began
    if status != 0:
        raise SystemExit(f"{options.command[0]} exited with {status}")
    print(json.dumps({"id": options.id, "value": round(seconds / UNIT_SECONDS[options.unit], 3), "unit": options.unit}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
