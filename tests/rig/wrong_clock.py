"""Processes whose wall clock is wrong by what a test says; time passes as ever."""

import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import IO

from tests.rig.warm import SOURCES

_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long long *ahead(void) {
  static volatile const long long *mapped;
  static const long long none;
  if (!mapped) {
    const char *name = getenv("PRECAD_TEST_CLOCK");
    int file = name ? open(name, O_RDONLY) : -1;
    void *found = MAP_FAILED;
    if (file >= 0) found = mmap(0, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    mapped = found == MAP_FAILED ? &none : found;
  }
  return mapped;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
  int failed = syscall(SYS_clock_gettime, clock, out);
  if (!failed && clock == CLOCK_REALTIME) out->tv_sec += *ahead();
  return failed;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
"""


class WrongClock:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file, source = folder / "ahead", folder / "clock.c"
        self._library = folder / "clock.so"
        self.set(timedelta(0))
        source.write_text(_SOURCE, encoding="utf-8")
        flags = ["-shared", "-fPIC", "-O1", "-o", str(self._library), str(source)]
        subprocess.run(["gcc", *flags], check=True)

    def set(self, ahead: timedelta) -> None:
        seconds = int(ahead.total_seconds()).to_bytes(8, sys.byteorder, signed=True)
        # In place: whoever has it mapped must see it.
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(seconds)

    def popen(
        self,
        arguments: list[str],
        *,
        stdout: IO[bytes] | None,
        env: Mapping[str, str],
        stderr: int,
    ) -> subprocess.Popen[bytes]:
        preload = {
            "LD_PRELOAD": str(self._library),
            "PRECAD_TEST_CLOCK": str(self._file),
        }
        env = {**env, **os.environ, **preload, "PYTHONPATH": SOURCES}
        return subprocess.Popen(arguments, env=env, stdout=stdout, stderr=stderr)
