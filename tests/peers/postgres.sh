#!/bin/sh
# Debian's PostgreSQL, begun as the official image begins it: `postgres OPTIONS…`.
set -eu
data=/var/lib/postgresql/data
for bin in /usr/lib/postgresql/*/bin; do :; done
if [ ! -e $data/PG_VERSION ]; then
    install -o postgres -m 0600 "$POSTGRES_PASSWORD_FILE" /tmp/password
    chown postgres $data
    su postgres -c "$bin/initdb --pgdata=$data --username=$POSTGRES_USER --auth=scram-sha-256 --pwfile=/tmp/password"
    rm /tmp/password
    echo "host all all all scram-sha-256" >>$data/pg_hba.conf
    echo "CREATE DATABASE $POSTGRES_DB" | su postgres -c "$bin/postgres --single -D $data postgres"
fi
shift
exec setpriv --reuid=postgres --regid=postgres --clear-groups \
    "$bin/postgres" -D $data -c listen_addresses='*' -c unix_socket_directories=/tmp "$@"
