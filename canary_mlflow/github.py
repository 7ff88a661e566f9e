"""What a CI job tells GitHub: one comment on the pull request, and one check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from canary_mlflow.errors import StoreError, UsageError, one_line
from canary_mlflow.files.documents import read_json
from canary_mlflow.files.source import MAX_VERDICT
from canary_mlflow.gates.model.verdict import Outcome
from canary_mlflow.reports.markdown import fit
from canary_mlflow.shown import in_markdown, visible

LIMIT = 65_000  # characters of a comment and of a check's summary; GitHub accepts 65,535
PAGE = 100
SECONDS = 20.0
FORK = (
    "a pull request from a fork, whose token may not write: no comment and no check, the job's summary has the report"
)
CONCLUSIONS = {
    "PASS": "success",
    "bootstrap": "success",
    Outcome.BLOCK: "failure",
    Outcome.INCONCLUSIVE: "neutral",
    "": "failure",  # no verdict: the canary did not finish
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a job runs. `pull_request`: its number, None outside one. `fork`: it comes from another repository.

    `sha`: the commit that a check belongs to.
    """

    api: str
    repository: str
    sha: str
    pull_request: int | None
    fork: bool
    summary: Path | None
    output: Path | None
    url: str


@dataclass(frozen=True, kw_only=True)
class Message:
    """What to publish. `name`: that of the check and of the comment. `word`: the verdict; '' for none."""

    name: str
    word: str
    title: str
    text: str


def place_of(environment: Mapping[str, str]) -> Place | None:
    """The job's place; None outside GitHub. Raises UsageError for an invalid event file."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return None
    event = read_event(environment.get("GITHUB_EVENT_PATH", ""))
    pull_request = table(event, "pull_request")
    head = table(pull_request, "head")
    files = {key: Path(value) for key in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT") if (value := environment.get(key))}
    server, repository = environment.get("GITHUB_SERVER_URL", ""), environment.get("GITHUB_REPOSITORY", "")
    return Place(
        api=environment.get("GITHUB_API_URL", "https://api.github.com"),
        repository=repository,
        # GITHUB_SHA of a pull request is a merge commit that nobody sees; checks are shown on its head.
        sha=head.get("sha") or environment.get("GITHUB_SHA", ""),
        pull_request=pull_request.get("number"),
        fork=bool(pull_request) and table(head, "repo").get("full_name") != repository,
        summary=files.get("GITHUB_STEP_SUMMARY"),
        output=files.get("GITHUB_OUTPUT"),
        url=f"{server}/{repository}/actions/runs/{environment.get('GITHUB_RUN_ID', '')}",
    )


def read_event(path: str) -> dict[str, Any]:
    """The event that started the workflow."""
    if not path:
        return {}
    try:
        found = read_json(Path(path), MAX_VERDICT)
    except (OSError, ValueError) as error:
        raise UsageError(f"GITHUB_EVENT_PATH {path}: {one_line(error)}; expected GitHub's event as JSON") from error
    if not isinstance(found, dict):
        raise UsageError(f"GITHUB_EVENT_PATH {path}: {type(found).__name__}; expected GitHub's event, a JSON object")
    return found


def table(of: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object under a key; empty if there is nothing. Raises UsageError for anything else."""
    found = of.get(key) or {}
    if not isinstance(found, dict):
        raise UsageError(f"GITHUB_EVENT_PATH: {key} is {found!r:.40}; expected an object, as in GitHub's own events")
    return found


def publish(place: Place, message: Message, token: str, outputs: Mapping[str, str]) -> Iterator[str]:
    """Write summary and outputs; with a token, also comment and check. Yields a sentence on what could not be written.

    A pull request from a fork has a token that may not write; it still gets the summary.
    """
    said = "".join(f"{key}={visible(value)}\n" for key, value in outputs.items())
    for file, text in ((place.summary, f"{message.text}\n"), (place.output, said)):
        if file is not None:
            yield from append(file, text)
    if not token:
        yield "no GITHUB_TOKEN: no comment and no check, the job's summary has the report"
        return
    with session(token) as client:
        for write in (comment, check):
            try:
                write(client, place, message)
            except StoreError as error:
                if place.fork:
                    yield f"{FORK} ({error})"
                    return
                yield str(error)


