#!/usr/bin/env bash
# Proves Dockerfile and docker-compose.yml on a real engine: builds the image, runs the training
# of docker-compose.yml, and checks that it finished with one model on both servers, that no
# client reaches the dealer, and that each part holds its own key and no other.
#
#   tests/containers.sh
#
# An engine that answers is used. Where none does and this is root, one is started for this run
# alone, with namespaces, a socket and storage of its own, from Debian's packages (installed if
# need be); nothing of it is left. Where there can be no engine, the script says "skipped" and
# why, and ends with 0.
#
# BASE=IMAGE PIP_ARGS="…"  a base image to use, and pip's arguments inside it. Without BASE one is
#                          made by debootstrap, with the wheels that pip gets on this machine
#                          inside, so that the build itself needs no network.
# COMPOSE="docker-compose" which compose to use; "docker compose" where it is there.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly PARTS=(server_a server_b client-1 client-2 client-3)
readonly TRAINING_S=300
# What `make` set up, where it did; else any Python 3.11 with pip.
python=${PYTHON:-$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3.11)}
work=$(mktemp -d "${TMPDIR:-/tmp}/precad-containers.XXXXXX")
engine=
own_base=
export COMPOSE_PROJECT_NAME=precad-test-$$ PRECAD_IMAGE=precad-test-$$
readonly IMAGES=("$PRECAD_IMAGE"-{dealer,server,client,experiments})
# BuildKit is no part of Debian's packages.
export DOCKER_BUILDKIT=0 COMPOSE_DOCKER_CLI_BUILD=0

say() { echo "containers: $*"; }
skip() { say "skipped: $*"; exit 0; }
fail() { say "FAILED: $*" >&2; exit 1; }

