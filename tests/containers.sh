#!/usr/bin/env bash
# Proves Dockerfile and docker-compose.yml on a real engine: builds the images, runs the training
# of docker-compose.yml, and checks that it says its result and ends with one model on both servers,
# that no client reaches the dealer, and that each part holds its own key and no other. Then the same
# without a dealer, by deploy/compose/proof.yml.
#
#   tests/containers.sh
#
# FAULTS=1                 also kills server B in mid-training, and later puts it back from an old copy.
# OPERATING=1              also plays deploy/compose/operating.yml, with Debian's PostgreSQL and
#                          Prometheus unless POSTGRES_IMAGE and PROMETHEUS_IMAGE name others.
# PREVIOUS=REVISION        also begins a training with the images of that revision and ends it with
#                          these; its Dockerfile must know BUILDER, unless BASE is given.
#
# An engine that answers is used. Where none does and this is root, one is started for this run
# alone, with namespaces, a socket and storage of its own, from Debian's packages (installed if
# need be); nothing of it is left. Where there can be no engine, the script says "skipped" and
# why, and ends with 0.
#
# BASE=IMAGE PIP_ARGS="…"  a base image to use, and pip's arguments inside it. Without BASE one is
#                          made by debootstrap, and a builder with the lock's wheels inside, as pip
#                          gets them on this machine, so that the build itself needs no network.
# TORCH=cpu                torch's CPU build; the default where this machine's pip finds it.
# TRAINING_S=600 BUILD_S=1800
#                          how long a training and each step to the images may take.
# COMPOSE="docker-compose" which compose to use; "docker compose" where it is there.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly PARTS=(server_a server_b client-1 client-2 client-3)
readonly TRAINING_S=${TRAINING_S:-600} BUILD_S=${BUILD_S:-1800}
# What `make` set up, where it did; else any Python 3.11 with pip.
python=${PYTHON:-$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3.11)}
work=$(mktemp -d "${TMPDIR:-/tmp}/precad-containers.XXXXXX")
engine=
own_images=()
export COMPOSE_PROJECT_NAME=precad-test-$$ PRECAD_IMAGE=precad-test-$$
readonly IMAGES=("$PRECAD_IMAGE"-{dealer,server,client,simulation})
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
        docker image rm "${IMAGES[@]}" "${own_images[@]}" >/dev/null 2>&1
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

