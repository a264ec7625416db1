ARG BASE
FROM ${BASE}
RUN install -d -o nobody /prometheus
USER nobody
ENTRYPOINT ["prometheus"]
