"""MLflow's registry store with guarded aliases. Everything unguarded behaves as in MLflow.

Signatures are those of MLflow's store, which calls some of them by position.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from mlflow.entities.model_registry.model_version_stages import get_canonical_stage
from mlflow.exceptions import MlflowException
from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore
from mlflow.store.model_registry.sqlalchemy_workspace_store import WorkspaceAwareSqlAlchemyStore

from canary_mlflow.registry.actors import current_actor
from canary_mlflow.registry.guard import refusals
from canary_mlflow.registry.guard.guard import Guard, is_reserved, plain_alias
from canary_mlflow.registry.guard.promotion import promote, standing
from canary_mlflow.tags import SESSION_ID

NO_STAGE = "None"


class GuardedMethods(Guard):
    """MLflow's methods through which a guarded alias could be moved, removed or faked."""

    def set_registered_model_alias(self, name, alias, version):  # type: ignore[no-untyped-def]
        if not str(alias).isascii() and self.guards_model(str(name)):
            raise refusals.not_plain(alias, name, version)
        # The alias's trigger asks the ledger in MLflow's own transaction: no query of ours, and no row in between.
        ask = not self.has_triggers or alias != plain_alias(alias)  # it knows an alias in its plain spelling
        if not self.guards(str(name), str(alias), ask=ask):
            try:
                return super().set_registered_model_alias(name, alias, version)
            except MlflowException:
                self.read_settings()
                if not self.guards(str(name), str(alias)):
                    raise
        if alias != plain_alias(alias):
            raise refusals.no_verdict(plain_alias(alias), name, version)
        promote(self, name, version, alias, current_actor())  # MLflow's own handler tells its webhooks

    def delete_registered_model_alias(self, name, alias):  # type: ignore[no-untyped-def]
        if not self.guards(str(name), str(alias)):
            return super().delete_registered_model_alias(name, alias)
        with self.ManagedSessionMaker() as session:
            self._get_registered_model(session, name)
            held = standing(self, session, name, alias).version
        raise refusals.stays(alias, name, "none" if held is None else held)

    def rename_registered_model(self, name, new_name):  # type: ignore[no-untyped-def]
        self.refuse_if_held(name, "renaming the model")
        self.refuse_if_held(name, f"the name {new_name!r}, which is guarded,", under=new_name)
        self.refuse_used_name(new_name)
        if new_name != name:
            self.refuse_held_name(new_name)
        return super().rename_registered_model(name, new_name)

    def delete_registered_model(self, name):  # type: ignore[no-untyped-def]
        self.refuse_if_held(name, "deleting the model")
        return super().delete_registered_model(name)

    def create_registered_model(self, name, tags=None, description=None, deployment_job_id=None):  # type: ignore[no-untyped-def]
        self.refuse_used_name(name)
        self.refuse_reserved(name, None, (tag.key for tag in tags or ()))
        return super().create_registered_model(name, tags, description, deployment_job_id)

    def create_model_version(  # type: ignore[no-untyped-def]
        self,
        name,
        source,
        run_id=None,
        tags=None,
        run_link=None,
        description=None,
        local_model_path=None,
        model_id=None,
    ):
        if tags:
            if urlsplit(str(source)).scheme == "models":
                # A copy brings along its original's tags, but the verdict belongs to the original only.
                tags = [tag for tag in tags if not is_reserved(tag.key)]
            else:
                # The tag that says where the evidence is may be given now, and never later.
                self.refuse_reserved(name, "new", (tag.key for tag in tags if tag.key != SESSION_ID))
        return super().create_model_version(
            name, source, run_id, tags, run_link, description, local_model_path, model_id
        )

    def delete_model_version(self, name, version):  # type: ignore[no-untyped-def]
        self.refuse_if_held(name, "deleting the version", version)
        return super().delete_model_version(name, version)

    def transition_model_version_stage(self, name, version, stage, archive_existing_versions):  # type: ignore[no-untyped-def]
        if get_canonical_stage(stage) != NO_STAGE and self.guards_model(str(name)):
            raise refusals.no_stages(name, version, stage)
        return super().transition_model_version_stage(name, version, stage, archive_existing_versions)

    def set_model_version_tag(self, name, version, tag):  # type: ignore[no-untyped-def]
        self.refuse_reserved(name, version, (tag.key,))
        self.refuse_other_kind(name, tag.key)
        return super().set_model_version_tag(name, version, tag)

    def delete_model_version_tag(self, name, version, key):  # type: ignore[no-untyped-def]
        self.refuse_reserved(name, version, (key,))
        self.refuse_other_kind(name, key)
        return super().delete_model_version_tag(name, version, key)

    def set_registered_model_tag(self, name, tag):  # type: ignore[no-untyped-def]
        self.refuse_reserved(name, None, (tag.key,))
        self.refuse_other_kind(name, tag.key)
        return super().set_registered_model_tag(name, tag)

    def delete_registered_model_tag(self, name, key):  # type: ignore[no-untyped-def]
        self.refuse_reserved(name, None, (key,))
        self.refuse_other_kind(name, key)
        return super().delete_registered_model_tag(name, key)


class GuardedStore(GuardedMethods, SqlAlchemyStore):  # type: ignore[misc]
    """The guard before MLflow's store."""


class GuardedWorkspaceStore(GuardedMethods, WorkspaceAwareSqlAlchemyStore):  # type: ignore[misc]
    """The guard before MLflow's store with workspaces."""
