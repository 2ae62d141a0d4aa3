"""The files that a tidy check looks at: those of the repository, or a made-up set for the checks' own tests."""

import pathlib
import re
import subprocess


class Tree:
    """Paths relative to `root`, with `/` between folders, and their texts."""

    def __init__(self, root, files):
        self.root = pathlib.Path(root)
        self.files = sorted(files)
        self._texts = {}

    @staticmethod
    def of_repository(root):
        """What git tracks or would track; without git, everything but build folders and hidden ones."""
        root = pathlib.Path(root)
        try:
            listed = subprocess.run(["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"],
                                    capture_output=True, text=True, check=True).stdout.splitlines()
        except (OSError, subprocess.CalledProcessError):
            listed = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
            listed = [path for path in listed if not path.startswith((".git/", "build/"))]
        return Tree(root, {path for path in listed if (root / path).is_file()})

    def text(self, path):
        if path not in self._texts:
            self._texts[path] = (self.root / path).read_bytes().decode("utf-8", "replace")
        return self._texts[path]

    def lines(self, path):
        return enumerate(self.text(path).splitlines(), 1)

    def named(self, *suffixes):
        return [path for path in self.files if path.endswith(suffixes)]

    def sources(self):
        return self.named(".h", ".cc", ".cu", ".c")

    def is_script(self, path):
        return path.endswith(".sh") or re.match(r"#!.*\b(ba)?sh\b", self.text(path).split("\n", 1)[0]) is not None
