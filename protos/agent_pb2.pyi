from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Scope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCOPE_SITE: _ClassVar[Scope]
    SCOPE_PROJECT: _ClassVar[Scope]
    SCOPE_JOB: _ClassVar[Scope]

class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATE_UNSPECIFIED: _ClassVar[State]
    STATE_ABSENT: _ClassVar[State]
    STATE_CREATED: _ClassVar[State]
    STATE_RUNNING: _ClassVar[State]
    STATE_PAUSED: _ClassVar[State]
    STATE_EXITED: _ClassVar[State]

class ScopeState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCOPE_STATE_UNSPECIFIED: _ClassVar[ScopeState]
    SCOPE_STATE_RUNNING: _ClassVar[ScopeState]
    SCOPE_STATE_FROZEN: _ClassVar[ScopeState]
    SCOPE_STATE_PARTLY: _ClassVar[ScopeState]

class HoldingKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HOLDING_UNSPECIFIED: _ClassVar[HoldingKind]
    HOLDING_OWN: _ClassVar[HoldingKind]
    HOLDING_COPY: _ClassVar[HoldingKind]
    HOLDING_PARITY: _ClassVar[HoldingKind]
    HOLDING_STORED: _ClassVar[HoldingKind]
    HOLDING_AWAITS: _ClassVar[HoldingKind]
    HOLDING_MISSING: _ClassVar[HoldingKind]
    HOLDING_REFUSED: _ClassVar[HoldingKind]
    HOLDING_IGNORED: _ClassVar[HoldingKind]
SCOPE_SITE: Scope
SCOPE_PROJECT: Scope
SCOPE_JOB: Scope
STATE_UNSPECIFIED: State
STATE_ABSENT: State
STATE_CREATED: State
STATE_RUNNING: State
STATE_PAUSED: State
STATE_EXITED: State
SCOPE_STATE_UNSPECIFIED: ScopeState
SCOPE_STATE_RUNNING: ScopeState
SCOPE_STATE_FROZEN: ScopeState
SCOPE_STATE_PARTLY: ScopeState
HOLDING_UNSPECIFIED: HoldingKind
HOLDING_OWN: HoldingKind
HOLDING_COPY: HoldingKind
HOLDING_PARITY: HoldingKind
HOLDING_STORED: HoldingKind
HOLDING_AWAITS: HoldingKind
HOLDING_MISSING: HoldingKind
HOLDING_REFUSED: HoldingKind
HOLDING_IGNORED: HoldingKind

class CommandRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommandReply(_message.Message):
    __slots__ = ("term",)
    TERM_FIELD_NUMBER: _ClassVar[int]
    term: int
    def __init__(self, term: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("server", "agent_version", "engine", "endpoints", "cores", "memory_bytes", "gpu_binding")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_BINDING_FIELD_NUMBER: _ClassVar[int]
    server: str
    agent_version: str
    engine: str
    endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    cores: int
    memory_bytes: int
    gpu_binding: str
    def __init__(self, server: _Optional[str] = ..., agent_version: _Optional[str] = ..., engine: _Optional[str] = ..., endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., cores: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., gpu_binding: _Optional[str] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("name", "nic", "gpu_uuid", "emulated", "health", "rdma_device", "mtu")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NIC_FIELD_NUMBER: _ClassVar[int]
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    EMULATED_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    RDMA_DEVICE_FIELD_NUMBER: _ClassVar[int]
    MTU_FIELD_NUMBER: _ClassVar[int]
    name: str
    nic: str
    gpu_uuid: str
    emulated: bool
    health: Health
    rdma_device: str
    mtu: int
    def __init__(self, name: _Optional[str] = ..., nic: _Optional[str] = ..., gpu_uuid: _Optional[str] = ..., emulated: _Optional[bool] = ..., health: _Optional[_Union[Health, _Mapping]] = ..., rdma_device: _Optional[str] = ..., mtu: _Optional[int] = ...) -> None: ...

class Health(_message.Message):
    __slots__ = ("endpoint", "ok", "reason", "carrier", "fault")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CARRIER_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    ok: bool
    reason: str
    carrier: bool
    fault: str
    def __init__(self, endpoint: _Optional[str] = ..., ok: _Optional[bool] = ..., reason: _Optional[str] = ..., carrier: _Optional[bool] = ..., fault: _Optional[str] = ...) -> None: ...

class ImageRequest(_message.Message):
    __slots__ = ("image", "refresh", "resolve", "login")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    REFRESH_FIELD_NUMBER: _ClassVar[int]
    RESOLVE_FIELD_NUMBER: _ClassVar[int]
    LOGIN_FIELD_NUMBER: _ClassVar[int]
    image: str
    refresh: bool
    resolve: bool
    login: RegistryLogin
    def __init__(self, image: _Optional[str] = ..., refresh: _Optional[bool] = ..., resolve: _Optional[bool] = ..., login: _Optional[_Union[RegistryLogin, _Mapping]] = ...) -> None: ...

class RegistryLogin(_message.Message):
    __slots__ = ("username", "password")
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    username: str
    password: str
    def __init__(self, username: _Optional[str] = ..., password: _Optional[str] = ...) -> None: ...

class ImageReply(_message.Message):
    __slots__ = ("present", "image_id", "size_bytes", "refusal", "names", "digest")
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    present: bool
    image_id: str
    size_bytes: int
    refusal: str
    names: _containers.RepeatedScalarFieldContainer[str]
    digest: str
    def __init__(self, present: _Optional[bool] = ..., image_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., refusal: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., digest: _Optional[str] = ...) -> None: ...

class PullProgress(_message.Message):
    __slots__ = ("layers_done", "layers", "bytes_done", "bytes_total", "image")
    LAYERS_DONE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    BYTES_DONE_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    layers_done: int
    layers: int
    bytes_done: int
    bytes_total: int
    image: ImageReply
    def __init__(self, layers_done: _Optional[int] = ..., layers: _Optional[int] = ..., bytes_done: _Optional[int] = ..., bytes_total: _Optional[int] = ..., image: _Optional[_Union[ImageReply, _Mapping]] = ...) -> None: ...

class ImagesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ImagesReply(_message.Message):
    __slots__ = ("images",)
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    images: _containers.RepeatedCompositeFieldContainer[HeldImage]
    def __init__(self, images: _Optional[_Iterable[_Union[HeldImage, _Mapping]]] = ...) -> None: ...

class HeldImage(_message.Message):
    __slots__ = ("image_id", "names", "size_bytes", "jobs", "used_at")
    IMAGE_ID_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    USED_AT_FIELD_NUMBER: _ClassVar[int]
    image_id: str
    names: _containers.RepeatedScalarFieldContainer[str]
    size_bytes: int
    jobs: _containers.RepeatedScalarFieldContainer[str]
    used_at: float
    def __init__(self, image_id: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., size_bytes: _Optional[int] = ..., jobs: _Optional[_Iterable[str]] = ..., used_at: _Optional[float] = ...) -> None: ...

class Nic(_message.Message):
    __slots__ = ("name", "ip", "prefix_len", "mac", "mtu", "dscp")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IP_FIELD_NUMBER: _ClassVar[int]
    PREFIX_LEN_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    MTU_FIELD_NUMBER: _ClassVar[int]
    DSCP_FIELD_NUMBER: _ClassVar[int]
    name: str
    ip: str
    prefix_len: int
    mac: str
    mtu: int
    dscp: int
    def __init__(self, name: _Optional[str] = ..., ip: _Optional[str] = ..., prefix_len: _Optional[int] = ..., mac: _Optional[str] = ..., mtu: _Optional[int] = ..., dscp: _Optional[int] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("cores", "memory_bytes", "pids", "read_bps", "write_bps")
    CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    READ_BPS_FIELD_NUMBER: _ClassVar[int]
    WRITE_BPS_FIELD_NUMBER: _ClassVar[int]
    cores: float
    memory_bytes: int
    pids: int
    read_bps: int
    write_bps: int
    def __init__(self, cores: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., pids: _Optional[int] = ..., read_bps: _Optional[int] = ..., write_bps: _Optional[int] = ...) -> None: ...

class Rank(_message.Message):
    __slots__ = ("job", "rank", "epoch", "endpoint", "image", "command", "env", "nic", "gpu_uuid", "emulated_share", "limits", "volumes", "uid", "gid", "secrets", "record", "probe", "checkpoint", "devices", "further_nics")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    NIC_FIELD_NUMBER: _ClassVar[int]
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    EMULATED_SHARE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    GID_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    FURTHER_NICS_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    epoch: int
    endpoint: str
    image: str
    command: _containers.RepeatedScalarFieldContainer[str]
    env: _containers.ScalarMap[str, str]
    nic: Nic
    gpu_uuid: str
    emulated_share: float
    limits: Limits
    volumes: _containers.RepeatedCompositeFieldContainer[VolumeMount]
    uid: int
    gid: int
    secrets: _containers.ScalarMap[str, str]
    record: str
    probe: bool
    checkpoint: RankCheckpoint
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    further_nics: _containers.RepeatedCompositeFieldContainer[Nic]
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., epoch: _Optional[int] = ..., endpoint: _Optional[str] = ..., image: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., env: _Optional[_Mapping[str, str]] = ..., nic: _Optional[_Union[Nic, _Mapping]] = ..., gpu_uuid: _Optional[str] = ..., emulated_share: _Optional[float] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., volumes: _Optional[_Iterable[_Union[VolumeMount, _Mapping]]] = ..., uid: _Optional[int] = ..., gid: _Optional[int] = ..., secrets: _Optional[_Mapping[str, str]] = ..., record: _Optional[str] = ..., probe: _Optional[bool] = ..., checkpoint: _Optional[_Union[RankCheckpoint, _Mapping]] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., further_nics: _Optional[_Iterable[_Union[Nic, _Mapping]]] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("kind", "id")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    kind: str
    id: str
    def __init__(self, kind: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class RankCheckpoint(_message.Message):
    __slots__ = ("folder", "ranks", "rule", "where", "size_bytes", "key", "resumed")
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    folder: str
    ranks: int
    rule: str
    where: str
    size_bytes: int
    key: bytes
    resumed: StepKey
    def __init__(self, folder: _Optional[str] = ..., ranks: _Optional[int] = ..., rule: _Optional[str] = ..., where: _Optional[str] = ..., size_bytes: _Optional[int] = ..., key: _Optional[bytes] = ..., resumed: _Optional[_Union[StepKey, _Mapping]] = ...) -> None: ...

class StepKey(_message.Message):
    __slots__ = ("step", "epoch")
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    step: int
    epoch: int
    def __init__(self, step: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class VolumeMount(_message.Message):
    __slots__ = ("volume", "path", "read_only", "scope", "owner", "quota_bytes", "read_bps", "write_bps")
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    QUOTA_BYTES_FIELD_NUMBER: _ClassVar[int]
    READ_BPS_FIELD_NUMBER: _ClassVar[int]
    WRITE_BPS_FIELD_NUMBER: _ClassVar[int]
    volume: str
    path: str
    read_only: bool
    scope: Scope
    owner: str
    quota_bytes: int
    read_bps: int
    write_bps: int
    def __init__(self, volume: _Optional[str] = ..., path: _Optional[str] = ..., read_only: _Optional[bool] = ..., scope: _Optional[_Union[Scope, str]] = ..., owner: _Optional[str] = ..., quota_bytes: _Optional[int] = ..., read_bps: _Optional[int] = ..., write_bps: _Optional[int] = ...) -> None: ...

class StartRequest(_message.Message):
    __slots__ = ("ranks",)
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedCompositeFieldContainer[Rank]
    def __init__(self, ranks: _Optional[_Iterable[_Union[Rank, _Mapping]]] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("job", "grace_s", "until_epoch")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    UNTIL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    job: str
    grace_s: float
    until_epoch: int
    def __init__(self, job: _Optional[str] = ..., grace_s: _Optional[float] = ..., until_epoch: _Optional[int] = ...) -> None: ...

class JobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class FreezeRequest(_message.Message):
    __slots__ = ("job", "settle_s")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SETTLE_S_FIELD_NUMBER: _ClassVar[int]
    job: str
    settle_s: float
    def __init__(self, job: _Optional[str] = ..., settle_s: _Optional[float] = ...) -> None: ...

class ObserveRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class RankStatus(_message.Message):
    __slots__ = ("job", "rank", "epoch", "endpoint", "state", "exit_code", "oom", "started_at", "finished_at", "container_id", "reason", "nic", "fault")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    OOM_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NIC_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    epoch: int
    endpoint: str
    state: State
    exit_code: int
    oom: bool
    started_at: float
    finished_at: float
    container_id: str
    reason: str
    nic: NicReport
    fault: str
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., epoch: _Optional[int] = ..., endpoint: _Optional[str] = ..., state: _Optional[_Union[State, str]] = ..., exit_code: _Optional[int] = ..., oom: _Optional[bool] = ..., started_at: _Optional[float] = ..., finished_at: _Optional[float] = ..., container_id: _Optional[str] = ..., reason: _Optional[str] = ..., nic: _Optional[_Union[NicReport, _Mapping]] = ..., fault: _Optional[str] = ...) -> None: ...

class NicReport(_message.Message):
    __slots__ = ("mtu", "rdma_device", "gid_index", "dscp")
    MTU_FIELD_NUMBER: _ClassVar[int]
    RDMA_DEVICE_FIELD_NUMBER: _ClassVar[int]
    GID_INDEX_FIELD_NUMBER: _ClassVar[int]
    DSCP_FIELD_NUMBER: _ClassVar[int]
    mtu: int
    rdma_device: str
    gid_index: int
    dscp: int
    def __init__(self, mtu: _Optional[int] = ..., rdma_device: _Optional[str] = ..., gid_index: _Optional[int] = ..., dscp: _Optional[int] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("code", "object", "message", "hint")
    CODE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    code: str
    object: str
    message: str
    hint: str
    def __init__(self, code: _Optional[str] = ..., object: _Optional[str] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class RanksReply(_message.Message):
    __slots__ = ("ranks", "faults", "health", "settled")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedCompositeFieldContainer[RankStatus]
    faults: _containers.RepeatedCompositeFieldContainer[Fault]
    health: _containers.RepeatedCompositeFieldContainer[Health]
    settled: bool
    def __init__(self, ranks: _Optional[_Iterable[_Union[RankStatus, _Mapping]]] = ..., faults: _Optional[_Iterable[_Union[Fault, _Mapping]]] = ..., health: _Optional[_Iterable[_Union[Health, _Mapping]]] = ..., settled: _Optional[bool] = ...) -> None: ...

class FreezeScopeRequest(_message.Message):
    __slots__ = ("scope", "settle_s")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    SETTLE_S_FIELD_NUMBER: _ClassVar[int]
    scope: str
    settle_s: float
    def __init__(self, scope: _Optional[str] = ..., settle_s: _Optional[float] = ...) -> None: ...

class ThawScopeRequest(_message.Message):
    __slots__ = ("scope",)
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    scope: str
    def __init__(self, scope: _Optional[str] = ...) -> None: ...

class ScopeReply(_message.Message):
    __slots__ = ("faults", "settled")
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    faults: _containers.RepeatedCompositeFieldContainer[Fault]
    settled: bool
    def __init__(self, faults: _Optional[_Iterable[_Union[Fault, _Mapping]]] = ..., settled: _Optional[bool] = ...) -> None: ...

class ScopesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ScopesReply(_message.Message):
    __slots__ = ("observes", "scopes")
    OBSERVES_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    observes: bool
    scopes: _containers.RepeatedCompositeFieldContainer[ScopeEntry]
    def __init__(self, observes: _Optional[bool] = ..., scopes: _Optional[_Iterable[_Union[ScopeEntry, _Mapping]]] = ...) -> None: ...

class ScopeEntry(_message.Message):
    __slots__ = ("scope", "state")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    scope: str
    state: ScopeState
    def __init__(self, scope: _Optional[str] = ..., state: _Optional[_Union[ScopeState, str]] = ...) -> None: ...

class TelemetryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TelemetryBatch(_message.Message):
    __slots__ = ("time", "samples", "readings")
    TIME_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    READINGS_FIELD_NUMBER: _ClassVar[int]
    time: float
    samples: _containers.RepeatedCompositeFieldContainer[Sample]
    readings: Readings
    def __init__(self, time: _Optional[float] = ..., samples: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ..., readings: _Optional[_Union[Readings, _Mapping]] = ...) -> None: ...

class Readings(_message.Message):
    __slots__ = ("values", "words")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    class WordsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: Words
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[Words, _Mapping]] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[int, float]
    words: _containers.MessageMap[int, Words]
    def __init__(self, values: _Optional[_Mapping[int, float]] = ..., words: _Optional[_Mapping[int, Words]] = ...) -> None: ...

class Words(_message.Message):
    __slots__ = ("words",)
    WORDS_FIELD_NUMBER: _ClassVar[int]
    words: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, words: _Optional[_Iterable[str]] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("job", "rank", "endpoint", "utilisation", "memory_bytes", "source", "gpu", "readings")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    UTILISATION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    READINGS_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    endpoint: str
    utilisation: float
    memory_bytes: int
    source: str
    gpu: Gpu
    readings: Readings
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., endpoint: _Optional[str] = ..., utilisation: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., source: _Optional[str] = ..., gpu: _Optional[_Union[Gpu, _Mapping]] = ..., readings: _Optional[_Union[Readings, _Mapping]] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("memory_total_bytes", "temperature_c", "power_w", "sm_clock_hz", "memory_clock_hz", "pcie_rx_bps", "pcie_tx_bps", "pcie_replays", "nvlinks_up", "ecc_corrected", "ecc_uncorrected", "xid", "throttle_reasons")
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    SM_CLOCK_HZ_FIELD_NUMBER: _ClassVar[int]
    MEMORY_CLOCK_HZ_FIELD_NUMBER: _ClassVar[int]
    PCIE_RX_BPS_FIELD_NUMBER: _ClassVar[int]
    PCIE_TX_BPS_FIELD_NUMBER: _ClassVar[int]
    PCIE_REPLAYS_FIELD_NUMBER: _ClassVar[int]
    NVLINKS_UP_FIELD_NUMBER: _ClassVar[int]
    ECC_CORRECTED_FIELD_NUMBER: _ClassVar[int]
    ECC_UNCORRECTED_FIELD_NUMBER: _ClassVar[int]
    XID_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_REASONS_FIELD_NUMBER: _ClassVar[int]
    memory_total_bytes: int
    temperature_c: float
    power_w: float
    sm_clock_hz: int
    memory_clock_hz: int
    pcie_rx_bps: int
    pcie_tx_bps: int
    pcie_replays: int
    nvlinks_up: int
    ecc_corrected: int
    ecc_uncorrected: int
    xid: int
    throttle_reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, memory_total_bytes: _Optional[int] = ..., temperature_c: _Optional[float] = ..., power_w: _Optional[float] = ..., sm_clock_hz: _Optional[int] = ..., memory_clock_hz: _Optional[int] = ..., pcie_rx_bps: _Optional[int] = ..., pcie_tx_bps: _Optional[int] = ..., pcie_replays: _Optional[int] = ..., nvlinks_up: _Optional[int] = ..., ecc_corrected: _Optional[int] = ..., ecc_uncorrected: _Optional[int] = ..., xid: _Optional[int] = ..., throttle_reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("job", "rank", "tail", "follow", "since", "search", "epoch")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    tail: int
    follow: bool
    since: float
    search: str
    epoch: int
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., tail: _Optional[int] = ..., follow: _Optional[bool] = ..., since: _Optional[float] = ..., search: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class LogBatch(_message.Message):
    __slots__ = ("lines",)
    LINES_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedCompositeFieldContainer[LogLine]
    def __init__(self, lines: _Optional[_Iterable[_Union[LogLine, _Mapping]]] = ...) -> None: ...

class LogLine(_message.Message):
    __slots__ = ("time", "stream", "text")
    TIME_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    time: float
    stream: str
    text: str
    def __init__(self, time: _Optional[float] = ..., stream: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class VolumesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VolumesReply(_message.Message):
    __slots__ = ("volumes",)
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    volumes: _containers.RepeatedCompositeFieldContainer[Volume]
    def __init__(self, volumes: _Optional[_Iterable[_Union[Volume, _Mapping]]] = ...) -> None: ...

class Volume(_message.Message):
    __slots__ = ("name", "read_only", "problem", "filesystem", "total_bytes", "free_bytes", "quota", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    FILESYSTEM_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    read_only: bool
    problem: str
    filesystem: str
    total_bytes: int
    free_bytes: int
    quota: str
    data: _containers.RepeatedCompositeFieldContainer[VolumeData]
    def __init__(self, name: _Optional[str] = ..., read_only: _Optional[bool] = ..., problem: _Optional[str] = ..., filesystem: _Optional[str] = ..., total_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., quota: _Optional[str] = ..., data: _Optional[_Iterable[_Union[VolumeData, _Mapping]]] = ...) -> None: ...

class VolumeData(_message.Message):
    __slots__ = ("scope", "owner", "uid", "bytes", "files", "quota_bytes", "created_at", "used_at", "measured_at", "jobs")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    QUOTA_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    USED_AT_FIELD_NUMBER: _ClassVar[int]
    MEASURED_AT_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    scope: Scope
    owner: str
    uid: int
    bytes: int
    files: int
    quota_bytes: int
    created_at: float
    used_at: float
    measured_at: float
    jobs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, scope: _Optional[_Union[Scope, str]] = ..., owner: _Optional[str] = ..., uid: _Optional[int] = ..., bytes: _Optional[int] = ..., files: _Optional[int] = ..., quota_bytes: _Optional[int] = ..., created_at: _Optional[float] = ..., used_at: _Optional[float] = ..., measured_at: _Optional[float] = ..., jobs: _Optional[_Iterable[str]] = ...) -> None: ...

class RemoveDataRequest(_message.Message):
    __slots__ = ("volume", "scope", "owner")
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    volume: str
    scope: Scope
    owner: str
    def __init__(self, volume: _Optional[str] = ..., scope: _Optional[_Union[Scope, str]] = ..., owner: _Optional[str] = ...) -> None: ...

class RemoveDataReply(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: bool
    def __init__(self, removed: _Optional[bool] = ...) -> None: ...

class RecordingsRequest(_message.Message):
    __slots__ = ("job", "most_bytes")
    JOB_FIELD_NUMBER: _ClassVar[int]
    MOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    job: str
    most_bytes: int
    def __init__(self, job: _Optional[str] = ..., most_bytes: _Optional[int] = ...) -> None: ...

class RecordingsReply(_message.Message):
    __slots__ = ("recordings",)
    RECORDINGS_FIELD_NUMBER: _ClassVar[int]
    recordings: _containers.RepeatedCompositeFieldContainer[Recording]
    def __init__(self, recordings: _Optional[_Iterable[_Union[Recording, _Mapping]]] = ...) -> None: ...

class Recording(_message.Message):
    __slots__ = ("job", "rank", "epoch", "state", "reason", "time", "operations", "calls", "damaged_rows", "wire", "profiler", "coverage")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_ROWS_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    PROFILER_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    epoch: int
    state: str
    reason: str
    time: float
    operations: _containers.RepeatedCompositeFieldContainer[RecordedOperation]
    calls: _containers.RepeatedCompositeFieldContainer[RecordedCall]
    damaged_rows: int
    wire: WireBursts
    profiler: ProfilerWindow
    coverage: float
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., epoch: _Optional[int] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., time: _Optional[float] = ..., operations: _Optional[_Iterable[_Union[RecordedOperation, _Mapping]]] = ..., calls: _Optional[_Iterable[_Union[RecordedCall, _Mapping]]] = ..., damaged_rows: _Optional[int] = ..., wire: _Optional[_Union[WireBursts, _Mapping]] = ..., profiler: _Optional[_Union[ProfilerWindow, _Mapping]] = ..., coverage: _Optional[float] = ...) -> None: ...

class RecordedOperation(_message.Message):
    __slots__ = ("op", "bytes", "dtype", "tag", "calls", "total_s", "min_s", "max_s", "histogram", "source", "timing", "exact")
    OP_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    MIN_S_FIELD_NUMBER: _ClassVar[int]
    MAX_S_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    op: str
    bytes: int
    dtype: str
    tag: str
    calls: int
    total_s: float
    min_s: float
    max_s: float
    histogram: _containers.RepeatedScalarFieldContainer[int]
    source: str
    timing: str
    exact: bool
    def __init__(self, op: _Optional[str] = ..., bytes: _Optional[int] = ..., dtype: _Optional[str] = ..., tag: _Optional[str] = ..., calls: _Optional[int] = ..., total_s: _Optional[float] = ..., min_s: _Optional[float] = ..., max_s: _Optional[float] = ..., histogram: _Optional[_Iterable[int]] = ..., source: _Optional[str] = ..., timing: _Optional[str] = ..., exact: _Optional[bool] = ...) -> None: ...

class RecordedCall(_message.Message):
    __slots__ = ("operation", "sequence", "issued_s", "ended_s", "communicator")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ISSUED_S_FIELD_NUMBER: _ClassVar[int]
    ENDED_S_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATOR_FIELD_NUMBER: _ClassVar[int]
    operation: int
    sequence: int
    issued_s: float
    ended_s: float
    communicator: int
    def __init__(self, operation: _Optional[int] = ..., sequence: _Optional[int] = ..., issued_s: _Optional[float] = ..., ended_s: _Optional[float] = ..., communicator: _Optional[int] = ...) -> None: ...

class WireBursts(_message.Message):
    __slots__ = ("window_s", "bursts", "period_s", "burst_s", "sent_bytes", "spread", "time")
    WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    BURSTS_FIELD_NUMBER: _ClassVar[int]
    PERIOD_S_FIELD_NUMBER: _ClassVar[int]
    BURST_S_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    window_s: float
    bursts: int
    period_s: float
    burst_s: float
    sent_bytes: float
    spread: float
    time: float
    def __init__(self, window_s: _Optional[float] = ..., bursts: _Optional[int] = ..., period_s: _Optional[float] = ..., burst_s: _Optional[float] = ..., sent_bytes: _Optional[float] = ..., spread: _Optional[float] = ..., time: _Optional[float] = ...) -> None: ...

class ProfilerWindow(_message.Message):
    __slots__ = ("ended_at", "length_s", "comm_s", "exposed_s")
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    LENGTH_S_FIELD_NUMBER: _ClassVar[int]
    COMM_S_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_S_FIELD_NUMBER: _ClassVar[int]
    ended_at: float
    length_s: float
    comm_s: float
    exposed_s: float
    def __init__(self, ended_at: _Optional[float] = ..., length_s: _Optional[float] = ..., comm_s: _Optional[float] = ..., exposed_s: _Optional[float] = ...) -> None: ...

class ExecInput(_message.Message):
    __slots__ = ("start", "stdin", "stdin_closed", "resize")
    START_FIELD_NUMBER: _ClassVar[int]
    STDIN_FIELD_NUMBER: _ClassVar[int]
    STDIN_CLOSED_FIELD_NUMBER: _ClassVar[int]
    RESIZE_FIELD_NUMBER: _ClassVar[int]
    start: ExecStart
    stdin: bytes
    stdin_closed: bool
    resize: WindowSize
    def __init__(self, start: _Optional[_Union[ExecStart, _Mapping]] = ..., stdin: _Optional[bytes] = ..., stdin_closed: _Optional[bool] = ..., resize: _Optional[_Union[WindowSize, _Mapping]] = ...) -> None: ...

class ExecStart(_message.Message):
    __slots__ = ("job", "rank", "command", "terminal", "window", "idle_s", "total_s", "epoch")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    command: _containers.RepeatedScalarFieldContainer[str]
    terminal: bool
    window: WindowSize
    idle_s: float
    total_s: float
    epoch: int
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., command: _Optional[_Iterable[str]] = ..., terminal: _Optional[bool] = ..., window: _Optional[_Union[WindowSize, _Mapping]] = ..., idle_s: _Optional[float] = ..., total_s: _Optional[float] = ..., epoch: _Optional[int] = ...) -> None: ...

class WindowSize(_message.Message):
    __slots__ = ("rows", "columns")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: int
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[int] = ...) -> None: ...

class ExecOutput(_message.Message):
    __slots__ = ("stdout", "stderr", "end")
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    stdout: bytes
    stderr: bytes
    end: ExecEnd
    def __init__(self, stdout: _Optional[bytes] = ..., stderr: _Optional[bytes] = ..., end: _Optional[_Union[ExecEnd, _Mapping]] = ...) -> None: ...

class ExecEnd(_message.Message):
    __slots__ = ("exit_code", "reason")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    reason: str
    def __init__(self, exit_code: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class HoldingsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HoldingsBatch(_message.Message):
    __slots__ = ("holdings", "caught_up", "transfer_port", "boot_id", "ignored")
    HOLDINGS_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_PORT_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    holdings: _containers.RepeatedCompositeFieldContainer[Holding]
    caught_up: bool
    transfer_port: int
    boot_id: str
    ignored: _containers.RepeatedCompositeFieldContainer[Holding]
    def __init__(self, holdings: _Optional[_Iterable[_Union[Holding, _Mapping]]] = ..., caught_up: _Optional[bool] = ..., transfer_port: _Optional[int] = ..., boot_id: _Optional[str] = ..., ignored: _Optional[_Iterable[_Union[Holding, _Mapping]]] = ...) -> None: ...

class Holding(_message.Message):
    __slots__ = ("folder", "step", "rank", "endpoint", "kind", "digest", "bytes", "covers", "why", "written_s", "seen_at")
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    COVERS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_S_FIELD_NUMBER: _ClassVar[int]
    SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    folder: str
    step: StepKey
    rank: int
    endpoint: str
    kind: HoldingKind
    digest: str
    bytes: int
    covers: _containers.RepeatedCompositeFieldContainer[Member]
    why: str
    written_s: float
    seen_at: float
    def __init__(self, folder: _Optional[str] = ..., step: _Optional[_Union[StepKey, _Mapping]] = ..., rank: _Optional[int] = ..., endpoint: _Optional[str] = ..., kind: _Optional[_Union[HoldingKind, str]] = ..., digest: _Optional[str] = ..., bytes: _Optional[int] = ..., covers: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., why: _Optional[str] = ..., written_s: _Optional[float] = ..., seen_at: _Optional[float] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("rank", "digest", "bytes")
    RANK_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    digest: str
    bytes: int
    def __init__(self, rank: _Optional[int] = ..., digest: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("rank", "digest", "bytes", "address", "endpoint", "server")
    RANK_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    rank: int
    digest: str
    bytes: int
    address: str
    endpoint: str
    server: str
    def __init__(self, rank: _Optional[int] = ..., digest: _Optional[str] = ..., bytes: _Optional[int] = ..., address: _Optional[str] = ..., endpoint: _Optional[str] = ..., server: _Optional[str] = ...) -> None: ...

class KeepRequest(_message.Message):
    __slots__ = ("folder", "keeps", "pace_bps")
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    KEEPS_FIELD_NUMBER: _ClassVar[int]
    PACE_BPS_FIELD_NUMBER: _ClassVar[int]
    folder: str
    keeps: _containers.RepeatedCompositeFieldContainer[Keep]
    pace_bps: int
    def __init__(self, folder: _Optional[str] = ..., keeps: _Optional[_Iterable[_Union[Keep, _Mapping]]] = ..., pace_bps: _Optional[int] = ...) -> None: ...

class Keep(_message.Message):
    __slots__ = ("rank", "step", "copy", "parity", "store")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    PARITY_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    step: StepKey
    copy: Source
    parity: Ring
    store: VolumeMount
    def __init__(self, rank: _Optional[int] = ..., step: _Optional[_Union[StepKey, _Mapping]] = ..., copy: _Optional[_Union[Source, _Mapping]] = ..., parity: _Optional[_Union[Ring, _Mapping]] = ..., store: _Optional[_Union[VolumeMount, _Mapping]] = ...) -> None: ...

class Ring(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Source]
    def __init__(self, members: _Optional[_Iterable[_Union[Source, _Mapping]]] = ...) -> None: ...

class KeepReply(_message.Message):
    __slots__ = ("faults",)
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    faults: _containers.RepeatedCompositeFieldContainer[Fault]
    def __init__(self, faults: _Optional[_Iterable[_Union[Fault, _Mapping]]] = ...) -> None: ...

class CloseStepRequest(_message.Message):
    __slots__ = ("folder", "step")
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    folder: str
    step: StepKey
    def __init__(self, folder: _Optional[str] = ..., step: _Optional[_Union[StepKey, _Mapping]] = ...) -> None: ...

class CloseStepReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("folder", "key", "step", "where", "size_bytes", "gets")
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    GETS_FIELD_NUMBER: _ClassVar[int]
    folder: str
    key: bytes
    step: StepKey
    where: str
    size_bytes: int
    gets: _containers.RepeatedCompositeFieldContainer[Get]
    def __init__(self, folder: _Optional[str] = ..., key: _Optional[bytes] = ..., step: _Optional[_Union[StepKey, _Mapping]] = ..., where: _Optional[str] = ..., size_bytes: _Optional[int] = ..., gets: _Optional[_Iterable[_Union[Get, _Mapping]]] = ...) -> None: ...

class Get(_message.Message):
    __slots__ = ("rank", "endpoint", "part", "digest", "bytes", "local", "rebuild", "store")
    RANK_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    REBUILD_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    endpoint: str
    part: int
    digest: str
    bytes: int
    local: str
    rebuild: Rebuild
    store: VolumeMount
    def __init__(self, rank: _Optional[int] = ..., endpoint: _Optional[str] = ..., part: _Optional[int] = ..., digest: _Optional[str] = ..., bytes: _Optional[int] = ..., local: _Optional[str] = ..., rebuild: _Optional[_Union[Rebuild, _Mapping]] = ..., store: _Optional[_Union[VolumeMount, _Mapping]] = ..., **kwargs) -> None: ...

class Rebuild(_message.Message):
    __slots__ = ("covers", "parts", "parities")
    COVERS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    PARITIES_FIELD_NUMBER: _ClassVar[int]
    covers: _containers.RepeatedCompositeFieldContainer[Member]
    parts: _containers.RepeatedCompositeFieldContainer[Source]
    parities: _containers.RepeatedCompositeFieldContainer[Source]
    def __init__(self, covers: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., parts: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., parities: _Optional[_Iterable[_Union[Source, _Mapping]]] = ...) -> None: ...

class FetchProgress(_message.Message):
    __slots__ = ("bytes_done", "bytes_total", "done", "faults")
    BYTES_DONE_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    bytes_done: int
    bytes_total: int
    done: bool
    faults: _containers.RepeatedCompositeFieldContainer[FetchFault]
    def __init__(self, bytes_done: _Optional[int] = ..., bytes_total: _Optional[int] = ..., done: _Optional[bool] = ..., faults: _Optional[_Iterable[_Union[FetchFault, _Mapping]]] = ...) -> None: ...

class FetchFault(_message.Message):
    __slots__ = ("rank", "part", "endpoint", "message")
    RANK_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    part: int
    endpoint: str
    message: str
    def __init__(self, rank: _Optional[int] = ..., part: _Optional[int] = ..., endpoint: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class DropStepsRequest(_message.Message):
    __slots__ = ("folder", "steps")
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    folder: str
    steps: _containers.RepeatedCompositeFieldContainer[StepKey]
    def __init__(self, folder: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[StepKey, _Mapping]]] = ...) -> None: ...

class DropStepsReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VerifyStepsRequest(_message.Message):
    __slots__ = ("folder", "step")
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    folder: str
    step: StepKey
    def __init__(self, folder: _Optional[str] = ..., step: _Optional[_Union[StepKey, _Mapping]] = ...) -> None: ...

class VerifyBatch(_message.Message):
    __slots__ = ("verified",)
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    verified: _containers.RepeatedCompositeFieldContainer[Verified]
    def __init__(self, verified: _Optional[_Iterable[_Union[Verified, _Mapping]]] = ...) -> None: ...

class Verified(_message.Message):
    __slots__ = ("step", "rank", "endpoint", "kind", "damages")
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DAMAGES_FIELD_NUMBER: _ClassVar[int]
    step: StepKey
    rank: int
    endpoint: str
    kind: HoldingKind
    damages: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, step: _Optional[_Union[StepKey, _Mapping]] = ..., rank: _Optional[int] = ..., endpoint: _Optional[str] = ..., kind: _Optional[_Union[HoldingKind, str]] = ..., damages: _Optional[_Iterable[str]] = ...) -> None: ...

class ForgetCheckpointsRequest(_message.Message):
    __slots__ = ("folder",)
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    folder: str
    def __init__(self, folder: _Optional[str] = ...) -> None: ...

class ForgetCheckpointsReply(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: bool
    def __init__(self, removed: _Optional[bool] = ...) -> None: ...
