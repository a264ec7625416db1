# One file for every part: an image holds what EXTRA names, and its command says what it plays.
#
#   docker build --build-arg EXTRA=server -t precad-server .
#
# EXTRA     client, server or dealer, or demo for all; any of pyproject's, with commas between.
# BASE      any image with Python 3.11 (python3 and venv) on glibc; the image stands on it. A tag may
#           name another image tomorrow, a digest can't: BASE=python:3.11-slim@sha256:…
# BUILDER   what installs, with pip: BASE unless given. Nothing of it gets into the image, so it may
#           have wheels and compilers inside; its Python is BASE's, in the same place.
# LOCK      every file that pip installs is of the versions and hashes of deploy/lock.txt; empty, pip
#           takes what it finds within pyproject's bounds.
# TORCH     cuda, as the public index has it, or cpu: several GB less, from where PIP_ARGS says.
# PIP_ARGS  further arguments for pip, such as where to look for packages. They are recorded in
#           the builder's history: no passwords.
# VERSION, REVISION, CREATED
#           of the source, as `python3 deploy/build_version.py --environment` says them: git isn't
#           there in the build. Without them the image's version ends with .dev0.
# SOURCE    an address where the source is published, for the image's labels.
ARG BASE=python:3.11-slim
ARG BUILDER=

# The requirements by themselves: as long as they stay the same, the layer with torch, CrypTen
# and the others is taken from the cache, whatever else changes in pyproject.toml or the source.
FROM ${BUILDER:-${BASE}} AS requirements
ARG EXTRA=demo
ARG LOCK=yes
ARG TORCH=cuda
COPY pyproject.toml deploy/requirements.py deploy/locked.py deploy/lock*.txt /
# What pip installs by itself, and what with all that it asks for: a lock has all of it already.
RUN set -eu; extras=$(echo ${EXTRA} | tr , ' '); \
    case ${TORCH} in cpu) build=--cpu;; cuda) build=;; *) echo "TORCH=${TORCH}: cpu or cuda" >&2; exit 1;; esac; \
    if test -n "${LOCK}"; then \
        python3 /locked.py ${build} ${extras} < /pyproject.toml > /bare.txt; \
        cp /lock-build.txt /build.txt; \
        : > /whole.txt; \
    else \
        python3 /requirements.py ${extras} < /pyproject.toml > /whole.txt; \
        python3 /requirements.py --bare ${extras} < /pyproject.toml > /bare.txt; \
        echo 'setuptools>=77' > /build.txt; \
    fi

FROM ${BUILDER:-${BASE}} AS dependencies
ARG PIP_ARGS=
ARG LOCK=yes
COPY --from=requirements /whole.txt /bare.txt /
COPY deploy/slim.py /
RUN python3 -m venv --without-pip /opt/precad \
    && pip="python3 -m pip --python /opt/precad/bin/python install --no-cache-dir --no-compile \
        --disable-pip-version-check ${PIP_ARGS}" \
    && if test -s /whole.txt; then $pip -r /whole.txt; fi \
    && if test -s /bare.txt; then $pip --no-deps ${LOCK:+--require-hashes} -r /bare.txt; fi \
    && python3 /slim.py /opt/precad

# The same for every EXTRA.
FROM ${BUILDER:-${BASE}} AS package
ARG PIP_ARGS=
ARG LOCK=yes
ARG VERSION=
ARG REVISION=
# The projections' kernel is compiled where the builder has a C compiler or Debian's can be had; the
# image works without it.
RUN command -v cc >/dev/null \
    || { timeout 60 apt-get update -qq -o Acquire::Retries=0 \
         && apt-get install -qq --yes --no-install-recommends -o Acquire::Retries::Delay=false \
            gcc libc6-dev; } \
    || echo "no C compiler: NumPy computes the projections"
COPY --from=requirements /build.txt /
RUN python3 -m venv /building && python3 -m venv --without-pip /opt/precad \
    && /building/bin/pip install --no-cache-dir --disable-pip-version-check ${PIP_ARGS} \
        ${LOCK:+--require-hashes} -r /build.txt
COPY . /source
RUN PRECAD_BUILD="${VERSION:+${VERSION} ${REVISION}}" /building/bin/pip wheel --no-cache-dir \
        --disable-pip-version-check --no-index --no-build-isolation --no-deps --wheel-dir /package /source \
    && python3 -m pip --python /opt/precad/bin/python install --root /installed --no-cache-dir \
        --disable-pip-version-check --no-index --no-deps /package/*.whl

FROM ${BASE}
COPY --from=dependencies /opt/precad /opt/precad
COPY --from=package /installed /
COPY deploy/compile.py /tmp/
RUN /opt/precad/bin/python /tmp/compile.py && rm /tmp/compile.py \
    && groupadd --gid 10001 precad \
    && useradd --uid 10001 --gid 10001 --home-dir /precad --no-log-init precad \
    # A new volume takes over the owner of the folder that it is mounted on.
    && install -d -o precad -g precad /precad \
    && install -d -o precad -g precad -m 0700 /precad/state /precad/journal /precad/results

# Nothing may be written outside state/, journal/, results/ and /tmp, so that the root file system can be read-only.
ENV PATH=/opt/precad/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    MPLCONFIGDIR=/tmp/matplotlib
WORKDIR /precad
USER precad
ENTRYPOINT ["precad"]
CMD ["--help"]

# Last: what differs from build to build leaves the layers before it in the cache.
ARG BASE
ARG EXTRA=demo
ARG VERSION=
ARG REVISION=
ARG CREATED=
ARG SOURCE=
LABEL org.opencontainers.image.title="precad: ${EXTRA}" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.created="${CREATED}" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.source="${SOURCE}" \
    org.opencontainers.image.base.name="${BASE}"
