# A client of a fleet: Flower's SuperNode, the ClientApps below it, the engine that trains.
# Built from the repository's root: docker build -f docker/client.Dockerfile -t fedgc-client .
# For every platform of Debian and the wheels; nothing is compiled here.
FROM debian:bookworm-slim
SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# Bookworm's own Python is 3.11, the oldest that fedgc runs on.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* /usr/share/doc /usr/share/man \
    && python3 -m venv --without-pip /opt/fedgc \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /state --shell /usr/sbin/nologin fedgc

# torch is the largest part and changes rarely: a layer of its own. TORCH may name another build of it, and
# TORCH_INDEX its package index.
ARG TORCH=torch
ARG TORCH_INDEX=
WORKDIR /build
COPY constraints.txt ./
COPY docker/install.sh docker/
RUN --mount=type=bind,source=docker/wheels,target=/build/docker/wheels \
    PIP_EXTRA_INDEX_URL="${TORCH_INDEX}" docker/install.sh torch "${TORCH}"
COPY pyproject.toml ./
RUN --mount=type=bind,source=docker/wheels,target=/build/docker/wheels docker/install.sh needs
# Additional packages for your tasks, as pip requirements: "pandas pydicom==3.0.1".
ARG PACKAGES=
RUN --mount=type=bind,source=docker/wheels,target=/build/docker/wheels docker/install.sh packages "${PACKAGES}"
COPY README.md LICENSE ./
COPY fedgc fedgc
RUN --mount=type=bind,source=docker/wheels,target=/build/docker/wheels docker/install.sh fedgc

RUN install --directory --owner fedgc --group fedgc /state /cache /tasks

# The root is read-only when it runs: durable files are in /state and /cache.
ENV PATH=/opt/fedgc/bin:/usr/bin:/bin \
    PYTHONPATH=/tasks \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/state \
    XDG_STATE_HOME=/state \
    FLWR_HOME=/state/flower \
    FLWR_TELEMETRY_ENABLED=0 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2
USER 10001:10001
WORKDIR /state
HEALTHCHECK --interval=30s --timeout=15s --start-period=60s --retries=3 CMD ["fedgc", "deploy", "health", "client"]
ENTRYPOINT ["fedgc"]
CMD ["deploy", "client"]
