"""Brings a rack up, completely or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from sitefile import CabledSite, Emulation, load_site
from testbed import processes as kernel_view
from testbed.engine import DockerEngine, DockerEngineError, EngineInfo, builder_engine, host_engine
from testbed.image.build import ensure_image
from testbed.image.errors import ImageError
from testbed.image.probe import ensure_probe_image
from testbed.image.unpacked import ensure_unpacked
from testbed.rack import gpus, locks, network, ovs, preflight, procfs, programs, record, shaping
from testbed.rack.down import take_down
from testbed.rack.errors import RackError
from testbed.rack.layout import RackLayout, lay_out
from testbed.rack.process import Process, ProgramSpec, accepts, marked, spawn, wait_ready
from testbed.rack.record import RackRecord
from testbed.rack.slurm import engines
from testbed.rack.slurm.config import UnderSlurm
from testbed.rack.status import RackStatus, of_record
from testbed.token import rack_token

RUN_DIR = preflight.RACKS / "rack"
KEPT_LOGS = Path("/var/lib/lightloom/failed-up")
"""Logs of the last rack that failed to start; the rack itself is removed."""

# A process that dies is detected immediately; only a hanging one takes the full time. On two busy
# cores the agents of a rack, which start together, take a minute.
OVS_READY_S = 60.0
OCS_READY_S = 60.0
AGENT_READY_S = 120.0
CONTROLLER_READY_S = 180.0
PROBE_TIMEOUT_S = 10.0

Progress = Callable[[str], None]


def up(
    site_path: Path,
    run_dir: Path = RUN_DIR,
    *,
    progress: Progress,
    slurm: UnderSlurm | None = None,
) -> RackStatus:
    """Bring up the rack of ``site_path`` and return when its controller reaches every device.

    With ``slurm`` some or all endpoints belong to a Slurm of the rack's own.

    ``progress`` gets one line per step. Raises RackError or SiteFileError; then all objects
    created so far are removed, and the logs are kept in KEPT_LOGS. A rack that is already up, or
    remains of one, is RackError(conflict) and does not change.
    """
    preflight.need_root()
    site = load_site(site_path)
    layout = lay_out(site)
    emulation = site.emulation
    if emulation is None:
        raise RackError(
            "invalid",
            f"{site_path} describes a real rack: it has no 'emulation' section",
            object=str(site_path),
            hint="add an emulation section, or run `lightloom controller --site` for a real rack",
        )
    shaping.check_rate("emulation.access_bps", emulation.access_bps)
    shaping.check_rate("emulation.inter_aggregator_bps", emulation.inter_aggregator_bps)
    preflight.need_tools()
    run_dir = run_dir.absolute()
    with locks.RACK.held():
        preflight.need_absent(run_dir, layout)
        preflight.need_free(preflight.addresses(site).items())
        start = _Start(
            site_path.absolute(),
            site,
            emulation,
            layout,
            run_dir,
            progress,
            slurm,
            RackRecord(
                phase="starting",
                site=site.name,
                site_file=str(site_path.absolute()),
                url=f"http://{site.api_listen}",
                started_at=time.time(),
                access_bps=emulation.access_bps,
                inter_aggregator_bps=emulation.inter_aggregator_bps,
            ),
        )
        try:
            with marked(run_dir):
                return start.run()
        except BaseException as error:
            progress("failed; taking the rack down")
            explained = _keep_logs(run_dir, error)
            take_down(run_dir, progress=lambda _: None)
            if explained is not None:
                raise explained from error
            raise


@dataclass(slots=True)
class _Start:
    """A start in progress; the record on disk always lists all processes started so far."""

    _site_path: Path
    _site: CabledSite
    _emulation: Emulation
    _layout: RackLayout
    _dir: Path
    _progress: Progress
    _slurm: UnderSlurm | None
    _record: RackRecord

    def run(self) -> RackStatus:
        """Perform all steps; Docker Engine takes longest and starts in parallel to the network."""
        self._dir.mkdir(parents=True, exist_ok=True)
        self._save()  # first: a folder without a record is not taken down
        record.logs(self._dir).mkdir()
        shutil.copyfile(self._site_path, record.site_copy(self._dir))
        if self._slurm is not None:
            self._progress("Slurm's packages (unpacked if missing)")
            self._site_path = record.site_copy(self._dir)
            self._site = engines.under_slurm(self._site, self._dir, self._slurm)
        programs.make_certificates(self._dir, self._site)
        with ThreadPoolExecutor(max_workers=1) as beside:
            engine = beside.submit(_start_engine, self._dir, self._progress)
            self._start_network()
            self._start_switches()
            self._progress("Docker Engine")
            info = engine.result()
        self._take_engine(info)
        env = programs.python_environment(os.environ)
        self._make_volumes()
        gpus.prepare(self._dir, self._site)
        self._start_agents(env)
        if self._slurm is not None:
            self._progress(f"slurmctld, slurmrestd and {len(self._site.engine_endpoints)} slurmd")
            engines.start(self._site, self._dir, self._unpacked(info), self._spawn, env)
        self._start_controller(env)
        if self._slurm is not None:
            engines.let_in(self._site, self._dir, self._record.url)
        self._save(phase="up")
        return of_record(self._dir, self._record)

    def _start_network(self) -> None:
        self._progress("namespaces, fibers and uplinks")
        network.build(self._layout)
        self._progress("aggregators (Open vSwitch)")
        ovs.create_database(self._dir)
        database = self._spawn(ovs.database_program(self._dir))
        at = ovs.database_socket(self._dir)
        wait_ready(database, lambda: accepts(at), timeout_s=OVS_READY_S)
        ovs.prepare(self._dir)
        self._spawn(ovs.switch_program(self._dir))
        ovs.use_certificate(self._dir, programs.tls_directory(self._dir, programs.AGGREGATORS))
        ovs.make_bridges(self._dir, self._layout.bridges, self._site.openflow_listen)
        rates = (int(self._emulation.access_bps), int(self._emulation.inter_aggregator_bps))
        for netns, lines in shaping.setup_lines(self._layout, *rates).items():
            shaping.run_tc(netns, lines)

    def _start_switches(self) -> None:
        env = programs.python_environment(os.environ)
        env |= programs.passwords(self._site, os.environ)
        started: list[Process] = []
        for switch in self._site.switches:
            self._progress(f"optical switch {switch.name}")
            links = programs.links_file(self._dir, switch.name)
            links.write_text(json.dumps(self._layout.link_maps[switch.name]), encoding="utf-8")
            started.append(self._spawn(programs.emulator(self._dir, switch, self._emulation, env)))
        self._await_listening(started, OCS_READY_S)

    def _take_engine(self, info: EngineInfo) -> None:
        dockerd = _dockerd(self._dir) if info.private else None
        self._save(docker_host=info.host_url, docker_private=info.private, dockerd=dockerd)
        self._progress("container images (built if missing)")
        try:
            self._save(image=ensure_image(info))
            ensure_probe_image(info)
        except ImageError as error:
            raise RackError("unavailable", str(error), object="image", hint=error.hint) from error

    def _unpacked(self, info: EngineInfo) -> Path:
        try:
            return ensure_unpacked(info, self._record.image)
        except ImageError as error:
            raise RackError("unavailable", str(error), object="image", hint=error.hint) from error

    def _make_volumes(self) -> None:
        for name, volume in self._emulation.volumes.items():
            path = programs.volume_directory(self._dir, name, volume)
            if volume.path is None:
                path.mkdir(mode=0o755, parents=True)
            elif not path.is_dir():
                raise RackError(
                    "invalid",
                    f"{path} is not a directory",
                    object=f"emulation.volumes.{name}",
                    hint="make it, or remove the path for a directory of the rack's own",
                )

    def _start_agents(self, env: Mapping[str, str]) -> None:
        self._progress(f"{len(self._site.servers)} agents")
        started = [
            self._spawn(
                programs.agent(self._dir, self._site, server, self._record.docker_host, env)
            )
            for server in self._site.servers
        ]
        self._await_listening(started, AGENT_READY_S)

    def _start_controller(self, env: Mapping[str, str]) -> None:
        self._progress("controller")
        (self._dir / "controller").mkdir()
        env = {**env, **programs.passwords(self._site, os.environ)}
        process = self._spawn(
            programs.controller(self._dir, self._site_path, self._record.image, env)
        )
        # One client: to load the certificate store for each check takes 30 ms of processor.
        with httpx.Client(
            base_url=f"{self._record.url}/api/v1", timeout=PROBE_TIMEOUT_S, trust_env=False
        ) as client:
            ready = partial(_healthy, client, self._dir)
            wait_ready(process, ready, timeout_s=CONTROLLER_READY_S)

    @staticmethod
    def _await_listening(started: Iterable[Process], timeout_s: float) -> None:
        for process in started:
            ready = partial(programs.listening, Path(process.log))
            wait_ready(process, ready, timeout_s=timeout_s)

    def _spawn(self, program: ProgramSpec) -> Process:
        process = spawn(program, record.logs(self._dir), str(self._dir))
        self._save(processes=(*self._record.processes, process))
        return process

    def _save(self, **changes: object) -> None:
        self._record = dataclasses.replace(self._record, **changes)  # type: ignore[arg-type]
        record.save(self._dir, self._record)


def _start_engine(run_dir: Path, progress: Progress) -> EngineInfo:
    if (host := host_engine()) is not None:
        return host
    try:
        with locks.STORE.held(wait_s=locks.BUILD_S, progress=progress):
            if (builder := builder_engine()).made:
                builder.stop()  # a killed command left it on the data root
            return DockerEngine(run_dir).start()
    except DockerEngineError as error:
        raise RackError("unavailable", str(error), object="docker", hint=error.hint) from error


def _dockerd(run_dir: Path) -> Process | None:
    engine = DockerEngine(run_dir)
    for pid in kernel_view.running("dockerd", run_dir):
        ticks = procfs.start_ticks(pid)
        if ticks is not None:
            return Process("dockerd", pid, ticks, str(engine.log_path), ("dockerd",), time.time())
    return None


def _healthy(client: httpx.Client, run_dir: Path) -> bool:
    """Whether the controller reports that it reaches every device of the site."""
    try:
        reply = client.get("/health", headers={"Authorization": f"Bearer {rack_token(run_dir)}"})
        return reply.status_code == httpx.codes.OK and reply.json().get("status") == "ok"
    except (httpx.HTTPError, ValueError):
        return False


def _keep_logs(run_dir: Path, error: BaseException) -> RackError | None:
    """Copy the logs to a folder that survives the rack; return ``error`` with their new path."""
    hint = error.hint if isinstance(error, RackError) else ""
    # A full disk may be the reason of the failure: take the rack down in any case.
    with contextlib.suppress(OSError, shutil.Error):
        shutil.rmtree(KEPT_LOGS, ignore_errors=True)
        KEPT_LOGS.mkdir(parents=True, exist_ok=True)
        for log in run_dir.rglob("*.log"):
            shutil.copyfile(log, KEPT_LOGS / log.name)
            hint = hint.replace(str(log), str(KEPT_LOGS / log.name))
    if not isinstance(error, RackError):
        return None
    return RackError(error.code, error.message, object=error.object, hint=hint)
