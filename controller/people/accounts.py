"""Tokens and projects: stored in a small database of their own, looked up in memory.

A token is 256 random bits; only its SHA-256 is stored, so the database gives no access. (A slow
password hash would add nothing: 256 random bits cannot be guessed.)
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import sqlalchemy as sa

from controller.base.errors import ServiceError
from controller.base.one_thread import LateError, OneThread
from controller.people.authz import Principal, Role

PREFIX = "ll_"
"""Prefix of every token, so that scanners for leaked secrets recognise it."""
SECRET_BYTES = 32
ADMIN_FILE = "admin.token"
DEFAULT_PROJECT = "default"
CALL_TIMEOUT_S = 10.0
_USE_RESOLUTION_S = 60.0

_meta = sa.MetaData()
_tokens = sa.Table(
    "tokens",
    _meta,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("hash", sa.String(64), nullable=False, unique=True),
    sa.Column("name", sa.String(63), nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("projects", sa.Text, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float),
    sa.Column("revoked_at", sa.Float),
    sa.Column("last_used_at", sa.Float),
)
_projects = sa.Table(
    "projects",
    _meta,
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("weight", sa.Float, nullable=False),
    sa.Column("quota", sa.Integer),
)


_Statement = tuple[sa.Executable, list[dict[str, object]] | None]


@dataclass(slots=True, frozen=True)
class StoredToken:
    """One token as it is stored. Times are seconds since 1970."""

    id: str
    hash: str
    name: str
    role: Role
    projects: frozenset[str]
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    last_used_at: float | None = None

    def state(self, now: float) -> Literal["valid", "expired", "revoked"]:
        """Return the state of the token at ``now``."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and now >= self.expires_at else "valid"

    @property
    def principal(self) -> Principal:
        """The principal it stands for."""
        return Principal(self.name, self.role, self.projects, self.id)


@dataclass(slots=True, frozen=True)
class StoredProject:
    """The owner of jobs; ``quota`` limits the endpoints held at once, None is unlimited."""

    name: str
    weight: float = 1.0
    quota: int | None = None


