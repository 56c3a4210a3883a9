# The image of the probes: Debian with ucx-utils, perftest, fio, iproute2 and python3. The agent
# binds the probes' files at /lightloom/probe. A site without the rack builds it with
#   docker build --build-arg BASE=debian:bookworm-slim --build-arg PACKAGES=1 \
#     -t ll-probe:latest -f probe.Dockerfile .
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG PACKAGES=
RUN if [ -n "${PACKAGES}" ]; then \
      apt-get update \
   && apt-get install -y --no-install-recommends ucx-utils perftest fio iproute2 python3 \
   && rm -rf /var/lib/apt/lists/*; \
    fi
ENV PYTHONUNBUFFERED=1
