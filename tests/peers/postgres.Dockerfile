ARG BASE
FROM ${BASE}
COPY postgres.sh /
ENV PGHOST=/tmp
ENTRYPOINT ["/postgres.sh"]
