#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Downloads the wheel that arrow-wheel.txt names, and unpacks what the build needs of it: the libraries arrow and
parquet, their headers and licenses.

pip checks the wheel's digest, and downloads from where the user's pip does. FOLDER appears when it is complete.

Usage: fetch_arrow.py FOLDER
"""
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

WANTED = re.compile(r"pyarrow/(libarrow\.so\.\d+|libparquet\.so\.\d+|include/.*)|[^/]*\.dist-info/licenses/(.*)")


def download(into):
    """Returns the wheel, downloaded into the folder `into`."""
    # The libraries do not depend on Python, so the wheel need not fit the Python that runs this.
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                    "--no-deps", "--only-binary=:all:", "--require-hashes",
                    "--implementation=cp", "--python-version=3.11", "--abi=cp311",
                    f"--platform=manylinux_2_28_{platform.machine()}", f"--dest={into}",
                    f"--requirement={pathlib.Path(__file__).with_name('arrow-wheel.txt')}"], check=True)
    return next(into.glob("*.whl"))


def unpack(wheel, folder):
    """Unpacks the wanted files of `wheel` into `folder`."""
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            wanted = WANTED.fullmatch(name)
            if wanted and not name.endswith("/"):
                target = folder / (wanted[1] or f"licenses/{wanted[2]}")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(files.read(name))


def main():
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    folder = pathlib.Path(sys.argv[1])
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        fresh = pathlib.Path(name, "pyarrow")
        try:
            unpack(download(pathlib.Path(name)), fresh)
        except subprocess.CalledProcessError:
            print("fetch_arrow: pip could not download the wheel; see above", file=sys.stderr)
            return 1
        if folder.exists():
            shutil.rmtree(folder)
        fresh.rename(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
