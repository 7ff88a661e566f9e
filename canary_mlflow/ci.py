"""Which CI job this is."""

from __future__ import annotations

from collections.abc import Mapping

from canary_mlflow import tags

PART = "CANARY_CI_PART"  # which of a job's parallel parts (a matrix): GitHub gives all of them the same name


def ci_tags(environment: Mapping[str, str]) -> dict[str, str]:
    """A session's tags by which its job finds it again and a reader finds the job; empty outside CI.

    Variables: docs.github.com, "Default environment variables"; docs.gitlab.com, "Predefined CI/CD variables".
    """
    job = ci_job(environment)
    if not job:
        return {}
    if environment.get("GITHUB_ACTIONS") == "true":
        place = (environment.get("GITHUB_SERVER_URL", ""), environment["GITHUB_REPOSITORY"], "actions/runs")
        return {tags.CI_JOB: job, tags.CI_URL: "/".join((*place, environment.get("GITHUB_RUN_ID", "")))}
    return {tags.CI_JOB: job, tags.CI_URL: environment.get("CI_JOB_URL", "")}


def ci_job(environment: Mapping[str, str]) -> str:
    """A name for one attempt of one job, the same in all its steps; '' outside CI."""
    if environment.get("GITHUB_ACTIONS") == "true" and environment.get("GITHUB_REPOSITORY"):
        names = ("GITHUB_REPOSITORY", "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT", "GITHUB_JOB", PART)
        return "github/" + "/".join(environment.get(name, "") for name in names)
    if environment.get("GITLAB_CI") and environment.get("CI_JOB_ID"):
        return f"gitlab/{environment.get('CI_PROJECT_PATH', '')}/{environment['CI_JOB_ID']}"
    return ""