class Accounts:
    """All tokens and projects. All methods run on the loop."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._thread = OneThread("accounts", CALL_TIMEOUT_S)
        self._engine = sa.create_engine(f"sqlite:///{path}")
        self._tokens: dict[str, StoredToken] = {}
        """By hash."""
        self._projects: dict[str, StoredProject] = {}
        self._unsure = False
        """Whether memory and the database may differ."""
        self._unwanted: set[str] = set()
        """Ids of tokens whose secret was not returned, because they may not be durable."""

    async def open(self) -> None:
        """Load the database; a new one gets the project ``default``. ServiceError."""
        await self._call(self._load)

    async def close(self) -> None:
        """Write when each token was last used, and close."""
        used = [
            (
                sa.update(_tokens).where(_tokens.c.id == t.id).values(last_used_at=t.last_used_at),
                None,
            )
            for t in self._tokens.values()
        ]
        await self._call(self._execute, used)
        await self._call(self._engine.dispose)
        self._thread.close()

    # --- tokens ---------------------------------------------------------------------------

    def find(self, secret: str) -> StoredToken | None:
        """Return the token of ``secret``, None if it is not valid now."""
        now = self._clock()
        token = self._tokens.get(digest(secret))
        if token is None or token.state(now) != "valid":
            return None
        if token.last_used_at is None or now - token.last_used_at > _USE_RESOLUTION_S:
            token = self._tokens[token.hash] = replace(token, last_used_at=now)
        return token

    def tokens(self) -> list[StoredToken]:
        """Return every token, oldest first."""
        return sorted(self._tokens.values(), key=lambda t: (t.created_at, t.id))

    async def create(
        self,
        name: str,
        role: Role,
        projects: Iterable[str] = (),
        expires_s: float | None = None,
    ) -> tuple[StoredToken, str]:
        """Create a token; its secret is returned only here. ServiceError."""
        wanted = frozenset(projects)
        unknown = sorted(wanted - self._projects.keys() - {"*"})
        if unknown:
            raise ServiceError(
                "invalid",
                f"project {unknown[0]} does not exist",
                object=f"project/{unknown[0]}",
                hint="create it first: lightloom project create",
            )
        if role in (Role.USER, Role.VIEWER) and not wanted:
            raise ServiceError(
                "invalid",
                f"a {role} without a project sees nothing",
                object=f"person/{name}",
                hint="name projects, or * for all",
            )
        token, secret = self._made(name, role, wanted, expires_s)
        try:
            await self._change((sa.insert(_tokens), [_row(token)]))
        except ServiceError:
            self._unwanted.add(token.id)  # its secret was not returned
            raise
        self._tokens[token.hash] = token
        return token, secret

    def _made(
        self, name: str, role: Role, projects: frozenset[str], expires_s: float | None
    ) -> tuple[StoredToken, str]:
        now = self._clock()
        secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        token = StoredToken(
            id=secrets.token_hex(4),
            hash=digest(secret),
            name=name,
            role=role,
            projects=projects,
            created_at=now,
            expires_at=None if expires_s is None else now + expires_s,
        )
        return token, secret

    async def revoke(self, ident: str) -> StoredToken:
        """Revoke a token; repeating it is allowed. ServiceError ``not_found``, ``conflict``."""
        token = next((t for t in self._tokens.values() if t.id == ident), None)
        if token is None:
            raise ServiceError(
                "not_found",
                f"token {ident} does not exist",
                object=f"token/{ident}",
                hint="see `lightloom token list`",
            )
        now = self._clock()
        if token.revoked_at is not None:
            return token
        admins = [t for t in self._tokens.values() if t.role is Role.ADMIN]
        if token in admins and not any(t.state(now) == "valid" for t in admins if t != token):
            raise ServiceError(
                "conflict",
                f"token {ident} is the last valid token of an admin",
                object=f"token/{ident}",
                hint="create another admin's token first",
            )
        change = sa.update(_tokens).where(_tokens.c.id == ident).values(revoked_at=now)
        await self._change((change, None))
        token = self._tokens[token.hash] = replace(token, revoked_at=now)
        return token

    async def bootstrap(self, directory: Path) -> Path:
        """Write an admin's token to a file in ``directory`` if no admin has a valid token.

        The file has mode 0600 and is never written through a link. Returns its path.
        """
        path = directory / ADMIN_FILE
        now = self._clock()
        if any(t.role is Role.ADMIN and t.state(now) == "valid" for t in self._tokens.values()):
            return path
        token, secret = self._made("admin", Role.ADMIN, frozenset(), None)
        try:  # the file first: a stored token whose secret is lost would lock everyone out
            await self._call(_write_secret, path, secret)
        except OSError as error:
            raise ServiceError(
                "failed",
                f"cannot write the admin's token: {error.strerror}",
                object=f"file/{path}",
                hint="make the state directory writable",
            ) from error
        await self._change((sa.insert(_tokens), [_row(token)]))
        self._tokens[token.hash] = token
        return path

    # --- projects -------------------------------------------------------------------------

    def projects(self) -> list[StoredProject]:
        """Return every project, sorted by name."""
        return sorted(self._projects.values(), key=lambda p: p.name)

    async def put_project(self, project: StoredProject) -> StoredProject:
        """Create or change a project. ServiceError ``conflict`` if jobs' names could clash."""
        for other in self._projects:
            a, b = sorted((other, project.name), key=len)
            if a != b and b.startswith(a + "-"):
                raise ServiceError(
                    "conflict",
                    f"project {project.name} and project {other} could give jobs the same name",
                    object=f"project/{project.name}",
                    hint="choose a name that does not begin with another project's name and a dash",
                )
        row = {"name": project.name, "weight": project.weight, "quota": project.quota}
        delete = sa.delete(_projects).where(_projects.c.name == project.name)
        await self._change((delete, None), (sa.insert(_projects), [row]))
        self._projects[project.name] = project
        return project

    # --- the database ---------------------------------------------------------------------

    def _load(self) -> None:
        _meta.create_all(self._engine)
        self._path.chmod(0o600)
        tokens: dict[str, StoredToken] = {}
        with self._engine.begin() as db:
            for row in db.execute(sa.select(_tokens)):
                token = StoredToken(
                    row.id,
                    row.hash,
                    row.name,
                    Role(row.role),
                    frozenset(json.loads(row.projects)),
                    row.created_at,
                    row.expires_at,
                    row.revoked_at,
                    row.last_used_at,
                )
                tokens[token.hash] = token
            found = {
                row.name: StoredProject(row.name, row.weight, row.quota)
                for row in db.execute(sa.select(_projects))
            }
            if not found:
                db.execute(sa.insert(_projects), [{"name": DEFAULT_PROJECT, "weight": 1.0}])
                found = {DEFAULT_PROJECT: StoredProject(DEFAULT_PROJECT)}
        self._tokens, self._projects = tokens, found

    async def _change(self, *statements: _Statement) -> None:
        """Execute ``statements`` in one transaction. ServiceError; see ``_settle``."""
        await self._settle()
        await self._call(self._execute, statements)

    async def _settle(self) -> None:
        """After a failure of unknown outcome, load the database again.

        Tokens whose secret was not returned are deleted. ServiceError while the disk still fails.
        """
        if not self._unsure:
            return
        await self._call(self._forget, frozenset(self._unwanted))
        self._unsure = False
        self._unwanted.clear()

    def _forget(self, tokens: frozenset[str]) -> None:
        with self._engine.begin() as db:
            db.execute(sa.delete(_tokens).where(_tokens.c.id.in_(tokens)))
        self._load()

    def _execute(self, statements: Iterable[_Statement]) -> None:
        with self._engine.begin() as db:
            for statement, rows in statements:
                db.execute(statement, rows)

    async def _call(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            await self._thread.call(function, *arguments)
        except LateError as late:
            if not late.begun:
                why = "it is still busy with an earlier change; nothing was changed"
                raise self._failed(why) from None
            self._unsure = True
            raise self._failed("it did not answer in time") from None
        except (sa.exc.SQLAlchemyError, ValueError) as error:
            self._unsure = True
            raise self._failed(str(error.__cause__ or error)) from error

    def _failed(self, why: str) -> ServiceError:
        return ServiceError(
            "failed",
            f"the token database failed: {why}",
            object=f"store/{self._path}",
            hint="check the disk; move a damaged file away to start with a new admin's token",
        )


def digest(secret: str) -> str:
    """Return the hash of a secret, which is all that is stored."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _row(token: StoredToken) -> dict[str, object]:
    return {
        "id": token.id,
        "hash": token.hash,
        "name": token.name,
        "role": token.role.value,
        "projects": json.dumps(sorted(token.projects)),
        "created_at": token.created_at,
        "expires_at": token.expires_at,
    }


def _write_secret(path: Path, secret: str) -> None:
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "w", encoding="ascii") as file:
        file.write(secret + "\n")
        file.flush()
        os.fsync(file.fileno())
