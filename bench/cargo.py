"""Programs built from this tree for a bench. Never changes the lock file."""

import os
import shutil

from place import ROOT, Skip, talk

BUILD_SECONDS_MAX = 1800


def build(place, what, flags=None, directory=""):
    """Build `what` (arguments that choose packages and targets) in release, with the compiler's `flags`, in `directory` of the
    target directory; the path of what was built is in the directory returned. Skip where there is no cargo."""
    if shutil.which("cargo") is None:
        raise Skip("no cargo: a build of this tree is wanted")
    target = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), directory)
    command = ["cargo", "build", "--release", "--locked", "--quiet", *what]
    command += ["--manifest-path", os.path.join(ROOT, "Cargo.toml"), "--target-dir", target]
    if flags is not None:
        command = ["env", f"RUSTFLAGS={flags}", *command]
    place.run(command, BUILD_SECONDS_MAX)
    return os.path.join(target, "release")


def example(place, name):
    """The path of one of cell's examples."""
    talk(f"building the example {name}")
    return os.path.join(build(place, ("-p", "cell", "--example", name)), "examples", name)