debian() { # FOLDER PACKAGES: a minimal Debian with these
    install_package debootstrap debootstrap || skip "debootstrap can't be installed; give BASE"
    quietly debootstrap timeout "$BUILD_S" debootstrap --variant=minbase --include="$2" bookworm "$1" \
        || skip "debootstrap gets no Debian here; give BASE"
    # Nothing that runs opens these: the images that others build on don't have them either.
    rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/* "$1"/usr/share/{doc,info,locale,man}/*
}

imported() { # FOLDER IMAGE
    tar -C "$1" -c . | docker import - "$2" >/dev/null
    own_images+=("$2")
}

locked() { # EXTRAS…: as the Dockerfile has it
    local build=()
    [[ ${TORCH-} != cpu ]] || build=(--cpu)
    "$python" deploy/locked.py "${build[@]}" "$@" <pyproject.toml
}

wheels() { # for the builder: what the lock names
    local into=("$python" -m pip download --dest "$work/base/wheels" --no-deps --require-hashes)
    for TORCH in ${TORCH:-cpu cuda}; do
        locked demo postgres >"$work/locked.txt"
        quietly wheels timeout "$BUILD_S" "${into[@]}" -r "$work/locked.txt" -r deploy/lock-build.txt && break
    done || fail "pip gets no wheels of the lock on this machine"
    export TORCH
}

wheels_of() { # REVISION, by its own pyproject.toml, which may know no lock
    git show "$1:pyproject.toml" >"$work/previous.toml"
    local pip=("$python" -m pip wheel --wheel-dir "$work/base/wheels") extras=(demo postgres)
    "$python" deploy/requirements.py "${extras[@]}" <"$work/previous.toml" >"$work/whole.txt"
    "$python" deploy/requirements.py --bare "${extras[@]}" <"$work/previous.toml" >"$work/bare.txt"
    quietly wheels timeout "$BUILD_S" "${pip[@]}" 'setuptools>=77' -r "$work/whole.txt" \
        || fail "pip gets no wheels for $1 on this machine"
    quietly bare timeout 600 "${pip[@]}" --no-deps -r "$work/bare.txt" \
        || fail "pip gets no wheels for $1 on this machine"
}

make_base() {
    ((EUID == 0)) || skip "a base image can only be made by root; give BASE"
    say "making a base image"
    debian "$work/base" python3,python3-pip,python3-venv,ca-certificates
    imported "$work/base" "precad-test-base-$$"
    wheels
    [[ -z ${PREVIOUS-} ]] || wheels_of "$PREVIOUS"
    imported "$work/base" "precad-test-builder-$$"
    rm -rf "$work/base"
    export BASE=precad-test-base-$$ BUILDER=precad-test-builder-$$
    export PIP_ARGS="--no-index --find-links=/wheels"
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

for file in cli/machines/*.yml; do
    "${compose_command[@]}" --file "$file" config --quiet || fail "$file isn't valid"
done

# What images say of themselves.
build_version=$("$python" deploy/build_version.py --environment)
export $build_version
SECONDS=0
quietly build timeout "$BUILD_S" "${compose[@]}" build dealer server_a client-1 records \
    || fail "the images don't build"
say "images built in $SECONDS s"
megabytes() { echo $(($(docker image inspect --format '{{.Size}}' "$1") / 1000000)); }
for image in "${IMAGES[@]}"; do
    say "$image: $(megabytes "$image") MB, its base $(megabytes "${BASE:-python:3.11-slim}")"
done

label() { # IMAGE NAME
    docker image inspect --format "{{index .Config.Labels \"org.opencontainers.image.$2\"}}" "$1"
}

holds_the_lock() { # IMAGE EXTRAS…: those files and no others, and says which build it is
    local version
    version=$(docker run --rm "$1" --version)
    [[ $version == *"$PRECAD_VERSION"* && $(label "$1" version) == "$PRECAD_VERSION" \
        && $(label "$1" revision) == "$PRECAD_REVISION" && $(label "$1" created) == "$PRECAD_CREATED" ]] \
        || fail "$1 is $version, and labelled $(docker image inspect --format '{{.Config.Labels}}' "$1")"
    # What a marker keeps for other Pythons and systems isn't missing here.
    locked "${@:2}" >"$work/lock"
    grep -oE '^[a-z][^ ]*' "$work/lock" | sort >"$work/locked"
    grep -oE '^[a-z][^ ]* \\' "$work/lock" | sed 's/==.*//' | sort -u >"$work/unconditional"
    docker run --rm --entrypoint python "$1" -c 'import re
from importlib.metadata import distributions
for each in distributions():
    name = re.sub("[-_.]+", "-", each.name).lower()
    if name != "precad": print(f"{name}=={each.version}")' | sort >"$work/held"
    [[ -s $work/held ]] || fail "$1 holds nothing"
    comm -13 "$work/locked" "$work/held" >"$work/foreign"
    [[ ! -s $work/foreign ]] || fail "$1 holds what its lock hasn't: $(<"$work/foreign")"
    comm -13 <(sed 's/==.*//' "$work/held" | sort -u) "$work/unconditional" >"$work/missing"
    [[ ! -s $work/missing ]] || fail "$1 lacks of its lock: $(<"$work/missing")"
}
holds_the_lock "$PRECAD_IMAGE-dealer" dealer
holds_the_lock "$PRECAD_IMAGE-server" server postgres
holds_the_lock "$PRECAD_IMAGE-client" client
holds_the_lock "$PRECAD_IMAGE-simulation" simulation report postgres
say "images are $PRECAD_VERSION, and hold what the lock has for them"

starts() { # in the background
    SECONDS=0
    quietly up timeout 300 "${compose[@]}" up --detach "$@" || fail "the containers don't start"
}

ends() { # WHAT PARTS…: servers and owners, and these
    for part in "${PARTS[@]}" "${@:2}"; do
        status=$(timeout $((TRAINING_S > SECONDS ? TRAINING_S - SECONDS : 1)) \
            docker wait "$(container "$part")") || fail "$part didn't end within $TRAINING_S s"
        ((status == 0)) || fail "$part ended with status $status"
    done
    digest=$(final_model server_a | tail -n 1)
    [[ $digest =~ ^[0-9a-f]{64}$ ]] || fail "server_a states no final model"
    for part in "${PARTS[@]}"; do
        [[ $(final_model "$part" | sort -u) == "$digest" ]] \
            || fail "server_a and $part end with different models"
    done
    say "$1: ended after $SECONDS s, everybody with model $digest"
}

