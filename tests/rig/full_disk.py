"""`precad` on a machine whose disk has 64 KiB left."""

import shutil

from precad.cli.start import main

if __name__ == "__main__":
    usage = type(shutil.disk_usage("/"))
    shutil.disk_usage = lambda _: usage(2**30, 2**30 - 2**16, 2**16)  # type: ignore[assignment]
    main()
