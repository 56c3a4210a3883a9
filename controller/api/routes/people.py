"""Routes for projects, tokens and the audit trail."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, cast

from fastapi import APIRouter, Path, Query, Request, Response, status

from controller.api.common import READ_S, CallerOf, DesksOf, Name, SightOf
from controller.api.deadlines import within
from controller.api.following import Followers
from controller.api.gate.access import Access
from controller.api.operation import KIB, operation
from controller.api.paging import Cursor, Limit, paged
from controller.api.problems import responses
from controller.base.errors import ServiceError
from controller.people.accounts import Accounts, StoredProject, StoredToken
from controller.people.audit import AuditLog
from controller.people.documents import (
    AuditRecordView,
    AuditVerdictView,
    ProjectRequest,
    ProjectView,
    TokenCreatedView,
    TokenRequest,
    TokenView,
)
from controller.schema.base import Page

router = APIRouter(tags=["people"], responses=responses("unavailable"))

VERIFY_S = 300.0
"""Longest time of a check of the whole audit trail: some 1.5 million records."""

TokenId = Annotated[str, Path(pattern=r"^[0-9a-f]{1,16}$", description="a token's id")]


@router.get("/projects", responses=responses("conflict"))
@operation("projects:read")
async def list_projects(
    request: Request,
    desks: DesksOf,
    sight: SightOf,
    caller: CallerOf,
    *,
    limit: Limit = None,
    cursor: Cursor = None,
) -> Page[ProjectView]:
    """List the projects you belong to, and what they hold."""
    live = [job for job in sight.owners().values() if not job.ended]
    jobs = Counter(job.project for job in live)
    endpoints: Counter[str] = Counter()
    for job in live:
        endpoints[job.project] += len(job.endpoints)
    access = cast(Access, request.app.state.access)
    known = access.accounts.projects() if access.accounts else [StoredProject("default")]
    items = [
        ProjectView(
            name=project.name,
            weight=project.weight,
            quota=project.quota,
            jobs=jobs[project.name],
            endpoints=endpoints[project.name],
        )
        for project in known
        if caller.principal.sees(project.name)
    ]
    return paged(items, desks.epoch, limit, cursor, lambda item: item.name)


@router.put("/projects/{name}", responses=responses("forbidden", "not_found", "conflict"))
@operation("people:manage")
async def put_project(request: Request, name: Name, body: ProjectRequest) -> ProjectView:
    """Create a project, or change its weight and quota."""
    if body.name != name:
        raise ServiceError(
            "invalid", f"the path says {name}, the body {body.name}", object=f"project/{name}"
        )
    made = await _accounts(request).put_project(StoredProject(body.name, body.weight, body.quota))
    return ProjectView(name=made.name, weight=made.weight, quota=made.quota)


@router.get("/tokens", responses=responses("forbidden", "not_found", "conflict"))
@operation("people:manage")
async def list_tokens(
    request: Request, desks: DesksOf, limit: Limit = None, cursor: Cursor = None
) -> Page[TokenView]:
    """List all tokens, without their secrets."""
    now = _access(request).clock()
    items = [_view(token, now) for token in _accounts(request).tokens()]
    return paged(items, desks.epoch, limit, cursor, lambda item: item.id)


@router.post(
    "/tokens",
    status_code=status.HTTP_201_CREATED,
    responses=responses("forbidden", "not_found", "conflict"),
)
@operation("people:manage", body=64 * KIB)
async def create_token(
    request: Request, body: TokenRequest, response: Response
) -> TokenCreatedView:
    """Create a token; only this answer contains its secret."""
    token, secret = await _accounts(request).create(
        body.name, body.role, body.projects, body.expires_s
    )
    response.headers["Cache-Control"] = "no-store"
    view = _view(token, _access(request).clock())
    return TokenCreatedView(**view.model_dump(), token=secret)


@router.delete("/tokens/{ident}", responses=responses("forbidden", "not_found", "conflict"))
@operation("people:manage")
async def revoke_token(request: Request, ident: TokenId) -> TokenView:
    """Revoke a token permanently; its streams end too."""
    token = await _accounts(request).revoke(ident)
    cast(Followers, request.app.state.followers).end(token.id)
    return _view(token, _access(request).clock())


@router.get("/audit", responses=responses("forbidden", "not_found"))
@operation("audit:read")
async def list_audit(
    request: Request,
    desks: DesksOf,
    since: Annotated[
        int | None, Query(ge=0, lt=2**63, description="records after this one; default the newest")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> Page[AuditRecordView]:
    """List records of the audit trail, oldest first: the newest ones, or those after one."""
    records = await within(READ_S, "audit", _audit(request).records(since, limit))
    items = [
        AuditRecordView(**{name: getattr(record, name) for name in AuditRecordView.model_fields})
        for record in records
    ]
    return Page[AuditRecordView](items=items, epoch=desks.epoch)


@router.get("/audit/verification", responses=responses("forbidden", "not_found"))
@operation("audit:read")
async def verify_audit(
    request: Request,
    expect: Annotated[
        str,
        Query(pattern=r"^([0-9]{1,18}:[0-9a-f]{64})?$", description="a head kept elsewhere"),
    ] = "",
) -> AuditVerdictView:
    """Check the whole audit trail."""
    check = await within(VERIFY_S, "audit", _audit(request).verify(expect))
    return AuditVerdictView(
        ok=check.ok, records=check.records, head=check.head, problem=check.problem
    )


def _access(request: Request) -> Access:
    return cast(Access, request.app.state.access)


def _accounts(request: Request) -> Accounts:
    accounts = _access(request).accounts
    if accounts is None:
        raise _off("this controller has no tokens")
    return accounts


def _audit(request: Request) -> AuditLog:
    audit = _access(request).audit
    if audit is None:
        raise _off("this controller has no audit trail")
    return audit


def _off(what: str) -> ServiceError:
    return ServiceError(
        "not_found",
        f"{what}: the controller was started with --insecure-no-auth",
        object="accounts",
        hint="start it without that option",
    )


def _view(token: StoredToken, now: float) -> TokenView:
    return TokenView(
        id=token.id,
        name=token.name,
        role=token.role,
        projects=sorted(token.projects),
        created_at=token.created_at,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
        last_used_at=token.last_used_at,
        state=token.state(now),
    )