says_result() {
    docker logs "$(container result)" >"$work/result.log" 2>&1
    # The operator's key is where compose has it, and reaches a server that runs.
    for said in "done: round" "% right" "ε = " "the model: " "the report: "; do
        grep -q "$said" "$work/result.log" || fail "no $said in: $(<"$work/result.log")"
    done
}

rounds_done() {
    "${compose[@]}" run --rm --no-deps -T operator status server_a:7301 --identity keys --json \
        2>>"$work/status.log" | tail -n 1 >"$work/status.json" || return
    "$python" -c 'import json, sys; print(json.load(sys.stdin)["version"])' <"$work/status.json"
}

until_round() { # N
    local now
    until now=$(rounds_done 2>>"$work/status.log") && ((now >= $1)); do
        ((SECONDS < TRAINING_S)) || fail "round $1 didn't come: $(<"$work/status.log")"
        sleep 0.5
    done
}

until_b_serves() { # for the Nth time: a start that is stopped before is none
    until docker logs "$(container server_b)" 2>&1 | grep -c "serves task" | grep -qx "$1"; do
        ((SECONDS < TRAINING_S)) || fail "server B didn't start for the ${1}th time"
        sleep 0.5
    done
}

dealer_out_of_reach() {
    local address
    address=$(docker inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' \
        "$(container dealer)")
    until connects server_b dealer 7303; do
        ((SECONDS < 60)) || fail "server_b doesn't reach the dealer: $(<"$work/connect.log")"
        sleep 1
    done
    connects server_b "$address" 7303 || fail "server_b doesn't reach the dealer at its address"
    for host in dealer "$address"; do
        if connects client-1 "$host" 7303; then
            fail "a client reaches the dealer at $host"
        fi
        grep -qE 'gaierror|TimeoutError|unreachable' "$work/connect.log" \
            || fail "no probe from client-1: $(<"$work/connect.log")"
    done
    say "the dealer is out of the clients' reach"
}

own_files_only() { # PARTS
    for part; do
        name=${part//_/-}
        mounts=$(docker inspect --format '{{range .Mounts}}{{if eq .Type "volume"}}{{.Name}}
{{else}}{{.Source}}
{{end}}{{end}}' "$(container "$part")" | sed '/^$/d')
        foreign=$(grep -vE "^${COMPOSE_PROJECT_NAME}_$name-[a-z]+\$|/(deploy/(proof/)?$name|task)\.toml\$" \
            <<<"$mounts" || true)
        [[ $mounts == *"_$name-keys"* && -z $foreign ]] || fail "$part has other mounts: $foreign"
    done
    say "every part has its own keys, settings and state only"
}

# Attached, as people start it: it comes back by itself, and says how the training went.
SECONDS=0
timeout "$TRAINING_S" "${compose[@]}" up --no-color >"$work/attached.log" 2>&1 \
    || { tail -n 30 "$work/attached.log" >&2; fail "\`up\` didn't end well within $TRAINING_S s"; }
ends "\`up\`, attached" dealer result
says_result
sed 's/^/containers: result: /' "$work/result.log"
first=$digest

# With its volumes in place, a finished training comes back as it was.
starts
ends "a second \`up\`"
[[ $digest == "$first" ]] || fail "it came back with another model"
own_files_only dealer "${PARTS[@]}"
# It ended with its training; by itself it stays.
starts dealer
dealer_out_of_reach
again() { quietly down "${compose[@]}" down --volumes --timeout 5 || fail "it can't be removed"; }

# Two servers and the owners are all there is: no dealer's container, and no key of one.
without_dealer() {
    again
    compose=("${compose_command[@]}" --file docker-compose.yml --file deploy/compose/proof.yml)
    starts
    ends "without a dealer" result
    says_result
    own_files_only "${PARTS[@]}"
    [[ -z $(container dealer) ]] || fail "there is a dealer"
    docker run --rm --user root --entrypoint sh -v "${COMPOSE_PROJECT_NAME}_dealer-keys:/keys" \
        "$PRECAD_IMAGE-dealer" -ceu 'test -z "$(ls /keys)"' || fail "there is a key of a dealer"
    "${compose[@]}" down --volumes --remove-orphans --timeout 5 >/dev/null 2>&1
    compose=("${compose_command[@]}")
}
without_dealer

# A longer training, in which server B is killed, comes back, and is later put back from an old copy.
copy() { # COMMAND, with B's volume in /state and the copy in /copies
    docker run --rm --user root --entrypoint sh -v "${COMPOSE_PROJECT_NAME}_server-b-state:/state" \
        -v "$copies:/copies" "$PRECAD_IMAGE-dealer" -ceu "$1"
}

last_longer() { # so that what happens in mid-training doesn't come too late
    sed 's/^rounds = .*/rounds = 40/' deploy/task.toml >"$work/task.toml"
    export TASK=$work/task.toml
}

faults() {
    again
    local copies=precad-test-copies-$$
    last_longer
    starts
    until_round 3
    docker kill --signal KILL "$(container server_b)" >/dev/null
    docker start "$(container server_b)" >/dev/null
    until_b_serves 2
    until_round 6
    docker stop --time 20 "$(container server_b)" >/dev/null
    copy 'cp -a /state/. /copies'
    docker start "$(container server_b)" >/dev/null
    until_b_serves 3
    until_round 12
    docker stop --time 20 "$(container server_b)" >/dev/null
    copy 'find /state -mindepth 1 -delete; cp -a /copies/. /state'
    docker start "$(container server_b)" >/dev/null
    ends "killed and put back" dealer result
    docker volume rm "$copies" >/dev/null
    until_b_serves 4
    says_result
}

until_scraped() { # a or b; one that was away isn't there before the next look
    until docker exec "$(container "prometheus_$1")" promtool query instant \
        http://127.0.0.1:9090 'precad_rounds_done' >"$work/query.log" 2>&1 \
        && grep -q 'role="\|precad_rounds_done' "$work/query.log"; do
        ((SECONDS < TRAINING_S)) || fail "prometheus_$1 has no rounds: $(<"$work/query.log")"
        sleep 1
    done
}

operating() {
    if [[ -z ${POSTGRES_IMAGE-} || -z ${PROMETHEUS_IMAGE-} ]]; then
        say "making images of Debian's PostgreSQL and Prometheus"
        debian "$work/peers" postgresql,prometheus
        imported "$work/peers" "precad-test-peers-$$"
        rm -rf "$work/peers"
        local peer
        for peer in postgres prometheus; do
            quietly "$peer" docker build --tag "precad-test-$peer-$$" \
                --build-arg "BASE=precad-test-peers-$$" --file "tests/peers/$peer.Dockerfile" \
                tests/peers || fail "no image of $peer"
            own_images+=("precad-test-$peer-$$")
        done
        export POSTGRES_IMAGE=precad-test-postgres-$$ PROMETHEUS_IMAGE=precad-test-prometheus-$$
    fi
    again
    compose=("${compose_command[@]}" --file docker-compose.yml --file deploy/compose/operating.yml)
    last_longer
    starts
    until_round 3
    docker kill --signal KILL "$(container server_b)" "$(container database_b)" >/dev/null
    docker start "$(container database_b)" "$(container server_b)" >/dev/null
    until_round 6
    for server in a b; do
        until_scraped "$server"
    done
    ends "with PostgreSQL and Prometheus, database and server B killed" dealer result
    says_result
    "${compose[@]}" down --volumes --remove-orphans --timeout 5 >/dev/null 2>&1
    compose=("${compose_command[@]}")
}

upgrade() { # REVISION
    again
    mkdir "$work/previous"
    git archive "$1" | tar -C "$work/previous" -x
    (cd "$work/previous" && PRECAD_IMAGE=precad-test-previous-$$ \
        quietly build-previous timeout "$BUILD_S" "${compose[@]}" build dealer server_a client-1 records) \
        || fail "the images of $1 don't build"
    local image
    for image in dealer server client simulation; do
        own_images+=("precad-test-previous-$$-$image")
    done
    last_longer
    PRECAD_IMAGE=precad-test-previous-$$ starts dealer server_a server_b client-1 client-2 client-3
    until_round 3
    quietly stop "${compose[@]}" stop --timeout 20 || fail "the previous version doesn't stop"
    starts
    ends "begun by $1, ended by this version" dealer result
    says_result
}

[[ -z ${FAULTS-} ]] || faults
[[ -z ${OPERATING-} ]] || operating
[[ -z ${PREVIOUS-} ]] || upgrade "$PREVIOUS"
say "passed"
