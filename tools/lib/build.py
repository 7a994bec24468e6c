"""Configure, build and test through the CMake presets. What `tools/kvroof` does before it measures or checks."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from errors import UserError

ROOT = Path(__file__).resolve().parents[2]


class BuildError(UserError):
    """Setting up, configuring or building failed."""


def build_dir(preset="release"):
    return ROOT / "build" / preset


def _environment():
    environment = dict(os.environ)
    # A compiler's or ctest's own variables of the caller must not leak into a preset that says something else.
    environment.pop("CTEST_PARALLEL_LEVEL", None)
    return environment


def _run(command, log, what):
    """Runs quietly with the output in `log`; the last lines are shown when it fails."""
    with open(log, "w", encoding="utf-8") as out:
        status = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env=_environment()).returncode
    if status != 0:
        _fail(log, what, status)


def _fail(log, what, status):
    tail = Path(log).read_text(encoding="utf-8", errors="replace").splitlines()[-40:]
    print("\n".join(tail), file=sys.stderr)
    raise BuildError("build", f"{what} failed (exit code {status})", f"the cause is above, the whole log in {log}")


def build(preset="release", targets=(), say=lambda text: print(f"kvroof: {text}", file=sys.stderr, flush=True)):
    """Configures where needed, builds `targets` (all without), and returns the build directory."""
    if shutil.which("cmake") is None:
        raise BuildError("build", "cmake not found", "run tools/setup.sh --again build")
    directory = build_dir(preset)
    directory.mkdir(parents=True, exist_ok=True)
    configured = (directory / "build.ninja").exists()
    # A first configuration decides whether oneDNN is there; one that appeared later must be seen.
    venv_onednn = (ROOT / "build/venv/lib/cmake/dnnl").exists()
    cache = directory / "CMakeCache.txt"
    stale = configured and venv_onednn and "dnnl_DIR:PATH=dnnl_DIR-NOTFOUND" in cache.read_text(encoding="utf-8", errors="replace")
    if not configured or stale:
        say(f"configuring build/{preset}")
        _run(["cmake", "--preset", preset], directory / "configure.log", f"cmake --preset {preset}")
        for line in (directory / "configure.log").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("-- kvroof: ") and " OFF " in line:
                say(line[len("-- kvroof: "):])
    command = ["cmake", "--build", "--preset", preset]
    if targets:
        command += ["--target", *targets]
    _run_ninja(command, directory, preset, say)
    return directory


def _run_ninja(command, directory, preset, say):
    """Builds with a counter on a terminal, with one line elsewhere, and with nothing where there is nothing to do."""
    log = directory / "build.log"
    announced = False
    counter = sys.stderr.isatty()
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, errors="replace", env=_environment())
        for line in process.stdout:
            out.write(line)
            step = re.match(r"\[(\d+)/(\d+)\] (?!Re-)", line)
            if not step or int(step[2]) < 4:  # a few steps run at every build, to see whether there is more to do
                continue
            if not announced:
                say(f"building build/{preset} ({step[2]} steps; some minutes the first time)")
                announced = True
            if counter:
                print(f"\r  {step[1]}/{step[2]}", end="", file=sys.stderr, flush=True)
        status = process.wait()
    if announced and counter:
        print("\r" + " " * 20 + "\r", end="", file=sys.stderr, flush=True)
    if status != 0:
        _fail(log, " ".join(command), status)


def run_tests(preset="release", long=False, extra=()):
    """ctest over the preset; returns its exit code (0 or 1). Its own output goes to the terminal."""
    command = ["ctest", "--preset", preset, "-j", str(os.cpu_count() or 1), *extra]
    if long and preset == "release":
        command[2] = "long"
    status = subprocess.run(command, cwd=ROOT, env=_environment()).returncode
    return 0 if status == 0 else 1


def test(aarch64=False, long=False, extra=()):
    """`tools/kvroof test`."""
    preset = "aarch64-qemu" if aarch64 else "release"
    build(preset)
    return run_tests(preset, long=long, extra=extra)
