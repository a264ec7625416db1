# One file for every part: an image holds what EXTRA names, and its command says what it plays.
#
#   docker build --build-arg EXTRA=server -t precad-server .
#
# EXTRA     client, server or dealer, or demo for all; any of pyproject's, with commas between.
# BASE      any image with Python 3.11 (python3, venv, pip) on glibc.
# PIP_ARGS  further arguments for pip, such as where to look for packages. They are recorded in
#           the image's history: no passwords.
ARG BASE=python:3.11-slim

# The requirements by themselves: as long as they stay the same, the layer with torch, CrypTen
# and the others is taken from the cache, whatever else changes in pyproject.toml or the source.
FROM ${BASE} AS requirements
ARG EXTRA=demo
COPY pyproject.toml deploy/requirements.py /
RUN python3 /requirements.py $(echo ${EXTRA} | tr , ' ') < /pyproject.toml > /requirements.txt

FROM ${BASE} AS dependencies
ARG PIP_ARGS=
RUN python3 -m venv /opt/precad
COPY --from=requirements /requirements.txt /opt/precad/
RUN /opt/precad/bin/pip install --no-cache-dir --disable-pip-version-check ${PIP_ARGS} \
        -r /opt/precad/requirements.txt

# The same for every EXTRA.
FROM ${BASE} AS package
ARG PIP_ARGS=
# The projections' kernel is compiled where the base has a C compiler or Debian's can be had; the
# image works without it. This stage's layers aren't the image's: no compiler gets there.
RUN command -v cc >/dev/null \
    || { timeout 60 apt-get update -qq -o Acquire::Retries=0 \
         && apt-get install -qq --yes --no-install-recommends -o Acquire::Retries::Delay=false \
            gcc libc6-dev; } \
    || echo "no C compiler: NumPy computes the projections"
COPY . /source
RUN python3 -m venv /building \
    && /building/bin/pip wheel --no-cache-dir --disable-pip-version-check ${PIP_ARGS} \
        --no-deps --wheel-dir /package /source

FROM dependencies
COPY --from=package /package /package
RUN /opt/precad/bin/pip install --no-cache-dir --disable-pip-version-check \
        --no-index --no-deps /package/*.whl \
    && groupadd --gid 10001 precad \
    && useradd --uid 10001 --gid 10001 --home-dir /precad --no-log-init precad \
    # A new volume takes over the owner of the folder that it is mounted on.
    && install -d -o precad -g precad /precad \
    && install -d -o precad -g precad -m 0700 /precad/state /precad/journal

# Nothing may be written outside state/, journal/ and /tmp, so that the root file system can be read-only.
ENV PATH=/opt/precad/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    MPLCONFIGDIR=/tmp/matplotlib
WORKDIR /precad
USER precad
ENTRYPOINT ["precad"]
CMD ["--help"]