clean_up() {
    local status=$?
    trap - EXIT
    set +e
    if [[ -n ${compose[*]-} ]]; then
        if ((status != 0)); then
            "${compose[@]}" logs --no-color --tail 20 2>&1
        fi
        "${compose[@]}" down --volumes --remove-orphans --timeout 5 >"$work/down.log" 2>&1 \
            || cat "$work/down.log"
        docker image rm "${IMAGES[@]}" ${own_base:+"$own_base"} >/dev/null 2>&1
    fi
    if [[ -n $engine ]]; then
        # The engine is the first process of its namespaces: all else in them ends with it.
        kill -KILL "$engine" 2>/dev/null
        wait "$engine" 2>/dev/null
    fi
    rm -rf "$work"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

quietly() { # NAME COMMAND…: runs it; shows what it printed only if it fails.
    local log=$work/$1.log
    shift
    "$@" >"$log" 2>&1 || { tail -n 30 "$log" >&2; return 1; }
}

install_package() { # COMMAND PACKAGE
    command -v "$1" >/dev/null && return
    ((EUID == 0)) && command -v apt-get >/dev/null || return
    say "installing Debian's $2"
    quietly "apt-$2" timeout 300 apt-get install -qq --no-install-recommends --yes "$2" \
        || { quietly apt-update timeout 300 apt-get update -qq \
            && quietly "apt-$2" timeout 300 apt-get install -qq --no-install-recommends --yes "$2"; }
}

start_engine() {
    ((EUID == 0)) || skip "no container engine answers, and only root can start one"
    install_package dockerd docker.io || skip "no container engine, and docker.io can't be installed"
    install_package iptables iptables || skip "iptables can't be installed"
    export DOCKER_HOST=unix://$work/engine.sock
    # Networks, mounts and processes of its own: this machine's aren't touched, and all ends with it.
    unshare --net --mount --pid --fork --kill-child --mount-proc \
        dockerd --host "$DOCKER_HOST" --data-root "$work/engine" --exec-root "$work/exec" \
        --pidfile "$work/engine.pid" >"$work/engine.log" 2>&1 &
    engine=$!
    for _ in {1..60}; do
        docker info >/dev/null 2>&1 && return
        kill -0 "$engine" 2>/dev/null || break
        sleep 0.5
    done
    skip "dockerd doesn't start here: $(tail -n 1 "$work/engine.log")"
}

make_base() {
    ((EUID == 0)) || skip "a base image can only be made by root; give BASE"
    install_package debootstrap debootstrap || skip "debootstrap can't be installed; give BASE"
    say "making a base image"
    quietly debootstrap timeout 600 debootstrap --variant=minbase \
        --include=python3,python3-pip,python3-venv,ca-certificates bookworm "$work/base" \
        || skip "debootstrap gets no Debian here; give BASE"
    "$python" deploy/requirements.py demo <pyproject.toml >"$work/requirements.txt"
    quietly wheels timeout 600 "$python" -m pip wheel --wheel-dir "$work/base/wheels" \
        'setuptools>=77' -r "$work/requirements.txt" || fail "pip gets no wheels on this machine"
    own_base=precad-test-base-$$
    tar -C "$work/base" -c . | docker import - "$own_base" >/dev/null
    rm -rf "$work/base"
    export BASE=$own_base PIP_ARGS="--no-index --find-links=/wheels"
}

# Exit status 0 if a container of this part can connect to the address.
connects() { # SERVICE HOST PORT
    "${compose[@]}" run --rm --no-deps -T --entrypoint python "$1" -c \
        'import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)' \
        "$2" "$3" >"$work/connect.log" 2>&1
}

container() { "${compose[@]}" ps --all --quiet "$1"; }

final_model() { # SERVICE: the digest of the final model, each time that its log states one
    docker logs "$(container "$1")" 2>&1 | sed -nE 's/.*(final model|rounds: model) ([0-9a-f]{64})( .*)?$/\2/p'
}

docker info >/dev/null 2>&1 || start_engine
if [[ -n ${COMPOSE-} ]]; then
    read -ra compose_command <<<"$COMPOSE"
elif docker compose version >/dev/null 2>&1; then
    compose_command=(docker compose)
else
    install_package docker-compose docker-compose || skip "there is no docker compose"
    compose_command=(docker-compose)
fi
[[ -n ${BASE-} ]] || make_base
compose=("${compose_command[@]}")
say "engine $(docker version --format '{{.Server.Version}}'), $("${compose[@]}" version --short)"

for file in cli/kit/machines/*.yml; do
    "${compose_command[@]}" --file "$file" config --quiet || fail "$file isn't valid"
done

SECONDS=0
quietly build timeout 1800 "${compose[@]}" build dealer server_a client-1 records \
    || fail "the images don't build"
say "images built in $SECONDS s"
for image in "${IMAGES[@]}"; do
    say "$image: $(($(docker image inspect --format '{{.Size}}' "$image") / 1000000)) MB"
done

# The operator's key is where compose has it, and reaches a server that runs.
operator_looks() {
    until "${compose[@]}" run --rm --no-deps -T operator status server_a:7301 --identity keys \
        --json >"$work/status.log" 2>&1; do
        ((SECONDS < TRAINING_S)) || fail "the operator hears nothing: $(<"$work/status.log")"
        sleep 1
    done
    grep -q '"role": "server-a"' "$work/status.log" || fail "no status: $(<"$work/status.log")"
    say "the operator asked server A after $SECONDS s"
}

run_training() {
    SECONDS=0
    quietly up timeout 300 "${compose[@]}" up --detach || fail "the containers don't start"
    [[ -z ${1-} ]] || "$1"
    for part in "${PARTS[@]}"; do
        status=$(timeout $((TRAINING_S > SECONDS ? TRAINING_S - SECONDS : 1)) \
            docker wait "$(container "$part")") || fail "$part didn't end within $TRAINING_S s"
        ((status == 0)) || fail "$part ended with status $status"
    done
    say "training finished in $SECONDS s"
}

run_training operator_looks
digest=$(final_model server_a)
[[ $digest =~ ^[0-9a-f]{64}$ ]] || fail "server_a states no final model"
for part in "${PARTS[@]}"; do
    [[ $(final_model "$part") == "$digest" ]] || fail "server_a and $part end with different models"
done
say "servers and clients have model $digest"

# With its volumes in place, a finished training comes back as it was.
run_training
for part in "${PARTS[@]}"; do
    [[ $(final_model "$part" | sort -u) == "$digest" ]] || fail "$part came back with another model"
done

address=$(docker inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' \
    "$(container dealer)")
connects server_b dealer 7303 || fail "server_b doesn't reach the dealer: $(<"$work/connect.log")"
connects server_b "$address" 7303 || fail "server_b doesn't reach the dealer at its address"
for host in dealer "$address"; do
    if connects client-1 "$host" 7303; then
        fail "a client reaches the dealer at $host"
    fi
    grep -qE 'gaierror|TimeoutError|unreachable' "$work/connect.log" \
        || fail "no probe from client-1: $(<"$work/connect.log")"
done
say "the dealer is out of the clients' reach"

for part in dealer "${PARTS[@]}"; do
    name=${part//_/-}
    mounts=$(docker inspect --format '{{range .Mounts}}{{if eq .Type "volume"}}{{.Name}}
{{else}}{{.Source}}
{{end}}{{end}}' "$(container "$part")" | sed '/^$/d')
    foreign=$(grep -vE "^${COMPOSE_PROJECT_NAME}_$name-[a-z]+\$|/deploy/(task|$name)\.toml\$" \
        <<<"$mounts" || true)
    [[ $mounts == *"_$name-keys"* && -z $foreign ]] || fail "$part has other mounts: $foreign"
done
say "every part has its own keys, settings and state only"

docker stop --time 10 "$(container dealer)" >/dev/null
status=$(docker inspect --format '{{.State.ExitCode}}' "$(container dealer)")
((status == 0)) || fail "the dealer, told to stop, ended with status $status"
say "passed"