def append(path: Path, text: str) -> Iterator[str]:
    """Append to one of the job's files; yields a sentence if that fails."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        yield f"{path}: {error.strerror}; expected the file that GitHub gives a job; nothing was added to it"


def session(token: str) -> requests.Session:
    """A client that retries when GitHub asks for it."""
    client = requests.Session()
    client.headers.update(
        {
            "Authorization": f"Bearer {token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
        }
    )
    again = Retry(total=3, backoff_factor=1, status_forcelist=(429, 502, 503, 504), respect_retry_after_header=True)
    for scheme in ("https://", "http://"):
        client.mount(scheme, HTTPAdapter(max_retries=again))
    return client


def comment(client: requests.Session, place: Place, message: Message) -> None:
    """Write the comment of this name, or update it in place. Does nothing outside a pull request."""
    if place.pull_request is None:
        return
    marker = f"<!-- canary-mlflow: {escape(visible(message.name))} -->"
    body = {"body": f"{marker}\n{fit(message.text, LIMIT, place.url)}\n{foot(place)}"}
    comments = f"{place.api}/repos/{place.repository}/issues/{place.pull_request}/comments"
    ours = next((one for one in all_of(client, comments) if str(one.get("body", "")).startswith(marker)), None)
    if ours is None:
        ask(client, "POST", comments, body)
    else:
        ask(client, "PATCH", f"{place.api}/repos/{place.repository}/issues/comments/{ours['id']}", body)


def foot(place: Place) -> str:
    """Which commit was judged, and where the report with its charts is: GitHub shows no picture that a comment brings
    along. The artifact has no address yet; the job's page lists it once it is uploaded."""
    charts = f"`report.html` in [the job's artifacts](<{place.url}#artifacts>)"
    return f"\n<sub>Commit {in_markdown(place.sha)} · charts: {charts}</sub>\n"


def check(client: requests.Session, place: Place, message: Message) -> None:
    """Write a separate check, in which INCONCLUSIVE is neutral, which a job cannot be."""
    body = {
        "name": f"canary: {visible(message.name)}",
        "head_sha": place.sha,
        "status": "completed",
        "conclusion": CONCLUSIONS[message.word],
        "details_url": place.url,
        "output": {"title": visible(message.title), "summary": fit(message.text, LIMIT, place.url)},
    }
    ask(client, "POST", f"{place.api}/repos/{place.repository}/check-runs", body)


def all_of(client: requests.Session, address: str) -> Iterator[dict[str, Any]]:
    """The entries of all pages of a list."""
    page = 1
    while True:
        found = ask(client, "GET", f"{address}?per_page={PAGE}&page={page}")
        yield from found
        if len(found) < PAGE:
            return
        page += 1


def ask(client: requests.Session, method: str, address: str, body: Mapping[str, Any] | None = None) -> Any:
    """GitHub's answer. Raises StoreError with its message and the permission that is usually missing."""
    try:
        answer = client.request(method, address, json=body, timeout=SECONDS)
    except requests.RequestException as error:
        raise StoreError(f"{method} {address}: {one_line(error)}; expected GitHub's API there") from error
    if answer.status_code in (401, 403, 404):
        need = "checks: write" if address.endswith("check-runs") else "pull-requests: write"
        raise StoreError(
            f"{method} {address}: {answer.status_code}; expected a token that may write; "
            f"give the job permissions: {need}"
        )
    if not answer.ok:
        raise StoreError(f"{method} {address}: {answer.status_code} {answer.text[:200]!r}; expected 200 or 201")
    try:
        return answer.json()
    except ValueError as error:
        raise StoreError(f"{method} {address}: {answer.text[:80]!r}; expected GitHub's JSON there") from error
