"""Configure, build and test through the CMake presets. What `tools/kvroof` does before it measures or checks."""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from errors import UserError, os_reason

ROOT = Path(__file__).resolve().parents[2]


class BuildError(UserError):
    """Setting up, configuring or building failed."""


def build_dir(preset="release", root=ROOT):
    return root / "build" / preset


def _name(directory):
    return os.path.relpath(directory, ROOT)


def tell(text):
    print(f"kvroof: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _alone_in(directory, say):
    """Two builds in one folder spoil each other: the second waits. The lock goes with its process however that ends."""
    path = directory / ".lock"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        what = f"cannot be written ({os_reason(error)})"
        raise BuildError(str(path), what, "build in a checkout of your own") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another command is building in {_name(directory)}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _environment():
    environment = dict(os.environ)
    # A compiler's or ctest's own variables of the caller must not leak into a preset that says something else.
    environment.pop("CTEST_PARALLEL_LEVEL", None)
    return environment


def _run(command, root, log, what):
    """Runs quietly with the output in `log`; the last lines are shown when it fails."""
    with open(log, "w", encoding="utf-8") as out:
        status = subprocess.run(command, cwd=root, stdout=out, stderr=subprocess.STDOUT, env=_environment()).returncode
    if status != 0:
        _fail(log, what, status)


def _fail(log, what, status):
    tail = Path(log).read_text(encoding="utf-8", errors="replace").splitlines()[-40:]
    print("\n".join(tail), file=sys.stderr)
    raise BuildError("build", f"{what} failed (exit code {status})", f"the cause is above, the whole log in {log}")


def build(preset="release", targets=(), say=tell, root=ROOT, options=()):
    """Configures where needed, builds `targets` (all without), and returns the build directory. `root` is the checkout,
    `options` go to the first configuration."""
    if shutil.which("cmake") is None:
        raise BuildError("build", "cmake not found", "run tools/setup.sh --again build")
    directory = build_dir(preset, root)
    with _alone_in(directory, say):
        _configure(preset, root, directory, options, say)
        command = ["cmake", "--build", "--preset", preset]
        if targets:
            command += ["--target", *targets]
        _run_ninja(command, root, directory, say)
    return directory


def _configure(preset, root, directory, options, say):
    configured = (directory / "build.ninja").exists()
    # A first configuration decides whether oneDNN is there; one that appeared later must be seen.
    venv_onednn = (root / "build/venv/lib/cmake/dnnl").exists()
    cache = directory / "CMakeCache.txt"
    stale = (
        configured
        and venv_onednn
        and "dnnl_DIR:PATH=dnnl_DIR-NOTFOUND" in cache.read_text(encoding="utf-8", errors="replace")
    )
    if configured and not stale:
        return
    say(f"configuring {_name(directory)}")
    _run(["cmake", "--preset", preset, *options], root, directory / "configure.log", f"cmake --preset {preset}")
    for line in (directory / "configure.log").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("-- kvroof: ") and " OFF " in line:
            say(line[len("-- kvroof: ") :])


def _run_ninja(command, root, directory, say):
    """Builds with a counter on a terminal, with one line elsewhere, and with nothing where there is nothing to do."""
    log = directory / "build.log"
    announced = False
    counter = sys.stderr.isatty()
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen(
            command,
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=_environment(),
        )
        for line in process.stdout or ():
            out.write(line)
            step = re.match(r"\[(\d+)/(\d+)\] (?!Re-)", line)
            if not step or int(step[2]) < 4:  # a few steps run at every build, to see whether there is more to do
                continue
            if not announced:
                say(f"building {_name(directory)} ({step[2]} steps; some minutes the first time)")
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
