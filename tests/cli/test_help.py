#!/usr/bin/env python3
"""Every command's --help: argparse formats the texts only when asked, so a stray % breaks nothing but that."""

from __future__ import annotations

import subprocess
import sys
import unittest

from support import CLI


def help_of(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(CLI), *command, "--help"], capture_output=True, text=True, check=False)


class Help(unittest.TestCase):
    def test_every_command(self) -> None:
        listed = help_of()
        self.assertEqual(listed.returncode, 0, listed.stderr)
        names = ["sweep", "test", "verify", "report", "compare", "memory", "predict", "validate"]
        for name in names:
            self.assertIn(name, listed.stdout)
            shown = help_of(name)
            self.assertEqual(shown.returncode, 0, shown.stderr)
            self.assertIn("usage: ", shown.stdout)


if __name__ == "__main__":
    unittest.main()
