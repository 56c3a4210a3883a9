"""``python -m container_mgr``: runs the agent as a process."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

import structlog

from container_mgr.daemon import AgentConfig, AgentStartError, parse_endpoints, run
from container_mgr.hardware.nvml import DEFAULT_LIBRARY


def main() -> int:
    """Run the agent. Returns 1, after one line on stderr, when it cannot serve."""
    parser = argparse.ArgumentParser(prog="container_mgr", description="The per-server agent.")
    parser.add_argument("--server", required=True, help="this server's name in the site file")
    parser.add_argument("--listen", default="127.0.0.1:7701", metavar="HOST:PORT")
    parser.add_argument("--nic-netns", help="network namespace of the server's NICs")
    parser.add_argument("--docker-host", help="URL of the Docker Engine")
    parser.add_argument("--endpoints", default="", help="NAME=NIC,… or a JSON list")
    parser.add_argument("--state-dir", type=Path, help="default: /run/lightloom/agent-SERVER")
    parser.add_argument("--cgroup", default="ll-rack", help="parent cgroup of the containers")
    parser.add_argument(
        "--tls",
        type=Path,
        required=True,
        metavar="DIR",
        help="mutual TLS: files of `lightloom pki issue agent`",
    )
    parser.add_argument(
        "--nvml-library", default=DEFAULT_LIBRARY, metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument(
        "--job-map", type=Path, metavar="DIR", help="for dcgm-exporter --hpc-job-mapping-dir"
    )
    parser.add_argument(
        "--require-digest", action="store_true", help="refuse images named by a tag, which may move"
    )
    parser.add_argument(
        "--registry",
        action="append",
        default=[],
        metavar="HOST[:PORT][/PATH]",
        help="images may be fetched from here; repeatable (default: none are fetched)",
    )
    options = parser.parse_args()
    structlog.configure(
        processors=log_processors(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        run(
            AgentConfig(
                server=options.server,
                listen=options.listen,
                nic_netns=options.nic_netns,
                docker_host=options.docker_host,
                endpoints=parse_endpoints(options.endpoints),
                state_dir=options.state_dir,
                cgroup=options.cgroup,
                tls=options.tls,
                nvml_library=options.nvml_library,
                job_map=options.job_map,
                require_digest=options.require_digest,
                registries=options.registry,
                ready=_print_ready,
            )
        )
    except AgentStartError as error:
        print(f"{error.code}: {error.obj}: {error} ({error.hint})", file=sys.stderr)
        return 1
    return 0


def log_processors() -> list[structlog.typing.Processor]:
    """Format log lines for people on a terminal, elsewhere as one JSON document per line."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if sys.stderr.isatty():
        # The default shows the values of local variables, which may be secrets.
        plain = structlog.dev.plain_traceback
        return [*shared, structlog.dev.ConsoleRenderer(exception_formatter=plain)]
    return [*shared, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _print_ready(address: str) -> None:
    """Print one JSON line on stdout for the process that started this one."""
    print(json.dumps({"event": "listening", "address": address}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
